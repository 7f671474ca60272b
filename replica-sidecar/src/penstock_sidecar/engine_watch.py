"""Whether the engine serves, found out by asking it.

It is asked every second, and at once when a request loses it. Nobody listening there means down; an answer
that is late does not, until several in a row are, because a busy engine may be slow to say that it is well.
"""

import asyncio
from collections.abc import Awaitable, Callable

from penstock_sidecar.bounds import Bounds
from penstock_sidecar.engine_client import Probe


class EngineWatch:
    """Asks for ever. `up` and `down` are called on changes; `up` gets the probe that found it."""

    def __init__(
        self,
        probe: Callable[[], Awaitable[Probe]],
        up: Callable[[Probe], None],
        down: Callable[[], None],
        bounds: Bounds,
    ) -> None:
        self._probe, self._up, self._down, self._bounds = probe, up, down, bounds
        self._asked = asyncio.Event()
        self._serves = False
        self._failed = 0

    def suspect(self) -> None:
        """A request has lost the engine: ask now."""
        self._asked.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._judge(await self._probe())
            try:
                async with asyncio.timeout(self._bounds.probe_s):
                    await self._asked.wait()
            except TimeoutError:
                continue
            self._asked.clear()

    def _judge(self, probe: Probe) -> None:
        self._failed = 0 if probe.ready else self._failed + 1
        if probe.ready and not self._serves:
            self._serves = True
            self._up(probe)
        elif self._serves and (probe.refused or self._failed >= self._bounds.probes_failed):
            self._serves = False
            self._down()
