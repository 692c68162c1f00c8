"""What is to be sent on a link: from memory where it can, from the outbox where it must, never more than was said."""

from __future__ import annotations

import pytest

from kvstore.backlog import CACHE_FRAMES, ENVELOPE_OVERHEAD, Backlog
from kvstore.effects import Envelope
from kvstore.errors import CorruptRecord
from kvstore.hello import ENVELOPES_MAX
from kvstore.layout import outbox_key
from kvstore.limits import Limits
from kvstore.storage.contract import Batch
from kvstore.storage.memory import MemoryStorage

PEER = 3


def envelopes(first: int, last: int, size: int = 1) -> list[Envelope]:
    return [Envelope(number, number, b"control", b"p" * size, b"w") for number in range(first, last + 1)]


class Desk:
    """A backlog with its outbox."""

    def __init__(self, *, said: int = 0, **limits: int) -> None:
        self.storage = MemoryStorage()
        self.backlog = Backlog(PEER, self.storage, Limits(**limits), said=said)

    def store(self, first: int, last: int, size: int = 1) -> list[Envelope]:
        """Into the outbox, with a neighbour's messages on both sides."""
        made = envelopes(first, last, size)
        puts = [("outbox", outbox_key(peer, one.number), one.pack()) for peer in (2, PEER, 4) for one in made]
        self.storage.commit(Batch(self.storage.number + 1, puts))
        return made

    def make(self, first: int, last: int, size: int = 1) -> None:
        self.backlog.add(self.store(first, last, size))

    def take_all(self) -> list[list[Envelope]]:
        taken = []
        while not self.backlog.is_empty:
            taken.append(self.backlog.take())
        return taken

    def forbid_reading(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse() -> None:
            raise AssertionError("nothing should be read")

        monkeypatch.setattr(self.storage, "snapshot", refuse)


def test_what_comes_while_the_link_is_open_is_taken_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(link_batch_max=4)
    desk.backlog.open(0)
    desk.make(1, 6)
    desk.forbid_reading(monkeypatch)
    assert desk.take_all() == [envelopes(1, 4), envelopes(5, 6)]
    assert len(desk.backlog) == 0


def test_nobody_there_nothing_in_memory_and_then_everything_from_disk() -> None:
    desk = Desk(link_batch_max=4)
    desk.make(1, 10)
    assert len(desk.backlog) == 0
    desk.backlog.open(2)
    assert desk.take_all() == [envelopes(3, 6), envelopes(7, 10)]


def test_the_same_comes_again_after_a_break_also_what_was_taken() -> None:
    desk = Desk(link_batch_max=10)
    desk.backlog.open(0)
    desk.make(1, 5)
    assert desk.take_all() == [envelopes(1, 5)]
    desk.backlog.close()
    desk.make(6, 7)
    desk.backlog.open(3)
    desk.make(8, 8)
    assert desk.take_all() == [envelopes(4, 8)]


def test_a_link_that_falls_behind_keeps_the_newest_and_reads_the_rest() -> None:
    desk = Desk(link_batch_max=4, link_cache_max=3)
    desk.backlog.open(0)
    desk.make(1, 9)
    assert len(desk.backlog) == 3
    assert [envelope for frame in desk.take_all() for envelope in frame] == envelopes(1, 9)
    assert len(desk.backlog) == 0


def test_memory_is_bounded_in_bytes_too() -> None:
    desk = Desk(link_batch_bytes_max=1000)
    desk.backlog.open(0)
    desk.make(1, 50, size=1000)
    assert 0 < len(desk.backlog) <= CACHE_FRAMES
    assert [envelope.number for frame in desk.take_all() for envelope in frame] == list(range(1, 51))


@pytest.mark.parametrize("is_open", [True, False])
def test_a_frame_ends_at_its_bytes_after_one_message_at_least(is_open: bool) -> None:
    desk = Desk(link_batch_bytes_max=3 * (100 + len(b"controlw") + ENVELOPE_OVERHEAD))
    if is_open:
        desk.backlog.open(0)
    desk.make(1, 7, size=100)
    desk.make(8, 9, size=1000)
    desk.backlog.open(0)
    assert [len(frame) for frame in desk.take_all()] == [3, 3, 1, 1, 1]


def test_no_limit_makes_a_frame_longer_than_the_wire_allows() -> None:
    desk = Desk(link_batch_max=1 << 20)
    desk.make(1, ENVELOPES_MAX + 1)
    desk.backlog.open(0)
    assert [len(frame) for frame in desk.take_all()] == [ENVELOPES_MAX, 1]


def test_what_is_on_disk_but_not_said_is_not_sent() -> None:
    """A commit that is not durable yet can be read, and may still be lost (SAFETY 2)."""
    desk = Desk(said=0)
    made = desk.store(1, 5)
    desk.backlog.open(0)
    assert desk.backlog.is_empty
    desk.backlog.close()
    desk.backlog.add(made[:2])
    desk.backlog.open(0)
    assert desk.take_all() == [envelopes(1, 2)]


def test_what_lay_in_the_outbox_at_the_start_may_be_sent() -> None:
    desk = Desk(said=5)
    desk.store(1, 5)
    desk.backlog.open(1)
    assert desk.take_all() == [envelopes(2, 5)]


def test_a_frame_is_full_when_waiting_would_not_make_it_larger() -> None:
    desk = Desk(link_batch_max=3, link_batch_bytes_max=1000)

    def is_full() -> bool:
        return desk.backlog.fills_a_frame

    desk.backlog.open(0)
    desk.make(1, 2)
    assert not is_full()
    desk.make(3, 3)
    assert is_full()
    desk.take_all()
    desk.make(4, 4, size=1000)
    assert is_full()
    desk.backlog.close()
    desk.backlog.open(3)
    assert is_full(), "it is late already"


@pytest.mark.parametrize("missing", [1, 3])
def test_a_hole_in_the_outbox_is_corrupt_and_never_skipped(missing: int) -> None:
    desk = Desk(said=5)
    desk.store(1, 5)
    desk.storage.commit(Batch(desk.storage.number + 1, deletes=[("outbox", outbox_key(PEER, missing))]))
    desk.backlog.open(0)
    with pytest.raises(CorruptRecord) as error:
        desk.take_all()
    assert error.value.details["key"] == str(missing)
