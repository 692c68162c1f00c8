"""Values as text, and text as values."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.commands.operations import operation_of
from kvstore.show import duration, from_json, milliseconds, shorten, size, table, to_json


@given(st.binary())
def test_bytes_survive_json(data: bytes) -> None:
    assert from_json(json.loads(json.dumps(to_json(data)))) == data


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda one: (
            st.lists(one)
            | st.dictionaries(
                st.sampled_from(["put", "delete", "value", "ttl", "if_version", "base64", "if_absent"]), one
            )
        ),
    )
)
def test_no_json_is_taken_for_an_operation_that_it_is_not(given_json: object) -> None:
    with suppress(ValueError):  # and nothing else
        assert isinstance(operation_of(given_json).key, bytes)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1ms", 1),
        ("30s", 30_000),
        ("1.5s", 1500),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("7d", 604_800_000),
        ("2 s", 2000),
    ],
)
def test_durations_have_a_unit(text: str, ms: int) -> None:
    assert milliseconds(text) == ms


@pytest.mark.parametrize("text", ["", "30", "s", "-1s", "1e9s", "1s 2", "9" * 20 + "s", "٣s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no duration"):
        milliseconds(text)


def test_durations_and_sizes_for_people() -> None:
    assert [duration(ms) for ms in (0, 5, 1500, 60_000, 5_400_000, 86_400_000)] == [
        "0 ms",
        "5 ms",
        "1.5 s",
        "1 m",
        "1.5 h",
        "1 d",
    ]
    assert [size(count) for count in (0, 1023, 1024, 3 << 20, 5 << 40, 9 << 50)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "3.0 MiB",
        "5.0 TiB",
        "9216.0 TiB",
    ]


def test_a_table_lines_up_and_numbers_stand_right() -> None:
    assert table(("site", "count"), [("a", 5), ("long", 1234)]) == ["site  count", "a         5", "long  1,234"]
    assert table(("site", "count"), []) == ["site  count"]


@given(st.binary(max_size=300), st.integers(2, 50))
def test_what_is_shortened_fits_and_stays_on_one_line(data: bytes, width: int) -> None:
    text = shorten(data, width)
    assert len(text) <= width and "\n" not in text
