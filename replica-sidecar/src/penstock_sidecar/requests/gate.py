"""The gate between admission and the engine."""

from typing import Protocol


class Gate(Protocol):
    """Holds accepted requests until they may enter the engine. keys: one for each answer of a request."""

    def hold(self, keys: tuple[str, ...]) -> None:
        """Hold a request."""

    def holds(self, key: str) -> bool:
        """Return whether the request with this first key is held."""

    async def wait_for_turn(self, key: str) -> None:
        """Wait until the request with this first key may enter the engine."""

    def passed(self, key: str, tokens: int, now_s: float) -> None:
        """Record tokens of a request that were forwarded to its client."""

    def ended(self, key: str, engine_full: bool) -> None:
        """Record that a request has ended. engine_full: whether the engine had no capacity for it."""


class OpenGate:
    """Releases every request immediately, for an engine that schedules by the pool's policy."""

    def hold(self, keys: tuple[str, ...]) -> None:
        """Do nothing: the request may enter."""

    def holds(self, key: str) -> bool:
        """Return False: no request is held."""
        return False

    async def wait_for_turn(self, key: str) -> None:
        """Return immediately."""

    def passed(self, key: str, tokens: int, now_s: float) -> None:
        """Do nothing."""

    def ended(self, key: str, engine_full: bool) -> None:
        """Do nothing: no request is held."""
