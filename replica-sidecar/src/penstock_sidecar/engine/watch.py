"""The engine's health, by probes.

The engine is probed every second, and immediately after a request has lost its connection. A refused
connection means that the engine is down. Late probes and error responses count only several in a row. A late
probe does not count while output or reports arrive, because a busy engine may respond slowly.

An engine that is down gets no new requests. If it refuses connections, it may still finish its requests; if
it was killed, their connections are reset. If it hangs or responds with errors, its requests are lost.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from penstock_runtime.clock import monotonic

from penstock_sidecar.bounds import Bounds
from penstock_sidecar.engine.client import Probe

log = structlog.get_logger()


class EngineWatch:
    """Probes the engine until cancelled.

    last_received_s: returns when output or a report was last received from the engine.
    """

    def __init__(
        self,
        probe: Callable[[], Awaitable[Probe]],
        *,
        last_received_s: Callable[[], float],
        bounds: Bounds,
    ) -> None:
        self._probe, self._last_received_s, self._bounds = probe, last_received_s, bounds
        self._suspected = asyncio.Event()
        self._serves = False
        self._failed = 0
        self._cause = ""

    def suspect(self) -> None:
        """Probe immediately, because a request has lost its connection."""
        self._suspected.set()

    async def run(self, on_up: Callable[[Probe], None], on_down: Callable[[bool], None]) -> None:
        """Probe until cancelled, and call these when the engine comes up and goes down.

        on_up: gets the probe that found it. on_down: gets whether requests at the engine are lost.
        """
        while True:
            asked_s = monotonic()
            probe = await self._probe()
            if not (probe.late and self._last_received_s() > asked_s):
                self._judge(probe, on_up, on_down)
            try:
                async with asyncio.timeout(self._bounds.probe_s):
                    await self._suspected.wait()
            except TimeoutError:
                continue
            self._suspected.clear()

    def _judge(self, probe: Probe, on_up: Callable[[Probe], None], on_down: Callable[[bool], None]) -> None:
        self._failed = 0 if probe.ready else self._failed + 1
        if self._serves and not probe.ready:
            log.warning("probe failed", cause=probe.cause, in_a_row=self._failed)
        elif not probe.ready and probe.cause != self._cause:
            log.info("waiting for the engine", cause=probe.cause)
        self._cause = probe.cause
        if probe.ready and not self._serves:
            self._serves = True
            on_up(probe)
        elif self._serves and (probe.refused or self._failed >= self._bounds.probes_failed):
            self._serves = False
            on_down(not probe.refused)
