"""The commands that look inside: status and explain.

Asked of all sites at once, a site that does not answer is part of the answer. Each site tells of the links in both
directions; the sender of a link knows more about it, so its word counts where it can be had.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kvstore.commands.common import Ask, Exit, Output, asking_for, exit_code, print_json, print_lines
from kvstore.errors import KvError
from kvstore.show import duration, size, table, to_json

if TYPE_CHECKING:
    from causal.model import Dot
    from kvstore.client import Client
    from kvstore.config import Cluster

T = TypeVar("T")
LOOK_TIMEOUT = "2s"  # a site that is down should not keep the others waiting
_DOT = re.compile(r"(.+):(\d{1,19})")

SITE_COLUMNS = ("commit", "keys", "held", "outbox", "log units", "control", "commits/s", "updates/s", "alarms")


@dataclass(frozen=True, slots=True)
class Answer:
    """What one site said, or why it said nothing."""

    site: str
    said: Any = None
    error: KvError | None = None


def _ask_each(ask: Ask, cluster: Cluster, question: Callable[[Client], Any]) -> list[Answer]:
    """The site that was named, or all of them at the same time."""
    from kvstore.client import connect

    sites = [cluster.site(ask.site)] if ask.site is not None else list(cluster.sites)

    def one(name: str, endpoint: str) -> Answer:
        try:
            with connect(endpoint, timeout_s=ask.timeout_s) as client:
                return Answer(name, question(client))
        except KvError as error:
            return Answer(name, error=error)

    with ThreadPoolExecutor(len(sites)) as pool:
        return list(pool.map(one, [site.name for site in sites], [site.client for site in sites]))


def _end(answers: list[Answer]) -> None:
    """Exit as the errors say when nobody answered."""
    if all(answer.error for answer in answers):
        codes = {exit_code(answer.error) for answer in answers if answer.error}
        raise SystemExit(codes.pop() if len(codes) == 1 else Exit.UNAVAILABLE)


def as_dict(message: Any) -> dict[str, Any]:
    """A protobuf message as JSON has it: numbers stay numbers, bytes are text or marked, enums are their names."""
    return {field.name: _field(message, field) for field in message.DESCRIPTOR.fields}


def _field(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.is_repeated:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return dict(value)
        return [_value(one, field) for one in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _value(value, field)


def _value(value: Any, field: Any) -> Any:
    if field.message_type is not None:
        return as_dict(value)
    if field.enum_type is not None:
        name: str = field.enum_type.values_by_number[value].name
        return name.removeprefix(_capitals(field.enum_type.name) + "_").lower()
    return to_json(value) if isinstance(value, bytes) else value


def _capitals(name: str) -> str:
    """`HoldCause` in the way its values begin: HOLD_CAUSE."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()


# Status


@click.command()
@asking_for(LOOK_TIMEOUT)
def status(ask: Ask) -> None:
    """How the replicas are: what they hold back, their links, their alarms. Asks all of them, or the one of --site.

    Exits with 3 when none of them answers.

    \b
      kvstore status
      kvstore status --site a --output json
    """
    cluster = ask.cluster()
    answers = _ask_each(ask, cluster, lambda client: client.status())
    if ask.output is Output.JSON:
        print_json({"sites": [_status_json(answer) for answer in answers]}, indent=2)
    elif ask.output is Output.PLAIN:
        print_lines("\t".join(map(str, _plain_row(answer))) for answer in answers)
    else:
        print_lines(_status_lines(cluster, answers, is_one=ask.site is not None))
    _end(answers)


def _status_json(answer: Answer) -> dict[str, Any]:
    if answer.error is not None:
        return {"site": answer.site, "state": "down", "error": str(answer.error), "reason": answer.error.reason}
    return {**as_dict(answer.said), "state": "up"}


def _plain_row(answer: Answer) -> tuple[object, ...]:
    if answer.error is not None:
        return (answer.site, "down", *["-"] * len(SITE_COLUMNS))
    said, does = answer.said, answer.said.activity
    rates = (f"{does.commits_per_second:.1f}", f"{does.updates_per_second:.1f}")
    counts = (said.commit, does.keys, does.held, _outbox_bytes(said), does.log_units, does.control_bytes)
    return (answer.site, "up", *counts, *rates, len(said.alarms))


def _outbox_bytes(said: Any) -> int:
    return sum(link.outbox_bytes for link in said.links if link.sender == said.site)


def _status_lines(cluster: Cluster, answers: list[Answer], *, is_one: bool) -> Iterator[str]:
    options = "".join(f", {name} {value}" for name, value in cluster.options.items())
    yield f"cluster {cluster.cluster_id}: {cluster.protocol}{options}, {cluster.durability}"
    yield ""
    yield from table(("site", "state", *SITE_COLUMNS), [_site_row(answer) for answer in answers])
    for answer in answers:
        if answer.error is not None:
            yield f"{answer.site}: {answer.error}"
        elif is_one:
            yield from ("", f"As {answer.site} sees the others:", *_others(answer.said))
    if links := _links(answers):
        yield ""
        rows = [_link_row(*link) for link in links.items()]
        yield from table(("from", "to", "link", "delay", "made", "acked", "ack took", "outbox"), rows)
        yield from (f"{one} → {other}: {link.trouble}" for (one, other), link in links.items() if link.trouble)
    yield from _alarm_lines(answers)


def _site_row(answer: Answer) -> tuple[object, ...]:
    site, state, *row = _plain_row(answer)
    if answer.error is None:
        row[3], row[5] = size(int(str(row[3]))), size(int(str(row[5])))
        row[2] = _held(answer.said.activity)
    return (site, state, *row)


def _held(does: Any) -> str:
    return f"{does.held} ({duration(does.held_oldest_ms)})" if does.held else "0"


def _others(said: Any) -> list[str]:
    rows = [
        (
            other.name,
            "connected" if other.connected else "away",
            other.delivered,
            duration(other.heard_ms) + " ago" if other.HasField("heard_ms") else "never",
            f"{other.clock_ahead_ms:+} ms",
        )
        for other in said.replicas
        if other.name != said.site
    ]
    return table(("site", "", "delivered", "heard", "clock"), rows) if rows else ["there are none"]


def _links(answers: list[Answer]) -> dict[tuple[str, str], Any]:
    links = {}
    for answer in answers:
        for link in answer.said.links if answer.error is None else ():
            pair = (link.sender, link.receiver)
            if pair not in links or link.sender == answer.site:
                links[pair] = link
    return dict(sorted(links.items()))


def _link_row(pair: tuple[str, str], link: Any) -> tuple[object, ...]:
    state = "open" if link.connected else "closed"
    outbox = f"{link.outbox_messages:,} ({size(link.outbox_bytes)})" if link.outbox_messages else "0"
    delay = f"{link.delay_ms} ms" if link.delay_ms else "-"
    took = f"{link.ack_ms:.1f} ms" if link.ack_ms else "-"
    return (*pair, state, delay, link.made or link.passed, link.acked, took, outbox)


def _alarm_lines(answers: list[Answer]) -> Iterator[str]:
    now_ms = time.time() * 1000
    alarms = [(answer.site, alarm) for answer in answers if answer.error is None for alarm in answer.said.alarms]
    if alarms:
        yield ""
        yield "Alarms:"
    for site, alarm in alarms:
        yield f"  {site}  {alarm.reason}, for {duration(max(0, round(now_ms - alarm.since_ms)))}: {alarm.message}"


# Explain


@click.command()
@click.argument("message", required=False)
@click.option("--limit", type=click.IntRange(1), help="At most so many a site: those that have waited longest.")
@asking_for(LOOK_TIMEOUT)
def explain(ask: Ask, message: str | None, limit: int | None) -> None:
    """Why messages are held back: what each waits for, since when, how that became part of its past, and whether it
    is really needed.

    MESSAGE asks for one of them only, by its site and number: b:12. Asks all sites, or the one of --site.

    \b
      kvstore explain
      kvstore explain b:12 --site c
    """
    cluster = ask.cluster()
    dot = _dot(cluster, message)
    answers = _ask_each(ask, cluster, lambda client: client.explain(dot, limit=limit))
    if ask.output is Output.JSON:
        print_json({"sites": [_explain_json(answer) for answer in answers]}, indent=2)
    elif ask.output is Output.PLAIN:
        print_lines("\t".join(line) for answer in answers for line in _explain_rows(answer))
    else:
        print_lines(_explain_lines(answers))
    _end(answers)


def _dot(cluster: Cluster, text: str | None) -> Dot | None:
    from causal.model import Dot

    if text is None:
        return None
    match = _DOT.fullmatch(text)
    if match is None:
        raise click.UsageError(f"{text!r} is no message; one looks like b:12, the twelfth of site b")
    return Dot(cluster.site(match[1]).number, int(match[2]))


def _explain_json(answer: Answer) -> dict[str, Any]:
    if answer.error is not None:
        return {"site": answer.site, "error": str(answer.error), "reason": answer.error.reason}
    return as_dict(answer.said)


def _explain_rows(answer: Answer) -> Iterator[tuple[str, ...]]:
    """Where it is held, the message, what it waits for, for how long, the cause, and the chain as sentences."""
    for held in answer.said.held if answer.error is None else ():
        names = (f"{held.origin}:{held.dot.seq}", f"{held.missing_origin}:{held.missing.seq}")
        sentences = "; ".join(step.sentence for step in held.chain)
        yield (answer.site, *names, f"{held.held_ms}ms", _cause(held), sentences)


def _cause(held: Any) -> str:
    cause: str = as_dict(held)["cause"]
    return cause


def _explain_lines(answers: list[Answer]) -> Iterator[str]:
    is_any = False
    for answer in answers:
        if answer.error is not None:
            yield f"{answer.site}: {answer.error}"
            continue
        for held in answer.said.held:
            is_any = True
            what = f"message {held.dot.seq} of {held.origin} ({held.updates} update{'s' * (held.updates != 1)})"
            yield f"{answer.site} has held {what} for {duration(held.held_ms)}, cause {_cause(held)}:"
            yield from (f"  {step.sentence}" for step in held.chain)
        if (more := answer.said.held_total - len(answer.said.held)) > 0:
            yield f"{answer.site} holds {more:,} more"
    if is_any:
        yield from ("", LEGEND)
    elif any(answer.error is None for answer in answers):
        yield "Nothing is held back."


LEGEND = (
    "cause true: it depends on the missing message; "
    "false: it only came after it at its site, and waits in vain; "
    "unknown: nobody told"
)

COMMANDS = (status, explain)
