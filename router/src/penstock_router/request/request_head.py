"""What a request's headers ask for. Each function reads one thing, and names the header it finds wrong."""

from collections.abc import Mapping
from math import isfinite
from secrets import token_hex

from penstock_core.domain.slo import Targets
from penstock_runtime.asgi import Scope
from penstock_runtime.openai_errors import ApiError

REQUEST_ID = "x-request-id"
TIER = "x-penstock-tier"
TTFT_TARGETS = ("x-slo-ttft-ms", "x-llm-d-slo-ttft-ms")
TPOT_TARGETS = ("x-slo-tpot-ms", "x-llm-d-slo-tpot-ms")

LONGEST_REQUEST_ID = 128

Head = Mapping[bytes, bytes]


def head_of(scope: Scope) -> Head:
    """Headers by lower-case name; of repeated ones, the last."""
    return dict(scope["headers"])


def request_id(head: Head) -> str:
    """The client's own, where it is short and printable; else a new one."""
    given = head.get(REQUEST_ID.encode(), b"")
    if 0 < len(given) <= LONGEST_REQUEST_ID and all(0x21 <= byte <= 0x7E for byte in given):
        return given.decode("ascii")
    return token_hex(16)


def api_key(head: Head) -> str | None:
    """The bearer token."""
    scheme, _, key = head.get(b"authorization", b"").decode("latin-1").partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


def tier_name(head: Head) -> str | None:
    """The tier that is asked for by header."""
    given = head.get(TIER.encode())
    return None if given is None else given.decode("latin-1").strip()


def targets(head: Head) -> Targets:
    """The request's own TTFT and TPOT targets. Raises ApiError (400) for what is no positive number."""
    return Targets(ttft_s=_seconds(head, TTFT_TARGETS), tpot_s=_seconds(head, TPOT_TARGETS))


def targets_header(head: Head) -> str | None:
    """The first header with a target of the request's own."""
    return next((name for name in TTFT_TARGETS + TPOT_TARGETS if name.encode() in head), None)


def reject_encoding(head: Head) -> None:
    """Raises ApiError (415) for a compressed body: neither we nor engines unpack one."""
    encoding = head.get(b"content-encoding", b"identity").decode("latin-1").strip().lower()
    if encoding not in ("", "identity"):
        raise ApiError(
            415,
            f"content-encoding '{encoding}' is not supported; send the body as it is",
            param="content-encoding",
        )


def content_length(head: Head) -> int | None:
    """Bytes of the body, where the client said it beforehand; at least that many, where it is absurd."""
    given = head.get(b"content-length", b"")
    return int(given[:18]) if given.isdigit() else None


def _seconds(head: Head, names: tuple[str, str]) -> float | None:
    found = [_positive_ms(name, head[name.encode()]) / 1000 for name in names if name.encode() in head]
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
