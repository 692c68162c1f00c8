"""Every error has a name, a status and an answer to "did it happen?"; and whoever raises one says what it needs."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore import errors
from kvstore.errors import (
    ERRORS,
    STATUS,
    Internal,
    InvalidArgument,
    KeyTooLong,
    KvError,
    OutboxFull,
    Unavailable,
    error_of,
)

PACKAGE = Path(errors.__file__).parent
FAMILIES = {KvError, InvalidArgument}
STATUSES = {
    "INVALID_ARGUMENT",
    "FAILED_PRECONDITION",
    "RESOURCE_EXHAUSTED",
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "OUT_OF_RANGE",
    "NOT_FOUND",
    "DATA_LOSS",
    "INTERNAL",
}


def fields_of(error: type[KvError]) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(error.sentence) if name}


def example(error: type[KvError]) -> KvError:
    return error(**dict.fromkeys(fields_of(error), "x"))


def test_every_error_is_in_the_table_and_every_status_is_one_of_grpc() -> None:
    classes = {one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, KvError)}
    assert classes - FAMILIES == set(ERRORS)
    assert set(ERRORS.values()) <= STATUSES


def test_reasons_are_the_names_in_capitals_and_each_is_there_once() -> None:
    spelt = {re.sub(r"(?<!^)(?=[A-Z])", "_", error.__name__).upper(): error for error in ERRORS}
    assert {error.reason: error for error in ERRORS} == spelt
    assert len(STATUS) == len(ERRORS)


def test_only_these_leave_open_whether_the_write_happened() -> None:
    open_ones = {error.reason for error in ERRORS if not error.definite}
    assert open_ones == {"UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "STORAGE_FAILED"}


def test_a_request_that_is_wrong_in_itself_is_an_invalid_argument_and_nothing_else_is() -> None:
    assert {error for error in ERRORS if issubclass(error, InvalidArgument)} == {
        error for error, status in ERRORS.items() if status == "INVALID_ARGUMENT"
    }


def test_the_details_are_in_the_sentence_and_beside_it() -> None:
    error = KeyTooLong(length=500, limit=480)
    assert str(error) == "a key of 500 bytes; at most 480 are possible"
    assert error.details == {"length": "500", "limit": "480"}
    assert (error.reason, error.status, error.definite) == ("KEY_TOO_LONG", "INVALID_ARGUMENT", True)
    assert "b" in str(OutboxFull(peer="b", size=2, limit=1))


def test_a_message_can_say_it_better_than_the_sentence() -> None:
    error = Unavailable("nobody is there", site="a")
    assert (str(error), error.details) == ("nobody is there", {"site": "a"})


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.reason)
@pytest.mark.parametrize("definite", [True, False])
def test_an_error_arrives_as_it_was_sent(error: type[KvError], definite: bool) -> None:
    sent = example(error)
    got = error_of(sent.reason, str(sent), sent.details, definite=definite)
    assert (type(got), str(got), got.details, got.definite) == (error, str(sent), sent.details, definite)
    assert "definite" not in fields_of(error), "it travels beside the details under this name"


def test_a_reason_from_a_newer_version_keeps_its_words_and_its_promise() -> None:
    got = error_of("TOO_EARLY", "come back at nine", {"at": "9"}, definite=True)
    assert (type(got), str(got), got.definite) == (Internal, "come back at nine", True)
    assert got.details == {"at": "9", "unknown_reason": "TOO_EARLY"}


def test_details_may_have_any_name() -> None:
    assert error_of("INTERNAL", "m", {"self": "1", "message": "2"}, definite=False).details == {
        "self": "1",
        "message": "2",
    }


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.reason)
def test_an_error_can_be_copied_and_carried_to_another_process(error: type[KvError]) -> None:
    made = example(error)
    for again in (copy.copy(made), pickle.loads(pickle.dumps(made))):
        assert (type(again), str(again), again.details) == (error, str(made), made.details)


# A sentence without its details would end in a KeyError, at the worst moment and far from any test


def incomplete_errors(source: str) -> Iterator[str]:
    """Where an error is made without a message of its own and without all details of its sentence."""
    by_name = {error.__name__: error for error in ERRORS}
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
            continue
        error = by_name.get(node.func.id if isinstance(node.func, ast.Name) else node.func.attr)
        if error is None or node.args or any(keyword.arg is None for keyword in node.keywords):
            continue
        missing = fields_of(error) - {str(keyword.arg) for keyword in node.keywords}
        if missing:
            yield f"line {node.lineno}: {error.__name__} without {', '.join(sorted(missing))}"


def test_every_error_is_raised_with_the_details_of_its_sentence() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if "_pb2" not in path.name]
    assert len(files) > 5
    found = [f"{path.relative_to(PACKAGE)}, {one}" for path in files for one in incomplete_errors(path.read_text())]
    assert found == []


def test_an_error_without_its_details_is_noticed() -> None:
    assert list(incomplete_errors("raise KeyTooLong(length=3)")) == ["line 1: KeyTooLong without limit"]
    assert list(incomplete_errors("raise errors.KeyTooLong()")) == ["line 1: KeyTooLong without length, limit"]
    assert not list(incomplete_errors("raise KeyTooLong(length=3, limit=2)\nKeyTooLong('why')\nKeyTooLong(**details)"))
