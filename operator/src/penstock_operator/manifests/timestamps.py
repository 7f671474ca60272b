"""Time as Kubernetes writes it."""

from datetime import UTC, datetime


def unix_s(timestamp: str, default_s: float) -> float:
    """Kubernetes' time as Unix time; `default_s` for none."""
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else default_s


def rfc3339(now_s: float) -> str:
    """Unix time as Kubernetes writes it."""
    return datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
