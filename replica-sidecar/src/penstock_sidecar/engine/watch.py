"""Whether the engine serves, found out by asking it.

It is asked every second, and at once when a request loses it. Nobody listening there means down at once. An
answer that is late, or that says no, means it when several in a row are; and a late one means nothing while
the engine is heard to work, because a busy engine may be slow to say that it is well.

An engine that is down takes no new work. What it already works on is another matter: one that stops listening
may be finishing it, and one that was killed resets its connections by itself. One that hangs or says no takes
what it holds with it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

import structlog

from penstock_sidecar.bounds import Bounds
from penstock_sidecar.engine.client import Probe

log = structlog.get_logger()


class EngineWatch:
    """Asks for ever. `up` and `down` are called on changes.

    up: gets the probe that found it. down: gets whether what it holds is lost.

    heard_s: when output or a report last came from the engine.
    """

    def __init__(
        self,
        probe: Callable[[], Awaitable[Probe]],
        up: Callable[[Probe], None],
        down: Callable[[bool], None],
        *,
        heard_s: Callable[[], float],
        bounds: Bounds,
    ) -> None:
        self._probe, self._up, self._down = probe, up, down
        self._heard_s, self._bounds = heard_s, bounds
        self._asked = asyncio.Event()
        self._serves = False
        self._failed = 0
        self._cause = ""

    def suspect(self) -> None:
        """A request has lost the engine: ask now."""
        self._asked.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            asked_s = monotonic()
            probe = await self._probe()
            if not (probe.late and self._heard_s() > asked_s):
                self._judge(probe)
            try:
                async with asyncio.timeout(self._bounds.probe_s):
                    await self._asked.wait()
            except TimeoutError:
                continue
            self._asked.clear()

    def _judge(self, probe: Probe) -> None:
        self._failed = 0 if probe.ready else self._failed + 1
        if self._serves and not probe.ready:
            log.warning("probe failed", cause=probe.cause, in_a_row=self._failed)
        elif not probe.ready and probe.cause != self._cause:
            log.info("waiting for the engine", cause=probe.cause)
        self._cause = probe.cause
        if probe.ready and not self._serves:
            self._serves = True
            self._up(probe)
        elif self._serves and (probe.refused or self._failed >= self._bounds.probes_failed):
            self._serves = False
            self._down(not probe.refused)
