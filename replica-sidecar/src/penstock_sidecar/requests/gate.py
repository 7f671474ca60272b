"""When an accepted request enters the engine."""

from typing import Protocol


class Gate(Protocol):
    """Holds accepted requests until the engine may have them. Keys name a request's answers."""

    def hold(self, keys: tuple[str, ...]) -> None:
        """Hold a request."""

    def holds(self, key: str) -> bool:
        """Return whether the request with this first key is held."""

    async def wait_for_turn(self, key: str) -> None:
        """Wait until the request with this first key may enter the engine."""

    def passed(self, key: str, tokens: int, now_s: float) -> None:
        """Note tokens of a request that have passed towards its client."""

    def ended(self, key: str, engine_full: bool) -> None:
        """Note that a request has ended. engine_full: the engine had no room for it."""


class OpenGate:
    """Lets every request in at once: the engine schedules by the pool's own policy."""

    def hold(self, keys: tuple[str, ...]) -> None:
        """Hold nothing."""

    def holds(self, key: str) -> bool:
        """Return False."""
        return False

    async def wait_for_turn(self, key: str) -> None:
        """Return at once."""

    def passed(self, key: str, tokens: int, now_s: float) -> None:
        """Learn nothing."""

    def ended(self, key: str, engine_full: bool) -> None:
        """Free nothing."""
