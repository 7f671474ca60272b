"""One request's answer on its way from the step loop to its client.

The loop puts tokens in at the end of an iteration and never waits; the stream takes out whatever has come
since it last looked, so a slow client's tokens merge into larger chunks, as they do in vLLM.
"""

import asyncio

from penstock_core.domain.request import RequestId

from penstock_simulator.iteration import Finish


class Aborted(Exception):
    """The request was given up before its answer was whole."""


class Answer:
    """Tokens counted, not stored: what they say follows from their place.

    arrived_s, first_s, last_s: when the request and its first and latest token came, on the engine's clock.
    tokens: that came out.
    finish: why it ended, once it has.
    """

    __slots__ = (
        "_taken",
        "_waiter",
        "aborted",
        "arrived_s",
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
        self.aborted = False
        self._taken = 0
        self._waiter: asyncio.Future[None] | None = None

    def put(self, new_tokens: int, finish: Finish | None, now_s: float) -> None:
        """Add tokens that came out at `now_s`."""
        if self.tokens == 0:
            self.first_s = now_s
        self.last_s = now_s
        self.tokens += new_tokens
        self.finish = finish
        self._wake()

    def abort(self) -> None:
        """Let whoever takes from it know that nothing more will come."""
        self.aborted = True
        self._wake()

    async def take(self) -> range:
        """Places of the tokens that have come since last time, once there are any. Raises Aborted."""
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
