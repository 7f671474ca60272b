import asyncio
from collections.abc import Iterable
from dataclasses import replace

import pytest
from penstock_sidecar.bounds import Bounds
from penstock_sidecar.engine_client import EngineClient, Probe
from penstock_sidecar.engine_watch import EngineWatch

from tests.sidecar.conftest import Engine, until

UP, LATE, REFUSED = Probe(True, max_model_len=10), Probe(False), Probe(False, refused=True)


async def seen(probes: Iterable[Probe], bounds: Bounds) -> list[str]:
    """What a watch tells while its probes bring these."""
    told: list[str] = []
    left = list(probes)
    over = asyncio.Event()

    async def probe() -> Probe:
        if not left:
            over.set()
            await asyncio.Event().wait()
        return left.pop(0)

    watch = EngineWatch(probe, lambda _: told.append("up"), lambda: told.append("down"), bounds)
    watching = asyncio.create_task(watch.run())
    async with asyncio.timeout(20):
        await over.wait()
    watching.cancel()
    return told


@pytest.mark.parametrize(
    ("probes", "told"),
    [
        ([LATE, REFUSED, LATE], []),
        ([LATE, UP, UP], ["up"]),
        ([UP, REFUSED, REFUSED], ["up", "down"]),
        ([UP, LATE, LATE, UP, LATE, LATE], ["up"]),
        ([UP, LATE, LATE, LATE, LATE], ["up", "down"]),
        ([UP, REFUSED, UP, REFUSED], ["up", "down", "up", "down"]),
    ],
)
async def test_what_probes_mean(probes: list[Probe], told: list[str]) -> None:
    assert await seen(probes, replace(Bounds(), probe_s=0.0, probes_failed=3)) == told


async def test_a_lost_request_has_the_engine_asked_at_once() -> None:
    asked = 0

    async def probe() -> Probe:
        nonlocal asked
        asked += 1
        return UP

    watch = EngineWatch(probe, lambda _: None, lambda: None, replace(Bounds(), probe_s=1e6))
    watching = asyncio.create_task(watch.run())
    await until(lambda: asked == 1)
    watch.suspect()
    await until(lambda: asked == 2)
    watching.cancel()


async def test_probes_of_a_real_engine(engine: Engine) -> None:
    async with EngineClient(f"http://127.0.0.1:{engine.port}", Bounds()) as client:
        assert await client.probe() == Probe(True, max_model_len=4096)
        engine.healthy = False
        assert await client.probe() == Probe(False)
        await engine.kill()
        assert await client.probe() == Probe(False, refused=True)
        await engine.start()
        engine.healthy = True
        assert (await client.probe()).ready
