"""Clients of Redis, whose certificate chain is verified as all others are (`certificate_chains`)."""

import ssl
from typing import Any

from redis.asyncio import Redis


def redis_client(url: str, **options: Any) -> Redis:
    """Return a client of `redis://` or, under TLS, `rediss://`. options: of `Redis.from_url`."""
    under_tls = url.startswith("rediss:")
    verification: dict[str, Any] = {"ssl_exclude_verify_flags": [ssl.VERIFY_X509_STRICT]} if under_tls else {}
    return Redis.from_url(url, **verification, **options)
