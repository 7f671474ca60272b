"""Reads a request's headers. Errors name the header."""

import re
from collections.abc import Iterable, Mapping
from math import isfinite
from secrets import token_hex

from penstock_core.domain.slo import Targets
from penstock_runtime.http_request import Header
from penstock_runtime.openai_errors import ApiError

from penstock_routing.request.generation_request import NO_TARGETS

REQUEST_ID = "x-request-id"
TIER = "x-penstock-tier"
TTFT_TARGETS = (b"x-slo-ttft-ms", b"x-llm-d-slo-ttft-ms")
TPOT_TARGETS = (b"x-slo-tpot-ms", b"x-llm-d-slo-tpot-ms")
OBJECTIVES = (b"x-gateway-inference-objective", b"x-llm-d-inference-objective")
"""Headers in which clients of the Gateway API Inference Extension may name a tier."""

SESSION = b"x-session-id"
"""Header with the session of which the request is a turn."""

LONGEST_SESSION = 512

TARGETS = frozenset(TTFT_TARGETS + TPOT_TARGETS)

_REQUEST_ID, _TIER = REQUEST_ID.encode(), TIER.encode()
_VALID_ID = re.compile(rb"[\x21-\x7e]{1,128}")

Head = Mapping[bytes, bytes]


def head_of(headers: Iterable[Header]) -> Head:
    """Return the headers by lower-case name. Of repeated headers the last one counts."""
    return dict(headers)


def request_id(head: Head) -> str:
    """Return the client's request id if it is short and printable, else a new one."""
    given = head.get(_REQUEST_ID)
    if given is not None and _VALID_ID.fullmatch(given):
        return given.decode("ascii")
    return token_hex(16)


def api_key(head: Head) -> str | None:
    """Return the bearer token."""
    scheme, _, key = head.get(b"authorization", b"").decode("latin-1").partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


def tier_name(head: Head) -> str | None:
    """Return the tier that the header names."""
    given = head.get(_TIER)
    return None if given is None else given.decode("latin-1").strip()


def session(head: Head) -> bytes | None:
    """Return the session that a header names, cut at its bound. It is only a hint."""
    return head.get(SESSION, b"").strip()[:LONGEST_SESSION] or None


def objective(head: Head) -> str | None:
    """Return the inference objective that a header names. It need not be a tier."""
    return next((head[name].decode("latin-1").strip() for name in OBJECTIVES if name in head), None)


def targets(head: Head) -> Targets:
    """Return the request's own TTFT and TPOT targets. Raises ApiError (400) for an invalid number."""
    if TARGETS.isdisjoint(head):
        return NO_TARGETS
    return Targets(ttft_s=_seconds(head, TTFT_TARGETS), tpot_s=_seconds(head, TPOT_TARGETS))


def targets_header(head: Head) -> str | None:
    """Return the name of the first header that sets a target."""
    return next((name.decode() for name in TTFT_TARGETS + TPOT_TARGETS if name in head), None)


def reject_encoding(head: Head) -> None:
    """Raise ApiError (415) for a compressed body, which neither routers nor engines decompress."""
    given = head.get(b"content-encoding")
    if given is None:
        return
    encoding = given.decode("latin-1").strip().lower()
    if encoding not in ("", "identity"):
        raise ApiError(
            415,
            f"content-encoding '{encoding}' is not supported; send the body as it is",
            param="content-encoding",
        )


def content_length(head: Head) -> int | None:
    """Return the body's length if the client has sent it; a lower bound if it has too many digits."""
    given = head.get(b"content-length", b"")
    return int(given[:18]) if given.isdigit() else None


def _seconds(head: Head, names: tuple[bytes, bytes]) -> float | None:
    found = [_positive_ms(name.decode(), head[name]) / 1000 for name in names if name in head]
    return found[0] if found else None


def _positive_ms(name: str, given: bytes) -> float:
    text = given.decode("latin-1").strip()
    try:
        value = float(text) if text.isascii() and "_" not in text else 0.0
    except ValueError:
        value = 0.0
    if not isfinite(value) or value / 1000 <= 0:
        raise ApiError(
            400,
            f"{name}: '{text[:64]}' is not a positive number of milliseconds",
            param=name,
            code="invalid_value",
        )
    return value
