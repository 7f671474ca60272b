"""The tokens of one request on their way from the step loop to its client.

The loop adds tokens at the end of an iteration and never waits. The HTTP response takes all tokens since its
last read, so a slow client gets larger chunks, as from vLLM.
"""

import asyncio

from penstock_core.domain.request import RequestId

from penstock_simulator.engine.iteration import Finish


class Aborted(Exception):
    """The request was aborted before its answer was complete."""


class TokenStream:
    """Counts tokens without storing them, because their text follows from their position.

    arrived_s, first_s, last_s: arrival, first and latest token, on the engine's clock.
    tokens: tokens generated.
    finish: why the answer ended; None before its end.
    cached_tokens: prompt tokens found in the prefix cache when the request was first started; None before,
        and without a prefix cache.
    """

    __slots__ = (
        "_taken",
        "_waiter",
        "aborted",
        "arrived_s",
        "cached_tokens",
        "finish",
        "first_s",
        "job_id",
        "last_s",
        "tokens",
    )

    def __init__(self, job_id: RequestId, arrived_s: float) -> None:
        self.job_id = job_id
        self.arrived_s = arrived_s
        self.first_s = self.last_s = 0.0
        self.tokens = 0
        self.finish: Finish | None = None
        self.cached_tokens: int | None = None
        self.aborted = False
        self._taken = 0
        self._waiter: asyncio.Future[None] | None = None

    def put(self, new_tokens: int, finish: Finish | None, now_s: float) -> None:
        """Add tokens that were generated at `now_s`."""
        if self.tokens == 0:
            self.first_s = now_s
        self.last_s = now_s
        self.tokens += new_tokens
        self.finish = finish
        self._wake()

    def abort(self) -> None:
        """End the stream: `take` raises Aborted."""
        self.aborted = True
        self._wake()

    async def take(self) -> range:
        """Wait for tokens and return the positions of those since the last call. Raises Aborted."""
        while self._taken == self.tokens and not self.aborted:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self.aborted:
            raise Aborted
        taken = range(self._taken, self.tokens)
        self._taken = self.tokens
        return taken

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
