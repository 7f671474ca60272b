"""Cancellation that a client library has swallowed: redis-py turns one that meets a timeout into an error."""

import asyncio


def heed_cancellation() -> None:
    """Raise CancelledError if the running task was cancelled and went on all the same."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
