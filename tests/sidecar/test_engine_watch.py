import asyncio
from collections.abc import Iterable
from dataclasses import replace
from math import inf

import pytest
from patience import eventually
from penstock_sidecar.bounds import Bounds
from penstock_sidecar.engine.client import EngineClient, Probe
from penstock_sidecar.engine.watch import EngineWatch

from tests.sidecar.conftest import Engine

UP, LATE, REFUSED = Probe(True, max_model_len=10), Probe(False, late=True), Probe(False, refused=True)
UNWELL = Probe(False)


async def seen(probes: Iterable[Probe], received: bool = False) -> list[str]:
    """Return the events of a watch whose probes have these results. heard: the engine works meanwhile."""
    bounds = replace(Bounds(), probe_s=0.0, probes_failed=3)
    reported: list[str] = []
    left = list(probes)
    over = asyncio.Event()

    async def probe() -> Probe:
        if not left:
            over.set()
            await asyncio.Event().wait()
        return left.pop(0)

    watch = EngineWatch(probe, last_received_s=lambda: inf if received else -inf, bounds=bounds)
    watching = asyncio.create_task(
        watch.run(
            lambda _: reported.append("up"), lambda all_lost: reported.append("lost" if all_lost else "down")
        )
    )
    async with asyncio.timeout(20):
        await over.wait()
    watching.cancel()
    return reported


@pytest.mark.parametrize(
    ("probes", "reported"),
    [
        ([LATE, REFUSED, LATE], []),
        ([LATE, UP, UP], ["up"]),
        ([UP, REFUSED, REFUSED], ["up", "down"]),
        ([UP, LATE, LATE, UP, LATE, LATE], ["up"]),
        ([UP, LATE, LATE, LATE, LATE], ["up", "lost"]),
        ([UP, UNWELL, LATE, UNWELL], ["up", "lost"]),
        ([UP, REFUSED, UP, REFUSED], ["up", "down", "up", "down"]),
    ],
)
async def test_results_of_probes_become_the_state_of_the_engine(
    probes: list[Probe], reported: list[str]
) -> None:
    assert await seen(probes) == reported


async def test_a_busy_engine_may_be_late() -> None:
    assert await seen([UP, *[LATE] * 9], received=True) == ["up"]
    assert await seen([UP, *[UNWELL] * 3], received=True) == ["up", "lost"]
    assert await seen([UP, REFUSED], received=True) == ["up", "down"]


async def test_a_lost_request_causes_an_immediate_probe() -> None:
    requested = 0

    async def probe() -> Probe:
        nonlocal requested
        requested += 1
        return UP

    bounds = replace(Bounds(), probe_s=1e6)
    watch = EngineWatch(probe, last_received_s=lambda: -inf, bounds=bounds)
    watching = asyncio.create_task(watch.run(lambda _: None, lambda _: None))
    await eventually(lambda: requested == 1)
    watch.suspect()
    await eventually(lambda: requested == 2)
    watching.cancel()


async def test_a_real_engine_is_probed(engine: Engine) -> None:
    async with EngineClient(f"http://127.0.0.1:{engine.port}", Bounds()) as client:
        assert await client.probe() == Probe(True, max_model_len=4096)
        engine.healthy = False
        assert await client.probe() == Probe(False, cause="/health answers 503")
        await engine.kill()
        probe = await client.probe()
        assert (probe.ready, probe.refused, probe.late) == (False, True, False)
        assert probe.cause.startswith("ConnectionRefusedError: ")
        await engine.start()
        engine.healthy = True
        assert (await client.probe()).ready
