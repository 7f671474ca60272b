"""Headers in which a gateway describes one attempt at this replica."""

from math import inf
from typing import NamedTuple

from penstock_core.domain.verdict import Reason
from penstock_core.routing.attempts import OUT_OF_SERVICE
from penstock_routing.request.request_head import Head
from penstock_runtime import gateway_headers as names

_MAX_HOPS, _ATTEMPT = names.MAX_HOPS.encode(), names.ATTEMPT.encode()
_TIMEOUT_MS, _LEFT_MS = names.TIMEOUT_MS.encode(), names.TIMEOUT_LEFT_MS.encode()
_DESTINATION, _APPLICATION = names.DESTINATION.encode(), names.APPLICATION.encode()

_MOST_DIGITS = 9
"""Most digits of a valid number."""


class AttemptHead(NamedTuple):
    """The headers of one attempt.

    picked: whether a picker has chosen the endpoints and resolved the tier.
    hop: number of the attempt, 1 at the first endpoint.
    first: whether the gateway says that it is 1.
    backup: whether all endpoints of the order were tried, so that this one serves best effort as backup.
    final: whether this is the last endpoint. False if the gateway does not pass on the list of endpoints.
    application: application whose key the gateway has checked; None if it has checked none.
    spent_s: duration of earlier attempts.
    """

    picked: bool
    hop: int
    first: bool
    backup: bool
    final: bool
    application: str | None
    spent_s: float

    def tries_next(self, reason: Reason) -> bool:
        """Return whether the gateway should try the next endpoint after a rejection for this reason.

        As in a router, a rejection by a backup is final, unless the backup is out of service.
        """
        return not self.final and (not self.backup or reason in OUT_OF_SERVICE)

    @property
    def replays(self) -> bool:
        """Whether the gateway should try the next endpoint if the engine was lost before its answer began.

        Once, as in a router, because the request may be the cause: so only at the first attempt, and not
        behind a gateway that does not number its attempts.
        """
        return self.first and not self.final


def attempt_head(head: Head, default_hops: int) -> AttemptHead:
    """Read the headers of an attempt. default_hops: endpoints after the first, if no picker has set them."""
    number, max_hops = _number(head, _ATTEMPT), _number(head, _MAX_HOPS)
    hop = number or 1
    application = head.get(_APPLICATION)
    return AttemptHead(
        picked=max_hops is not None,
        hop=hop,
        first=number == 1,
        backup=hop > (default_hops if max_hops is None else max_hops),
        final=hop >= _endpoints(head),
        application=None if application is None else application.decode("latin-1"),
        spent_s=_spent_s(head),
    )


def _endpoints(head: Head) -> float:
    """Return the length of the list of endpoints; infinity if it is unknown."""
    endpoints = head.get(_DESTINATION)
    return inf if endpoints is None else endpoints.count(b",") + 1


def _spent_s(head: Head) -> float:
    timeout_ms, left_ms = _number(head, _TIMEOUT_MS), _number(head, _LEFT_MS)
    return 0.0 if timeout_ms is None or left_ms is None else max(timeout_ms - left_ms, 0) / 1000


def _number(head: Head, name: bytes) -> int | None:
    """Return the number in a header; None if it is missing or invalid."""
    given = head.get(name, b"")
    return int(given) if given.isdigit() and len(given) <= _MOST_DIGITS else None
