"""Whatever comes from outside may be wrong: then a named error comes out, and the site is as it was.

Forged values first, each with the error it deserves; then bytes that are cut, extended, mutated or random. A mutated
stamp may be one that somebody could have sent, and is taken like one. Nothing but a `CausalError` is ever raised.
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
CONTROLS = PROTOCOLS.keys() - CAUSAL
LOGS = ("optimal", "pruning")
EVERYONE = (1 << N) - 1
NOT_SENDER = EVERYONE ^ 1 << SENDER


@contextmanager
def refused(error: type[CausalError], site: Multicast[Any]) -> Iterator[None]:
    """This error comes out, and the site is as it was."""
    before = dump(site)
    with pytest.raises(error):
        yield
    assert dump(site) == before


def here(protocol: str) -> Multicast[Any]:
    site = make_site(protocol, HERE, N)
    for _ in range(CLOCK):
        site.send(EVERYONE ^ 1 << HERE)
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
    columns = [Columns.empty(N).replaced(1 << other, {dot.site: dot.seq})]
    return {"false-causality": meant, "matrix": [matrix], "vector": [Clock(newest)]}.get(protocol, columns)


def messages(protocol: str, dot: Dot) -> list[Message]:
    """Messages of SENDER to HERE and THIRD that name this message. Their own name is (SENDER, 5)."""
    past, own = contexts(protocol, dot), {dot.site: dot.seq}
    stamps: list[Any] = past
    if protocol in LOGS:
        stamps = [LogStamp(*log, ()) for log in past] + [LogStamp(past[0].newest, {}, [dot])] * (dot.site != HERE)
    elif protocol == "false-causality":
        stamps = [MeantStamp(meant, 1) for meant in past]
    elif protocol == "extra-message":
        stamps = [SparseStamp(past[0], {}, 1), SparseStamp(Columns.empty(N), own, 1), ColumnStamp(own)]
    return [forged(protocol, stamp) for stamp in stamps]


def forged(protocol: str, stamp: Any) -> Message:
    is_extra = isinstance(stamp, ColumnStamp)
    to = NOT_SENDER if protocol == "vector" else 1 << HERE if is_extra else 1 << HERE | 1 << THIRD
    return Message(Dot(SENDER, 5), to, stamp, b"", is_extra)


NAMED = {
    "itself": (Dot(SENDER, 5), Malformed),
    "a later one of its sender": (Dot(SENDER, 6), Malformed),
    "one that we never sent": (Dot(HERE, CLOCK + 1), FromTheFuture),
    "one that we shall never send": (Dot(HERE, 2**64 - 1), FromTheFuture),
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
    for future in contexts(protocol, Dot(HERE, CLOCK + 1)):
        for judge in (site.first_missing, site.adopt):
            with refused(FromTheFuture, site):
                judge(decode_token(site, encode_token(site, future)))
    for past in contexts(protocol, Dot(HERE, CLOCK)):
        assert site.first_missing(past) is None
    sender.send(NOT_SENDER)
    with refused(errors.NotDue, site):
        site.adopt(decode_token(site, encode_token(sender, sender.token())))


@pytest.mark.parametrize("protocol", sorted(CONTROLS))
@pytest.mark.parametrize(("question", "operands"), [("token", 0), ("merge", 2), ("first_missing", 1), ("adopt", 1)])
def test_the_controls_have_no_tokens(protocol: str, question: str, operands: int) -> None:
    site = here(protocol)
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
    with refused(Malformed, site):
        site.receive(message._replace(to=-1))


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


BAD_SITES = [(p, *at, {}) for p in PROTOCOLS for at in ((0, 0), (0, -1), (-1, 3), (3, 3), (0, SITES_MAX + 1))]
BAD_OPTIONS = [("extra-message", 0, N, {"threshold": k}) for k in (-1, 0, N, N * N + 1, 1 << 70, "9", 7.5)]
UNKNOWN = [("optimal", 0, N, {"threshold": 9}), ("extra-message", 0, N, {"k": 9}), ("no-such", 0, N, {})]


@pytest.mark.parametrize(("protocol", "site", "sites", "options"), [*BAD_SITES, *BAD_OPTIONS, *UNKNOWN])
def test_no_site_is_made_of_this(protocol: str, site: int, sites: int, options: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        make_site(protocol, site, sites, **options)


class Traffic:
    """Valid bytes: the sites of a small network in the middle of a run, and the copies under way to them."""

    def __init__(self, protocol: str) -> None:
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
        self.dumps = [dump(site) for site in sites]
        tokens = [(site.site, encode_token(site, site.token())) for site in sites if site.is_causal]
        self.samples = {"message": flying, "token": tokens, "dump": list(enumerate(self.dumps))}


traffic = cache(Traffic)
READ: dict[str, Any] = {"message": decode, "token": decode_token, "dump": lambda _, data: load(data)}
SUBJECTS = [(p, kind) for p, made in PROTOCOLS.items() for kind in READ if made.is_causal or kind != "token"]


def write(at: Multicast[Any], kind: str, value: Any) -> bytes:
    if kind == "message":
        return encode(at, Outgoing(*value))[at.site]
    return encode_token(at, value) if kind == "token" else dump(value)


def take(protocol: str, kind: str, at: int, data: bytes) -> Multicast[Any] | None:
    """The site that took these bytes; None if they were refused, which must leave no trace."""
    before = traffic(protocol).dumps[at]
    site = load(before)
    try:
        value = READ[kind](site, data)
    except CausalError:
        assert dump(site) == before
        return None
    again = write(site, kind, value)
    assert write(site, kind, READ[kind](site, again)) == again, "what was read once is read again"
    if kind == "dump":
        return value  # type: ignore[no-any-return]
    try:
        (site.receive if kind == "message" else site.adopt)(value)
    except CausalError:
        assert dump(site) == before
        return None
    return site


@pytest.mark.parametrize(("protocol", "kind"), SUBJECTS)
def test_what_is_cut_short_or_too_long_is_malformed(protocol: str, kind: str) -> None:
    for at, data in traffic(protocol).samples[kind]:
        site = load(traffic(protocol).dumps[at])
        for wrong in [*(data[:end] for end in range(len(data))), data + b"\0", data + b"\1", data + data]:
            with pytest.raises(Malformed):
                READ[kind](site, wrong)
        assert dump(site) == traffic(protocol).dumps[at]


def mutated(protocol: str, kind: str, index: int, edits: list[tuple[int, int]]) -> tuple[int, bytes]:
    samples = traffic(protocol).samples[kind]
    at, data = samples[index % len(samples)]
    changed = bytearray(data)
    for place, value in edits:
        changed[place % len(data)] = value
    return at, bytes(changed)


INDEX, PLACE, BYTE = st.integers(0, 60), st.integers(0, 99), st.integers(0, 255) | st.integers(0, 7)
EDITS = st.lists(st.tuples(PLACE, BYTE), min_size=1, max_size=4)
many = settings(derandomize=True, max_examples=300, database=None)


@pytest.mark.parametrize(("protocol", "kind"), SUBJECTS)
@many
@given(index=INDEX, edits=EDITS, keep=st.integers(0, 12), noise=st.binary(max_size=100))
def test_no_mutation_and_no_noise_does_any_harm(
    protocol: str, kind: str, index: int, edits: list[tuple[int, int]], keep: int, noise: bytes
) -> None:
    take(protocol, kind, *mutated(protocol, kind, index, edits))
    at, data = mutated(protocol, kind, index, [])
    take(protocol, kind, at, data[:keep] + noise)  # behind a few bytes that make sense, to get past the door


@pytest.mark.parametrize(("protocol", "kind"), [subject for subject in SUBJECTS if subject[1] != "dump"])
@many
@given(index=INDEX, edits=EDITS)
def test_who_believed_a_lie_goes_on(protocol: str, kind: str, index: int, edits: list[tuple[int, int]]) -> None:
    """A lie about others looks like news. Whoever took it can still receive, send, stop and start again."""
    site = take(protocol, kind, *mutated(protocol, kind, index, edits))
    if site is not None:
        for copy in [copy for to, copy in traffic(protocol).samples["message"] if to == site.site]:
            site.receive(decode(site, copy))
        assert all(encode(site, made) for made in site.send(EVERYONE ^ 1 << site.site))
        load(dump(site))


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


HEADS = [(0, FORMAT + 1, Foreign), (1, 200, Foreign), (1, 1, BadOption), (3, 0, BadOption), (5, N, BadOption)]


@pytest.mark.parametrize(("place", "value", "error"), [*HEADS, (7, 17, Malformed)])
def test_a_dump_with_a_wrong_head(place: int, value: int, error: type[CausalError]) -> None:
    data = bytearray(dump(here("extra-message")))
    data[place] = value
    with pytest.raises(error):
        load(bytes(data))


HUGE = (b"\x08" + b"\xff" * 8, b"\x04" + b"\xff" * 4, b"\x02\xff\xff")  # as numbers that say how many follow


@pytest.mark.parametrize("sites", [N, SITES_MAX])
@pytest.mark.parametrize(("protocol", "kind"), SUBJECTS)
def test_a_claim_of_many_entries_takes_no_memory(protocol: str, kind: str, sites: int) -> None:
    site, sender, rng = make_site(protocol, HERE, sites), make_site(protocol, SENDER, sites), random.Random(sites)
    (made,) = sender.send((1 << sites) - 1 ^ 1 << SENDER if protocol == "vector" else 1 << HERE)
    value = {"message": made.copy(HERE), "token": site.context, "dump": site}[kind]
    data = write(site, kind, value)[:2500]
    places = [*range(min(len(data), 40)), *range(40, len(data), 61), len(data)]
    inputs = [data[:place] + huge + data[place:] for place in places for huge in HUGE]
    inputs += [data[: rng.randrange(9)] + rng.randbytes(100) for _ in range(100)]
    tracemalloc.start()
    for wrong in inputs:
        tracemalloc.reset_peak()
        start, _ = tracemalloc.get_traced_memory()
        with pytest.raises(CausalError):
            READ[kind](site, wrong)
        assert tracemalloc.get_traced_memory()[1] - start < 1 << 20
    tracemalloc.stop()
