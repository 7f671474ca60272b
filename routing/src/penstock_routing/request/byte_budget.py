"""The budget of bytes that a process buffers for all requests: bodies, and output that clients have not read.

Bounds of single requests do not bound the process: 4,096 clients may stop reading, each within its bound.
Beyond the budget a new body is rejected with 429, because its client can retry. Output of admitted requests
cannot be rejected, so the request with most of it is dropped: its client does not read, or its answer is by
far the longest. Others are not affected.
"""

from types import TracebackType
from typing import Protocol, Self

from penstock_runtime.openai_errors import ApiError


class BudgetExceeded(ApiError):
    """An error 429 about a body for which the budget has no bytes left."""


class Holder(Protocol):
    """A buffer of output. drop: gives up its request, and calls `ByteBudget.leave`."""

    @property
    def held_bytes(self) -> int:
        """Bytes of output that it holds now."""

    def drop(self) -> None:
        """Give up the request."""


class ByteBudget:
    """The budget of one router, or of one replica behind a gateway.

    owner: name of the process in errors.
    held_bytes: bytes buffered now; each holder of output adds to it and subtracts from it.
    """

    def __init__(self, bound_bytes: int, owner: str = "this router") -> None:
        self.bound_bytes, self.owner = bound_bytes, owner
        self.held_bytes = 0
        self._holders: dict[Holder, None] = {}  # in the order of their arrival

    def enter(self, holder: Holder) -> None:
        """Add a holder, which may be dropped later."""
        self._holders[holder] = None

    def leave(self, holder: Holder) -> None:
        """Remove a holder and its bytes."""
        self._holders.pop(holder, None)
        self.held_bytes -= holder.held_bytes

    def drop_largest(self) -> None:
        """Drop the holders with most output, until the rest is within the budget."""
        while self.held_bytes > self.bound_bytes:
            most = max(self._holders, key=lambda holder: holder.held_bytes, default=None)
            if most is None or most.held_bytes == 0:
                return
            most.drop()


class BodyBytes:
    """A request's body in the budget, from its arrival to the end of its request. Use as `with`."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget, self._bytes, self._arriving_bytes = budget, 0, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._budget.held_bytes -= self._bytes + self._arriving_bytes

    def add(self, more_bytes: int) -> None:
        """Count more bytes of the body. Raises BudgetExceeded."""
        self._hold(more_bytes)
        self._bytes += more_bytes

    def arriving(self, now_bytes: int) -> None:
        """Count the bytes so far of a part that is still arriving. Raises BudgetExceeded."""
        self._hold(now_bytes - self._arriving_bytes)
        self._arriving_bytes = now_bytes

    def _hold(self, more_bytes: int) -> None:
        budget = self._budget
        if more_bytes > 0 and budget.held_bytes + more_bytes > budget.bound_bytes:
            raise BudgetExceeded(
                429,
                f"{budget.owner} already buffers {budget.bound_bytes} bytes for other requests (its maximum)",
                type="overloaded",
                code="router_full",
                headers=(("retry-after", "1"), ("connection", "close")),
            )
        budget.held_bytes += more_bytes
