"""Waking watchers, and events for live views: bounded, and honest about what was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from causal.model import Dot
from kvstore.effects import Event, Happened, Moment
from kvstore.errors import TooManyWaiting
from kvstore.feed import READERS_MAX, EventFeed, Feed
from kvstore.limits import Limits


def timely(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 10))


def happened(commit: int, events: int) -> Happened:
    moment = Moment(0, 0)
    return Happened(commit, [Event("sent", Dot(0, commit), 1)] * events, moment, moment, 1, 1)


# Watchers


def test_a_waiter_is_woken_by_a_newer_change_and_by_nothing_older() -> None:
    async def story() -> None:
        feed = Feed()
        waiting = asyncio.create_task(feed.wait(5, 10))
        await asyncio.sleep(0)
        for index in (3, 5):
            feed.wake(index)
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        feed.wake(6)
        await waiting
        await feed.wait(5, 10)  # it is there already

    timely(story)


def test_a_wait_ends_with_its_time_and_when_the_feed_closes() -> None:
    async def story() -> None:
        feed = Feed()
        await feed.wait(0, 0.01)
        waiting = asyncio.create_task(feed.wait(0, 100))
        await asyncio.sleep(0)
        feed.close()
        await waiting
        await feed.wait(0, 100)

    timely(story)


def test_a_waiter_who_gives_up_leaves_nothing_behind() -> None:
    async def story() -> None:
        feed = Feed()
        waiting = asyncio.create_task(feed.wait(0, 100))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert not feed._waiting
        feed.wake(1)

    timely(story)


# Events


def test_every_reader_gets_all_events_in_order_from_when_it_came() -> None:
    async def story() -> None:
        feed = EventFeed(Limits())
        feed.publish(happened(1, 1))
        with feed.open() as early:
            feed.publish(happened(2, 2))
            with feed.open() as late:
                feed.publish(happened(3, 3))
                assert [one.commit for one in (await early.take()).happened] == [2, 3]
                assert await late.take() == ([happened(3, 3)], 0)

    timely(story)


def test_a_reader_waits_until_something_happens() -> None:
    async def story() -> None:
        feed = EventFeed(Limits())
        with feed.open() as reader:
            taking = asyncio.create_task(reader.take())
            feed.publish(happened(1, 0))
            await asyncio.sleep(0.01)
            assert not taking.done(), "nothing happened to any message"
            feed.publish(happened(2, 1))
            assert [one.commit for one in (await taking).happened] == [2]

    timely(story)


def test_who_reads_too_slowly_keeps_the_newest_and_hears_how_many_were_lost() -> None:
    async def story() -> None:
        feed = EventFeed(Limits(event_backlog_max=10))
        with feed.open() as reader:
            for commit in range(1, 8):
                feed.publish(happened(commit, 3))
            taken = await reader.take()
            assert ([one.commit for one in taken.happened], taken.lost) == ([5, 6, 7], 12)
            feed.publish(happened(8, 11))
            assert await reader.take() == ([], 11), "one turn that is too much by itself"
            feed.publish(happened(9, 1))
            assert (await reader.take()).lost == 0

    timely(story)


def test_a_reader_that_ends_is_forgotten_and_wakes_up() -> None:
    async def story() -> None:
        feed = EventFeed(Limits())
        reader = feed.open()
        taking = asyncio.create_task(reader.take())
        await asyncio.sleep(0)
        feed.close()
        assert await taking == ([], 0) and reader.is_closed and len(feed) == 0
        assert await reader.take() == ([], 0)

    timely(story)


def test_one_reader_too_many_is_refused() -> None:
    async def story() -> None:
        feed = EventFeed(Limits())
        readers = [feed.open() for _ in range(READERS_MAX)]
        with pytest.raises(TooManyWaiting):
            feed.open()
        readers[0].close()
        feed.open()

    timely(story)
