"""What can be wrong, by name. Every one of these leaves the site's state as it was."""

from __future__ import annotations


class CausalError(Exception):
    """The base of all errors that a caller of this package can cause."""


class Malformed(CausalError):
    """Bytes that are no stamp, token or dump; or a stamp that contradicts its own message."""


class FromTheFuture(CausalError):
    """A stamp or token names a message of this very site that this site never sent.

    Only one's own dots can be judged like this; one of another site that looks too new may be early, and waits.
    """


class BadDestinations(CausalError):
    """Nobody, the sender itself, an unknown site, or a set that the protocol cannot serve."""


class NotForUs(CausalError):
    """A copy arrived at a site that is none of its destinations, or that sent it."""


class NotDue(CausalError):
    """A token was adopted at a site that has not delivered everything the token names."""


class NoSessions(CausalError):
    """Tokens need a causal protocol; the controls `fifo` and `unordered` have none to give."""


class BadOption(CausalError):
    """An option that the protocol does not know, or a value outside its range."""


class Foreign(CausalError):
    """A token or dump made under another protocol, another number of sites or another format."""
