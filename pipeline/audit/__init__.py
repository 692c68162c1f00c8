"""The audit: a recorded history in, a verdict out.

    history.py    what clients did and saw, as values            formats/  from files to such values, strictly
    source.py     which write each read saw                      graph.py  orders as sets in one int
    register.py   what happened to one key                       timeline.py  who could know what; what a read lacks
    causality.py  CC and CCv by their bad patterns               guarantee.py  the four promises to a session
    verdict.py    all of it, one line a file

It is an oracle: it imports neither the store nor the causal core, and no clock, file, socket or chance either. The
only outside is at the edge: `formats/parquet.py` loads pyarrow when a Parquet file is read.
"""

from pipeline.audit.errors import AuditError, Malformed, MissingLibrary, TooLarge, UnknownFormat
from pipeline.audit.formats import FORMATS, detect, load
from pipeline.audit.history import History, Operation, Outcome
from pipeline.audit.verdict import Verdict, judge

__all__ = [
    "FORMATS",
    "AuditError",
    "History",
    "Malformed",
    "MissingLibrary",
    "Operation",
    "Outcome",
    "TooLarge",
    "UnknownFormat",
    "Verdict",
    "detect",
    "judge",
    "load",
]
