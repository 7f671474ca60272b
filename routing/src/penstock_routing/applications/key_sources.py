"""Sources of API keys: files, or Secrets in a cluster.

The content of a source replaces all keys known before; an empty source revokes them all. If a source cannot
be read, the known keys stay valid.

Secrets are read by name, which requires only the right to `get` these Secrets. Mounted Secrets are too slow
to revoke a key, because the kubelet updates them a minute or more after the change.
"""

import asyncio
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import httpx2
import orjson

from penstock_routing.connections.api_server import Access, AccessError

ENTRY = "keys"
"""The entry of a Secret that holds the keys."""

ANSWER_S = 2.0
"""Longest wait for a Secret."""

NOT_FOUND = 404


class Unreadable(Exception):
    """Keys that cannot be read now. The message is the reason, without any content."""


class KeyStore(Protocol):
    """A source of applications' keys. every_s: seconds between reads."""

    every_s: float

    async def read(self) -> Mapping[str, str | Unreadable]:
        """Return the keys of each application as text, one key a line."""


class KeyFiles:
    """Keys in files, by application."""

    every_s = 1.0

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths = dict(paths)

    async def read(self) -> Mapping[str, str | Unreadable]:
        """Read all files in a thread."""
        return await asyncio.to_thread(lambda: {name: _text(path) for name, path in self._paths.items()})


class SecretName(NamedTuple):
    """A Secret in a cluster."""

    namespace: str
    name: str


class KeySecrets:
    """Keys in Secrets, by application. One connection is used until it fails; a new one reads credentials."""

    every_s = 2.0

    def __init__(self, secrets: Mapping[str, SecretName], access: Access) -> None:
        self._secrets, self._access = dict(secrets), access
        self._http: httpx2.AsyncClient | None = None

    async def read(self) -> Mapping[str, str | Unreadable]:
        """Read all Secrets in turn. After a request without an answer, no other is sent."""
        found: dict[str, str | Unreadable] = {}
        try:
            for application, secret in self._secrets.items():
                found[application] = await self._secret(secret)
        except (httpx2.HTTPError, httpx2.InvalidURL, AccessError) as error:
            await self.close()
            unavailable = Unreadable(f"the API server does not answer: {type(error).__name__}: {error}")
            return {application: found.get(application, unavailable) for application in self._secrets}
        return found

    async def close(self) -> None:
        """Close the connection."""
        if self._http is not None:
            http, self._http = self._http, None
            await http.aclose()

    async def _secret(self, secret: SecretName) -> str | Unreadable:
        if self._http is None:
            self._http = await asyncio.to_thread(self._access.client)
        path = f"/api/v1/namespaces/{secret.namespace}/secrets/{secret.name}"
        answer = await self._http.get(path, timeout=ANSWER_S)
        if answer.status_code == NOT_FOUND:
            return ""
        if answer.status_code != httpx2.codes.OK:
            return Unreadable(f"Secret {secret.namespace}/{secret.name}: HTTP {answer.status_code}")
        try:
            encoded = (orjson.loads(answer.content).get("data") or {}).get(ENTRY, "")
            return b64decode(encoded, validate=True).decode()
        except (ValueError, TypeError, AttributeError):
            return Unreadable(
                f"Secret {secret.namespace}/{secret.name}: its entry '{ENTRY}' is not UTF-8 text"
            )


def _text(path: Path) -> str | Unreadable:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        return Unreadable(f"{path}: {error.strerror}")
    except UnicodeDecodeError:
        return Unreadable(f"{path}: not UTF-8 text")
