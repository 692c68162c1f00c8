"""Whatever comes from outside may be wrong: then a named error comes out, and the site is as it was.

Forged values first, each with the error it deserves; then bytes that are cut, extended, mutated or random. What is
mutated may still make sense; then it is taken like any other. Nothing but a `CausalError` is ever raised.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from causal import errors
from causal.blocks import pack_text
from causal.codec import FORMAT, TOKEN_MAX, decode, decode_token, dump, encode, encode_token, load
from causal.columns import Columns
from causal.errors import BadDestinations, BadOption, CausalError, Foreign, FromTheFuture, Malformed, NotForUs
from causal.links import LinkStamp
from causal.log import Log, LogStamp
from causal.model import Dot, Held, Mask, Message
from causal.multicast import SITES_MAX, Multicast, Outgoing
from causal.protocols import PROTOCOLS, make_site
from causal.protocols.extra_message import ColumnStamp, SparseStamp
from causal.protocols.false_causality import Meant, MeantStamp
from causal.protocols.vector import Clock
from causal.rows import Matrix

N = 4
HERE, SENDER, THIRD, FOURTH = range(N)
CLOCK = 2  # messages that HERE has sent
CAUSAL = [name for name, protocol in PROTOCOLS.items() if protocol.is_causal]
CONTROLS, LOGS = sorted(PROTOCOLS.keys() - CAUSAL), ("optimal", "pruning")
EVERYONE, NOT_SENDER = 0b1111, 0b1101


@contextmanager
def refused(error: type[CausalError], site: Multicast[Any]) -> Iterator[None]:
    """This error comes out, and the site is as it was."""
    before = dump(site)
    with pytest.raises(error):
        yield
    assert dump(site) == before


def here(protocol: str) -> Multicast[Any]:
    site = make_site(protocol, HERE, N)
    assert [site.send(EVERYONE ^ 1 << HERE) for _ in range(CLOCK)]
    return site


def pack(protocol: str, message: Message) -> bytes:
    """One copy as its sender writes it, however little sense it makes."""
    return next(iter(encode(make_site(protocol, SENDER, N), Outgoing(*message)).values()))


def contexts(protocol: str, dot: Dot) -> list[Any]:
    """Causal pasts that name this message."""
    newest = tuple(dot.seq if site == dot.site else 0 for site in range(N))
    other = SENDER if dot.site == FOURTH else FOURTH
    if protocol in LOGS:
        return [Log(newest, {}), Log(newest, {dot: 1 << other})]
    matrix = Matrix.empty(N).with_message(dot, 1 << other)
    meant = [Meant(Matrix.empty(N), matrix), Meant(matrix, matrix)]
    known: dict[str, list[Any]] = {"false-causality": meant, "matrix": [matrix], "vector": [Clock(newest)]}
    return known.get(protocol) or [past_of_a_sender(protocol, dot, 1 << other)]


def past_of_a_sender(protocol: str, dot: Dot, to: Mask) -> Any:
    """What a site knows that has sent this message and nothing else."""
    sender = make_site(protocol, dot.site, N)
    sender.clock = dot.seq - 1
    sender.send(to)
    return sender.context


def messages(protocol: str, dot: Dot) -> list[Message]:
    """Messages of SENDER to HERE and THIRD that name this message. Their own name is (SENDER, 5)."""
    stamps = contexts(protocol, dot)
    needs = [] if dot.site == HERE else [dot]  # that we must wait for what we sent ourselves is another mistake
    if protocol in LOGS:
        stamps = [LogStamp(log.newest, log.pending, needs) for log in stamps]
    elif protocol == "false-causality":
        stamps = [MeantStamp(meant, 1) for meant in stamps]
    elif protocol == "extra-message":
        own = [SparseStamp(Columns.empty(N), dict(needs), 1), ColumnStamp(dict(needs))] if needs else []
        stamps = [SparseStamp(stamps[0], {}, 1), *own]
    return [forged(protocol, stamp) for stamp in stamps]


def forged(protocol: str, stamp: Any) -> Message:
    is_extra = isinstance(stamp, ColumnStamp)
    to = NOT_SENDER if protocol == "vector" else 1 << HERE if is_extra else 1 << HERE | 1 << THIRD
    return Message(Dot(SENDER, 5), to, stamp, b"", is_extra)


NAMED = {
    "itself": (Dot(SENDER, 5), Malformed),
    "a later one of its sender": (Dot(SENDER, 6), Malformed),
    "one that we never sent": (Dot(HERE, CLOCK + 1), FromTheFuture),
    "its predecessor": (Dot(SENDER, 4), None),
    "one that only looks early": (Dot(FOURTH, 2**64 - 1), None),
}


@pytest.mark.parametrize("protocol", CAUSAL)
@pytest.mark.parametrize(("named", "error"), NAMED.values(), ids=NAMED)
def test_a_message_names_what_it_cannot_know(protocol: str, named: Dot, error: type[CausalError] | None) -> None:
    for message in messages(protocol, named):
        site, data = here(protocol), pack(protocol, message)
        if error is None:
            assert isinstance(site.receive(decode(site, data))[0], Held | Message)
            continue
        with refused(error, site):
            site.receive(message)
        with refused(error, site):
            decode(site, data)


@pytest.mark.parametrize("protocol", CAUSAL)
def test_a_token_names_what_we_never_sent_or_have_not_delivered(protocol: str) -> None:
    site, sender = here(protocol), make_site(protocol, SENDER, N)
    for judge in (site.first_missing, site.adopt):
        for future in contexts(protocol, Dot(HERE, CLOCK + 1)):
            with refused(FromTheFuture, site):
                judge(decode_token(site, encode_token(site, future)))
    assert not any(site.first_missing(past) for past in contexts(protocol, Dot(HERE, CLOCK)))
    sender.send(NOT_SENDER)
    with refused(errors.NotDue, site):
        site.adopt(decode_token(site, encode_token(sender, sender.token())))


@pytest.mark.parametrize("protocol", CONTROLS)
def test_the_controls_have_no_tokens(protocol: str) -> None:
    site = here(protocol)
    for question, operands in {"token": 0, "merge": 2, "first_missing": 1, "adopt": 1}.items():
        with refused(errors.NoSessions, site):
            getattr(site, question)(*[site.context] * operands)


WRONG_ENDS = {
    "unknown sender": (Dot(N, 1), EVERYONE, Malformed),
    "message 0": (Dot(SENDER, 0), NOT_SENDER, Malformed),
    "unknown destination": (Dot(SENDER, 1), NOT_SENDER | 1 << N, Malformed),
    "to its sender": (Dot(SENDER, 1), EVERYONE, Malformed),
    "to others": (Dot(SENDER, 1), 1 << THIRD | 1 << FOURTH, NotForUs),
    "our own": (Dot(HERE, 1), EVERYONE ^ 1 << HERE, NotForUs),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("dot", "to", "error"), WRONG_ENDS.values(), ids=WRONG_ENDS)
def test_a_message_with_wrong_ends(protocol: str, dot: Dot, to: Mask, error: type[CausalError]) -> None:
    site, (made,) = here(protocol), make_site(protocol, SENDER, N).send(NOT_SENDER)
    message = Message(dot, to, made.copy(HERE).stamp)
    with refused(error, site):
        decode(site, pack(protocol, message))
    with refused(error, site):
        site.receive(message)
    for to in (-1, 1 << HERE) if protocol == "vector" else (-1,):
        with refused(Malformed, site):
            site.receive(message._replace(to=to))


CROWD = {(THIRD, seq): 1 << FOURTH for seq in range(1, 10)} | {(SENDER, seq): 1 << FOURTH for seq in range(1, 5)}
ENTRIES = [CROWD, {(FOURTH, 1): 1 << THIRD}, *({(THIRD, 1): to} for to in (0, 1 << THIRD, 1 << N))]
NEEDS = [[(HERE, 1)], [(THIRD, seq) for seq in range(1, 10)]]
COLUMNS = [{HERE: 1}, {N: 1}, {THIRD: 0}, dict.fromkeys(range(1, 9), 1)]
NO_STAMPS = [
    *((protocol, LogStamp((1, 4, 9, 9), entries, ())) for protocol in LOGS for entries in ENTRIES),
    *((protocol, LogStamp((1, 4, 9, 9), {}, needs)) for protocol in LOGS for needs in NEEDS),
    *(("direct", Columns((column, {}, {}, {}))) for column in COLUMNS),
    *(("extra-message", SparseStamp(Columns.empty(N), column, 1)) for column in COLUMNS),
    *(("extra-message", ColumnStamp(column)) for column in COLUMNS),
    ("extra-message", SparseStamp(Columns(({THIRD: 1}, {}, {}, {})), {}, 1)),
    ("matrix", Matrix(((1,) * N,) * N)),
    ("false-causality", MeantStamp(Meant(Matrix.empty(N), Matrix.empty(N)), 0)),
    *((protocol, LinkStamp(0, 0)) for protocol in CONTROLS),
]


@pytest.mark.parametrize(("protocol", "stamp"), NO_STAMPS)
def test_a_stamp_that_no_honest_site_writes(protocol: str, stamp: Any) -> None:
    """Too many entries, unknown sites, message 0, nobody, a site's message to itself, what its carrier replaces."""
    site = here(protocol)
    with refused(Malformed, site):
        decode(site, pack(protocol, forged(protocol, stamp)))


NOWHERE = [(protocol, to) for protocol in PROTOCOLS for to in (0, 1 << HERE, EVERYONE, 1 << N, -1, -2, 1 << 2000)]


@pytest.mark.parametrize(("protocol", "to"), [*NOWHERE, *(("vector", to) for to in range(2, 14, 2))])
def test_nothing_is_sent_to_nobody_oneself_a_stranger_or_with_vector_to_some(protocol: str, to: Mask) -> None:
    site = here(protocol)
    with refused(BadDestinations, site):
        site.send(to)


BAD_SITES: list[Any] = [(p, *at, {}) for p in PROTOCOLS for at in ((0, 0), (-1, 3), (3, 3), (0, SITES_MAX + 1))]
BAD_OPTIONS = [("extra-message", 0, N, {"threshold": k}) for k in (-1, 0, N, N * N + 1, 1 << 70, "9", 7.5)]
UNKNOWN = [("optimal", 0, N, {"threshold": 9}), ("extra-message", 0, N, {"k": 9}), ("no-such", 0, N, {})]


@pytest.mark.parametrize(("protocol", "site", "sites", "options"), [*BAD_SITES, *BAD_OPTIONS, *UNKNOWN])
def test_no_site_is_made_of_this(protocol: str, site: int, sites: int, options: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        make_site(protocol, site, sites, **options)


@cache
def traffic(protocol: str) -> dict[str, list[tuple[int, bytes]]]:
    """A small network in the middle of a run: copies under way, tokens and dumps, each with the site that reads it."""
    rng, options = random.Random(1), {"threshold": N + 1} if protocol == "extra-message" else {}
    sites = [make_site(protocol, site, N, **options) for site in range(N)]
    flying: list[tuple[int, bytes]] = []
    for _ in range(60):
        if flying and rng.random() < 0.6:
            to, data = flying.pop(rng.randrange(len(flying)))
            made = [one for one in sites[to].receive(decode(sites[to], data)) if isinstance(one, Outgoing)]
        else:
            site, draw, semantic = rng.choice(sites), rng.randrange(16), rng.random() < 0.5
            to = EVERYONE ^ 1 << site.site
            made = site.send(to if protocol == "vector" else to & draw or to, semantic=semantic)
        flying += [copy for one in made for copy in encode(sites[one.dot.site], one).items()]
    assert protocol == "unordered" or any(site.held for site in sites)
    tokens = [(site.site, encode_token(site, site.token())) for site in sites if site.is_causal]
    return {"message": flying, "token": tokens, "dump": [(site.site, dump(site)) for site in sites]}


READ: dict[str, Any] = {"message": decode, "token": decode_token, "dump": lambda _, data: load(data)}
SUBJECTS = [(p, kind) for p, made in PROTOCOLS.items() for kind in READ if made.is_causal or kind != "token"]


def write(at: Multicast[Any], kind: str, value: Any) -> bytes:
    if kind == "message":
        return encode(at, Outgoing(*value))[at.site]
    return encode_token(at, value) if kind == "token" else dump(value)


def take(protocol: str, kind: str, at: int, data: bytes) -> Any:
    """The site that took these bytes; None if they were refused, which must leave no trace."""
    _, before = traffic(protocol)["dump"][at]
    site = load(before)
    try:
        value = READ[kind](site, data)
    except CausalError:
        assert dump(site) == before
        return None
    again = write(site, kind, value)
    assert write(site, kind, READ[kind](site, again)) == again, "what was read once is read again"
    if kind == "message":
        assert site.receive(value)
    elif kind == "token":
        assert encode_token(site, site.merge(site.token(), value))
        try:
            site.adopt(value)
        except CausalError:
            assert dump(site) == before
    return value if kind == "dump" else site


@pytest.mark.parametrize(("protocol", "kind"), SUBJECTS)
def test_what_is_cut_short_or_too_long_is_malformed(protocol: str, kind: str) -> None:
    for at, data in traffic(protocol)[kind]:
        site = load(traffic(protocol)["dump"][at][1])
        for wrong in [*(data[:end] for end in range(len(data))), data + b"\0", data + b"\1", data + data]:
            with pytest.raises(Malformed):
                READ[kind](site, wrong)


EDITS = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 255) | st.integers(0, 7)), min_size=1, max_size=3)


@pytest.mark.parametrize(("protocol", "kind"), SUBJECTS)
@settings(derandomize=True, max_examples=300, database=None)
@given(index=st.integers(0, 60), edits=EDITS)
def test_no_mutation_does_any_harm(protocol: str, kind: str, index: int, edits: list[tuple[int, int]]) -> None:
    """A lie about others looks like news. Whoever took it can still receive, send, stop and start again."""
    samples = traffic(protocol)[kind]
    at, data = samples[index % len(samples)]
    changed = bytearray(data)
    for place, value in edits:
        changed[place % len(data)] = value
    site = take(protocol, kind, at, bytes(changed))
    if site is not None and kind != "dump":
        for copy in [copy for to, copy in traffic(protocol)["message"] if to == at]:
            site.receive(decode(site, copy))
        assert all(encode(site, made) for made in site.send(EVERYONE ^ 1 << at))
        load(dump(site))


@pytest.mark.parametrize(("protocol", "kind"), SUBJECTS)
@settings(derandomize=True, max_examples=300, database=None)
@given(at=st.integers(0, N - 1), keep=st.integers(0, 12), noise=st.binary(max_size=100))
def test_no_noise_does_any_harm(protocol: str, kind: str, at: int, keep: int, noise: bytes) -> None:
    take(protocol, kind, at, traffic(protocol)[kind][0][1][:keep] + noise)  # some sense first, to get past the door


@pytest.mark.parametrize("protocol", CAUSAL)
def test_a_token_made_elsewhere_is_foreign(protocol: str) -> None:
    site = here(protocol)
    data = encode_token(site, site.token())
    others = [make_site(other, HERE, N) for other in CAUSAL if other != protocol] + [make_site(protocol, HERE, N + 1)]
    for token in [bytes((FORMAT + 1,)) + data[1:], *(encode_token(at, at.token()) for at in others)]:
        with refused(Foreign, site):
            decode_token(site, token)
    with refused(Malformed, site):
        decode_token(site, data + bytes(TOKEN_MAX))


@pytest.mark.parametrize("protocol", [name for name in PROTOCOLS if name != "unordered"])
def test_a_dump_that_holds_what_it_should_not(protocol: str) -> None:
    site, sender = make_site(protocol, HERE, N), make_site(protocol, SENDER, N)
    due, one, other = (encode(sender, made)[HERE] for _ in range(3) for made in sender.send(NOT_SENDER))
    assert all(isinstance(site.receive(decode(site, copy))[0], Held) for copy in (one, other))
    ours = encode(site, site.send(EVERYONE ^ 1 << HERE)[0])[SENDER]
    whole, tail = dump(site), pack_text(other) + pack_text(b"")
    assert whole.endswith(pack_text(one) + pack_text(b"") + tail)
    for wrong, error in [(one, Malformed), (due, Malformed), (ours, NotForUs), (other[:2], Malformed)]:
        with pytest.raises(error):
            load(whole[: -len(tail)] + pack_text(wrong) + pack_text(b""))


def test_a_dump_with_a_wrong_head() -> None:
    head = [(0, FORMAT + 1, Foreign), (1, 200, Foreign), (1, 1, BadOption), (3, 0, BadOption), (5, N, BadOption)]
    for place, value, error in [*head, (7, 17, Malformed)]:
        data = bytearray(dump(here("extra-message")))
        data[place] = value
        with pytest.raises(error):
            load(bytes(data))


@pytest.mark.parametrize("sites", [N, SITES_MAX])
@pytest.mark.parametrize(("protocol", "kind"), SUBJECTS)
def test_a_claim_of_many_entries_takes_no_memory(protocol: str, kind: str, sites: int) -> None:
    site, sender, rng = make_site(protocol, HERE, sites), make_site(protocol, SENDER, sites), random.Random(sites)
    (made,) = sender.send((1 << sites) - 1 ^ 1 << SENDER if protocol == "vector" else 1 << HERE)
    data = write(site, kind, {"message": made.copy(HERE), "token": site.context, "dump": site}[kind])[:2500]
    places = [*range(min(len(data), 40)), *range(40, len(data), 61), len(data)]
    huge = (b"\x08" + b"\xff" * 8, b"\x04" + b"\xff" * 4, b"\x02\xff\xff")  # numbers, read as how many things follow
    inputs = [data[:place] + claim + data[place:] for place in places for claim in huge]
    inputs += [data[: rng.randrange(9)] + rng.randbytes(100) for _ in range(100)]
    tracemalloc.start()
    for wrong in inputs:
        with pytest.raises(CausalError):
            READ[kind](site, wrong)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
