"""Tickets: signed admission decisions of the sidecar, which requests carry to the engine.

Where tokens do not pass the sidecar, a router sends the request to the engine itself. So that admission
cannot be bypassed, the engine reads SLO fields from a ticket only: the fields, the time of issue and the
number of answers, with an HMAC-SHA-256 under a key that the sidecar and its engine share. A request without a
valid ticket is best effort.

    penstock1.<base64url of the JSON payload>.<base64url of the HMAC over all before it>

The fields are only inside the ticket, so a client cannot alter them. The ticket names the request's id, which
the sidecar never gives twice. The engine accepts each id once for each answer and within `VALID_S`, so it
remembers ids only that long. Both read the clock of the machine that they share.
"""

import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from penstock_core.domain.engine_fields import Scalar

TICKET = "penstock_ticket"
"""Field of `vllm_xargs` that carries a request's ticket."""

VALID_S = 10.0
"""Seconds for which a ticket is valid. Connecting takes 2 s at most; the rest is for an engine's API server
that is busy with long prompts."""

MOST_REMEMBERED = 1 << 16
"""Most ids remembered at once: enough for 6,500 requests per second. Tickets beyond it are refused."""

LONGEST_TICKET = 1 << 13
"""Most characters of a ticket. Its bounded fields take 1,500."""

_VERSION = "penstock1"


class TicketFault(StrEnum):
    """Why a ticket is not accepted."""

    MISSING = "missing"  # the request has none
    FORGED = "forged"  # not made with this key, or altered
    EXPIRED = "expired"
    USED = "used"  # all of its answers have been requested
    FULL = "full"  # too many tickets are remembered


@dataclass(frozen=True, slots=True)
class EngineTicket:
    """A sidecar's decision. issued_s: time of issue on the machine's clock. uses: number of answers."""

    fields: Mapping[str, Scalar]
    issued_s: float
    uses: int = 1


class SloFields(NamedTuple):
    """A request's SLO fields.

    from_s: time from which their durations count. refused: why the request's ticket was refused.
    """

    fields: Mapping[str, Scalar]
    from_s: float
    refused: TicketFault | None = None


def sealed(ticket: EngineTicket, key: bytes) -> str:
    """Return the ticket as the request carries it."""
    payload = json.dumps([ticket.issued_s, ticket.uses, ticket.fields], separators=(",", ":"))
    signed = f"{_VERSION}.{_encoded(payload.encode())}"
    return f"{signed}.{_encoded(_hmac(signed, key))}"


def opened(text: object, key: bytes) -> EngineTicket | None:
    """Return the ticket if it was sealed with this key; else None. An empty key opens no ticket."""
    if not key or not isinstance(text, str) or len(text) > LONGEST_TICKET or not text.isascii():
        return None
    signed, _, code = text.rpartition(".")
    if not hmac.compare_digest(code, _encoded(_hmac(signed, key))):
        return None
    issued_s, uses, fields = json.loads(_decoded(signed.rpartition(".")[2]))
    return EngineTicket(fields, issued_s, uses)


class TicketCheck:
    """An engine's check, which accepts each ticket as often as its request has answers.

    The engine checks a request again after an error of its own, so the same holder is always accepted.
    """

    def __init__(self) -> None:
        self._key = b""
        self._holders: OrderedDict[str, tuple[float, set[str]]] = OrderedDict()  # with the end of memory

    def use(self, key: bytes) -> None:
        """Accept tickets of this key from now on. A restarted sidecar has a new key; b"" means no key."""
        if key != self._key:
            self._key = key
            self._holders.clear()

    def __len__(self) -> int:
        return len(self._holders)

    def accept(self, text: object, holder: str, now_s: float) -> EngineTicket | TicketFault:
        """Return the ticket, or why it is refused. holder: the engine's id of the answer that uses it."""
        if text is None:
            return TicketFault.MISSING
        ticket = opened(text, self._key)
        if ticket is None:
            return TicketFault.FORGED
        self._forget(now_s)
        id = str(ticket.fields.get("penstock_id"))
        _, holders = self._holders.get(id, (0.0, set[str]()))
        if holder in holders:
            return ticket
        if not 0 <= now_s - ticket.issued_s <= VALID_S:
            return TicketFault.EXPIRED
        if len(holders) >= ticket.uses:
            return TicketFault.USED
        if not holders and len(self._holders) >= MOST_REMEMBERED:
            return TicketFault.FULL
        if not holders:
            self._holders[id] = now_s + VALID_S, holders
        holders.add(holder)
        return ticket

    def fields(
        self, xargs: Mapping[str, Scalar], key: bytes, holder: str, now_s: float, read_s: float
    ) -> "SloFields":
        """Return the SLO fields of a request's ticket; empty without a valid ticket.

        key: the sidecar's present key. read_s: when the engine has read the request.
        """
        self.use(key)
        ticket = self.accept(xargs.get(TICKET), holder, now_s)
        if isinstance(ticket, TicketFault):
            return SloFields({}, read_s, ticket)
        return SloFields(ticket.fields, ticket.issued_s)

    def _forget(self, now_s: float) -> None:
        """Forget ids whose tickets have expired by now. They were remembered in this order."""
        while self._holders and next(iter(self._holders.values()))[0] < now_s:
            self._holders.popitem(last=False)


def _hmac(signed: str, key: bytes) -> bytes:
    return hmac.digest(key, signed.encode(), "sha256")


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
