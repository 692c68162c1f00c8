"""History rows (rows.py) as Parquet. The only file here that knows pyarrow, and only when it is called."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from pipeline.audit.errors import Malformed, MissingLibrary, shown
from pipeline.audit.formats.rows import operation_of
from pipeline.audit.history import Operation

MAGIC = b"PAR1"  # how a Parquet file begins and ends


def read_parquet(data: bytes) -> list[Operation]:
    return [operation_of(row, line) for line, row in enumerate(_rows(data), start=1)]


def _rows(data: bytes) -> Iterator[dict[str, Any]]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise MissingLibrary("Parquet is read by pyarrow, which is not installed (the extra `trace`)") from None
    if not data.startswith(MAGIC) or not data.endswith(MAGIC):
        raise Malformed(0, "it is no Parquet file, or its end is missing")
    try:
        with ParquetFile(io.BytesIO(data)) as file:
            for batch in file.iter_batches():
                yield from batch.to_pylist()
    except (ArrowException, OSError, ValueError, OverflowError) as error:
        first = str(error).partition("\n")[0]
        raise Malformed(0, f"it cannot be read as Parquet: {shown(first)}") from None
