"""What a session knows, for both clients: its token, and which versions it last saw of its keys.

The token is what the session has seen, sealed by a replica. Every request carries it, and the token of an answer takes
its place; so any replica can tell whether it is fit to answer, and a session keeps its guarantees when it moves. Only
replicas can put two tokens together. That is why a session does one call after another, and why a stream that was
overtaken by another call of its session is opened anew, with the token of that call (streams.py).

A call that failed teaches nothing. It may have been done, if its error is not definite; then the session goes on as if
it were not: what it reads later may include that write or not, and what it writes later may come before it. Who must
know asks the same write again, with the same request id, until it is answered.

The versions are for keys that merge by `siblings`: a write replaces what the session has seen of its key, and stands
beside what it has not.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, TypeVar

from kvstore.errors import DeadlineExceeded, Internal
from kvstore.terms import carry, fill_versions, is_bounded
from kvstore.update import REPLACES_MAX
from kvstore.values import Delete, Entry, Get, Put, Version, Written

if TYPE_CHECKING:
    from kvstore.answers import Item
    from kvstore.calls import Call
    from kvstore.checks import Operation

Result = TypeVar("Result")

KEYS_MAX = 1024  # keys whose versions a session remembers; beyond it: the one seen longest ago is as if never seen


class Memory:
    """Of one session. Only the call whose turn it is may touch it."""

    def __init__(self, token: bytes) -> None:
        self.token = token
        self._versions: OrderedDict[bytes, tuple[Version, ...]] = OrderedDict()

    # What a request gets

    def must_begin(self, request: Any) -> bool:
        """It cannot ask for a first token itself: another call has to, before it."""
        return not self.token and is_bounded(request)

    def fill(self, call: Call[Any]) -> None:
        for operation, place in call.open:
            fill_versions(place.replaces, self.versions(operation.key))
        carry(call.request, self.token)

    def versions(self, key: bytes) -> tuple[Version, ...]:
        """What the session last saw of a key."""
        return self._versions.get(key, ())

    # What an answer teaches

    def learn(self, call: Call[Result], answer: Any) -> Result:
        """The result of a call that was answered."""
        result = call.read(answer)
        self.take_token(answer)
        for operation, item in zip(call.operations, call.items(result), strict=True):
            self._see(operation, item, is_open=bool(call.open))
        return result

    def take_token(self, answer: Any) -> None:
        if not answer.session:
            site = answer.site or "a replica"
            raise Internal(why=f"{site} answered a session without a token, so nobody knows what it has seen")
        self.token = answer.session

    def see(self, entry: Entry) -> None:
        self._remember(entry.key, entry.versions)

    def _see(self, operation: Operation, item: Item, *, is_open: bool) -> None:
        if isinstance(item, Entry):
            self.see(item)
        elif isinstance(item, Written) and not isinstance(operation, Get):
            self._wrote(operation, item.version, is_open=is_open)
        elif item is None:
            self._versions.pop(operation.key, None)

    def _wrote(self, operation: Put | Delete, version: Version, *, is_open: bool) -> None:
        """It has seen its own write, and what that did not replace."""
        replaces, is_delete = operation.replaces, isinstance(operation, Delete)
        known = self.versions(operation.key)
        if replaces:
            beside = tuple(one for one in known if one not in replaces)
        elif is_delete or operation.expect is not None or (replaces is None and is_open):
            beside = ()
        else:
            beside = known
        self._remember(operation.key, beside if is_delete else (version, *beside))

    def _remember(self, key: bytes, versions: tuple[Version, ...]) -> None:
        self._versions.pop(key, None)
        if not versions:
            return
        self._versions[key] = versions[:REPLACES_MAX]  # a write that names more is refused
        if len(self._versions) > KEYS_MAX:
            self._versions.popitem(last=False)


def no_turn(timeout_s: float) -> DeadlineExceeded:
    """The calls before it took all the time that a call of a session had."""
    late = DeadlineExceeded(timeout_ms=round(timeout_s * 1000), waiting_for="another call of the session was under way")
    late.definite = True
    return late
