"""The API key between a sidecar and its engine: with it, only the sidecar's requests are served.

It comes by the environment, which no process list shows, and goes as vLLM reads it, as a bearer token.
"""

import hmac
from collections.abc import Mapping

VARIABLE = "PENSTOCK_ENGINE_API_KEY"
"""Of the sidecar, and of what starts or measures an engine. Empty: there is no key."""

ENDS_WITH_NEWLINE = "\r\n"
"""What files of keys end with."""


def engine_key(environment: Mapping[str, str]) -> str:
    """Return the key in an environment; empty without one."""
    return environment.get(VARIABLE, "").strip(ENDS_WITH_NEWLINE)


def bearer(key: str) -> dict[str, str]:
    """Return the headers that carry a key; none for an empty one."""
    return {"authorization": f"Bearer {key}"} if key else {}


def carries(headers: Mapping[bytes, bytes], key: str) -> bool:
    """Return whether a request's headers carry this key. Takes as long for a wrong one as for a right one."""
    return hmac.compare_digest(headers.get(b"authorization", b""), f"Bearer {key}".encode())
