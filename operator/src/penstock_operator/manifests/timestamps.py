"""Timestamps in Kubernetes' format (RFC 3339)."""

from datetime import UTC, datetime


def unix_s(timestamp: str, default_s: float) -> float:
    """Return a timestamp as Unix time; `default_s` for an empty one."""
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else default_s


def rfc3339(now_s: float) -> str:
    """Return Unix time as a timestamp."""
    return datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
