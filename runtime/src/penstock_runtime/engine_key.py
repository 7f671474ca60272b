"""The API key between a sidecar and its engine: with it, the engine serves only the sidecar's requests.

Processes get it in an environment variable, which process lists do not show. Requests carry it as a bearer
token, as vLLM expects it.
"""

import hmac
from collections.abc import Mapping

VARIABLE = "PENSTOCK_ENGINE_API_KEY"
"""Variable of the sidecar, and of programs that start or measure an engine. Empty: no key."""

ENDS_WITH_NEWLINE = "\r\n"
"""Suffix of files with keys."""


def engine_key(environment: Mapping[str, str]) -> str:
    """Return the key in an environment; empty without one."""
    return environment.get(VARIABLE, "").strip(ENDS_WITH_NEWLINE)


def bearer(key: str) -> dict[str, str]:
    """Return the headers with a key; none for an empty key."""
    return {"authorization": f"Bearer {key}"} if key else {}


def carries(headers: Mapping[bytes, bytes], key: str) -> bool:
    """Return whether a request's headers carry this key. Compares in constant time."""
    return hmac.compare_digest(headers.get(b"authorization", b""), f"Bearer {key}".encode())
