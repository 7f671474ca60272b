"""Restores cancellations that a client library has suppressed: redis-py may turn one into a timeout error."""

import asyncio


def raise_if_cancelled() -> None:
    """Raise CancelledError if the running task was cancelled and still runs."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
