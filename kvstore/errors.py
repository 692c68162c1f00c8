"""What can go wrong, by name; and of every wrong, whether the write surely did not happen.

A client whose write failed has one question: may I send it again, or could it be there already? Every error answers
it by `definite`. True: it was refused before anything changed, here and everywhere. False: nobody can say; ask with
the same request id, which has one effect however often it is asked.

Each error has a *reason* that never changes (it travels in `google.rpc.ErrorInfo`, and scripts rely on it), a sentence
for people, and the values that the sentence speaks of as `details`. The table at the end says which gRPC status each
becomes; it is the only place that decides so, and it knows the statuses by name only: nothing here imports gRPC.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class KvError(Exception):
    """The base of all errors that a user of this package can meet."""

    reason: ClassVar[str]
    sentence: ClassVar[str]  # with the names of its details in braces
    definite: bool = True  # the write surely did not happen

    def __init__(self, message: str | None = None, /, **details: str | int) -> None:
        """The sentence filled with these details, unless a message says it better."""
        self.details = {name: str(value) for name, value in details.items()}
        super().__init__(self.sentence.format_map(self.details) if message is None else message)

    @property
    def status(self) -> str:
        return STATUS[self.reason]


# What the caller asked for makes no sense, whatever the state of the store


class InvalidArgument(KvError):
    """The family of requests that are wrong in themselves: the same request will never work."""


class KeyEmpty(InvalidArgument):
    reason = "KEY_EMPTY"
    sentence = "a key needs at least one byte"


class KeyTooLong(InvalidArgument):
    reason = "KEY_TOO_LONG"
    sentence = "a key of {length} bytes; at most {limit} are possible"


class ValueTooLarge(InvalidArgument):
    reason = "VALUE_TOO_LARGE"
    sentence = "a value of {length} bytes; at most {limit} are possible"


class BatchTooLarge(InvalidArgument):
    reason = "BATCH_TOO_LARGE"
    sentence = "a batch of {size} {unit}; at most {limit} are possible"


class BadTtl(InvalidArgument):
    reason = "BAD_TTL"
    sentence = "a time to live of {ttl_ms} ms; it must be from 1 to {limit}"


class BadRange(InvalidArgument):
    reason = "BAD_RANGE"
    sentence = "the range from {start} to {stop} makes no sense: {why}"


class BadVersion(InvalidArgument):
    reason = "BAD_VERSION"
    sentence = "{text} is no version; one looks like 018bcfe568000003-2"


class BadRequest(InvalidArgument):
    reason = "BAD_REQUEST"
    sentence = "the request makes no sense: {why}"


class MalformedUpdate(InvalidArgument):
    """Bytes that claim to be updates and are not. Nothing of them was applied."""

    reason = "MALFORMED_UPDATE"
    sentence = "these bytes are no updates: {why}"


# It made sense, and was refused


class VersionMismatch(KvError):
    """A compare-and-set found another version than it was told to replace. Either may be `none`."""

    reason = "VERSION_MISMATCH"
    sentence = "{key} has version {found} here, not {expected}"


class InboxFull(KvError):
    reason = "INBOX_FULL"
    sentence = "{limit} {unit} may wait to be written, and do already; try again later or at another replica"


class TooManyWaiting(KvError):
    reason = "TOO_MANY_WAITING"
    sentence = "{limit} {what} are under way already; try again later"


class OutboxFull(KvError):
    """Only writes addressed to the peer that stays away are refused; everything else goes on."""

    reason = "OUTBOX_FULL"
    sentence = "{size} bytes are waiting for {peer}, which does not take them; writes to it stop at {limit}"


class ClockSkew(KvError):
    reason = "CLOCK_SKEW"
    sentence = "the clock of {site} is {ahead_ms} ms ahead; writes stop at {limit} ms"


class PositionTooOld(KvError):
    reason = "POSITION_TOO_OLD"
    sentence = "changes from {position} on are wanted, but they are kept only from {oldest} on"


class SnapshotGone(KvError):
    reason = "SNAPSHOT_GONE"
    sentence = "there is no such snapshot any more; a lease runs for {limit} ms at most, and ends with the replica"


class NotHeldHere(KvError):
    reason = "NOT_HELD_HERE"
    sentence = "{key} is not held at {site} but at {holders}"


class UnknownSite(KvError):
    reason = "UNKNOWN_SITE"
    sentence = "there is no site {site}; there are {sites}"


class NoSessions(KvError):
    reason = "NO_SESSIONS"
    sentence = "{protocol} keeps no causal past, so it cannot give a session its guarantees"


class BadToken(InvalidArgument):
    """Not a token that this cluster sealed: from elsewhere, cut short, changed, or too long."""

    reason = "BAD_TOKEN"
    sentence = "this is no token of a session here: {why}"


class PastMissing(KvError):
    """The session has seen what is not here yet, and it did not come in time. Nothing was done."""

    reason = "PAST_MISSING"
    sentence = (
        "{site} misses message {seq} of {origin}, which the session has seen; it did not come within {waited_ms} ms"
    )


class TooStale(KvError):
    """What was asked for must be fresher than this replica can be sure to be. Nothing was done."""

    reason = "TOO_STALE"
    sentence = "{site} has not heard from {silent} for {age_ms} ms; at most {bound_ms} were allowed"


class UnseenVersion(KvError):
    """A write is to replace a version that has not come to this replica yet."""

    reason = "UNSEEN_VERSION"
    sentence = "version {version} of {key} has not come to {site} yet; write in the session that has seen it"


class TooManySiblings(KvError):
    reason = "TOO_MANY_SIBLINGS"
    sentence = "{key} has {count} values that nobody has replaced; at most {limit} are possible. Read them, then write"


class KeysApart(KvError):
    """Keys that must be looked at together, at one moment, are held nowhere together."""

    reason = "KEYS_APART"
    sentence = "no site that can be reached holds all of these keys: {holders}"


class AddressTaken(KvError):
    reason = "ADDRESS_TAKEN"
    sentence = "{address} cannot be used for {what}: {why}"


class Stopping(KvError):
    reason = "STOPPING"
    sentence = "{site} is stopping and takes no more requests"


# Between replicas


class ClusterMismatch(KvError):
    """Two replicas do not mean the same cluster: its id, a site, the protocol, the placement or the wire format."""

    reason = "CLUSTER_MISMATCH"
    sentence = "the {what} is {here} here and {there} there"


class Amnesia(KvError):
    """Somebody has more from a replica than it remembers to have sent: it lost what it once said (SAFETY 3)."""

    reason = "AMNESIA"
    sentence = "{peer} knows of {what} {there} of {site}, which remembers only {here}"


class Restored(KvError):
    """A replica that came back from a backup writes nothing before its peers have told it that it forgot nothing."""

    reason = "RESTORED"
    sentence = "{site} was restored from a backup and has not heard yet from {peers} whether anything is lost"


class LinkGap(KvError):
    reason = "LINK_GAP"
    sentence = "message {found} of the link from {peer} came where {expected} was due"


# Nobody can say


class Unavailable(KvError):
    reason = "UNAVAILABLE"
    sentence = "{site} cannot be reached: {why}"
    definite = False


class DeadlineExceeded(KvError):
    reason = "DEADLINE_EXCEEDED"
    sentence = "no answer within {timeout_ms} ms; {waiting_for}"
    definite = False


class Internal(KvError):
    """A mistake of ours. Also what a client makes of a reason that is newer than itself."""

    reason = "INTERNAL"
    sentence = "something went wrong that should not: {why}"
    definite = False


# The disk and the files on it


class StorageFailed(KvError):
    """A write or a sync failed. What is on disk is the only honest state now, so the process has to end."""

    reason = "STORAGE_FAILED"
    sentence = "the storage in {path} failed: {why}"
    definite = False


class CorruptRecord(KvError):
    reason = "CORRUPT_RECORD"
    sentence = "the record of {key} in table {table} is corrupt: {why}"


class ForeignData(KvError):
    """A data directory of something else: another program, a newer format, another site or cluster."""

    reason = "FOREIGN_DATA"
    sentence = "{path} is not ours to open: {why}"


class ConfigError(KvError):
    """What is wrong with a cluster file. `key` is empty when it is no TOML at all; `why` then has the line."""

    reason = "CONFIG_ERROR"
    sentence = "{file}: {key}: {why}"


# The one translation. A status tells a client what to do: INVALID_ARGUMENT and FAILED_PRECONDITION, ask for something
# else; RESOURCE_EXHAUSTED, later; UNAVAILABLE, elsewhere; OUT_OF_RANGE, from another place.
ERRORS: Mapping[type[KvError], str] = {
    KeyEmpty: "INVALID_ARGUMENT",
    KeyTooLong: "INVALID_ARGUMENT",
    ValueTooLarge: "INVALID_ARGUMENT",
    BatchTooLarge: "INVALID_ARGUMENT",
    BadTtl: "INVALID_ARGUMENT",
    BadRange: "INVALID_ARGUMENT",
    BadVersion: "INVALID_ARGUMENT",
    BadRequest: "INVALID_ARGUMENT",
    MalformedUpdate: "INVALID_ARGUMENT",
    VersionMismatch: "FAILED_PRECONDITION",
    InboxFull: "RESOURCE_EXHAUSTED",
    TooManyWaiting: "RESOURCE_EXHAUSTED",
    OutboxFull: "UNAVAILABLE",
    ClockSkew: "UNAVAILABLE",
    PositionTooOld: "OUT_OF_RANGE",
    SnapshotGone: "NOT_FOUND",
    NotHeldHere: "FAILED_PRECONDITION",
    UnknownSite: "NOT_FOUND",
    NoSessions: "FAILED_PRECONDITION",
    BadToken: "INVALID_ARGUMENT",
    PastMissing: "UNAVAILABLE",
    TooStale: "UNAVAILABLE",
    UnseenVersion: "FAILED_PRECONDITION",
    TooManySiblings: "FAILED_PRECONDITION",
    KeysApart: "FAILED_PRECONDITION",
    AddressTaken: "UNAVAILABLE",
    Stopping: "UNAVAILABLE",
    ClusterMismatch: "FAILED_PRECONDITION",
    Amnesia: "FAILED_PRECONDITION",
    Restored: "UNAVAILABLE",
    LinkGap: "FAILED_PRECONDITION",
    Unavailable: "UNAVAILABLE",
    DeadlineExceeded: "DEADLINE_EXCEEDED",
    Internal: "INTERNAL",
    StorageFailed: "UNAVAILABLE",
    CorruptRecord: "DATA_LOSS",
    ForeignData: "FAILED_PRECONDITION",
    ConfigError: "FAILED_PRECONDITION",
}
STATUS: Mapping[str, str] = {error.reason: status for error, status in ERRORS.items()}
_BY_REASON = {error.reason: error for error in ERRORS}


def error_of(reason: str, message: str, details: Mapping[str, str], *, definite: bool) -> KvError:
    """The error that another process raised, from what travelled. Whether it is definite, only the other can know."""
    known = _BY_REASON.get(reason)
    error = known(message, **details) if known else Internal(message, **{**details, "unknown_reason": reason})
    error.definite = definite
    return error
