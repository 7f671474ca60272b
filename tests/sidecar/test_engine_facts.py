"""What planning starts from: the pool's words, the engine's, or a measurement."""

import asyncio
from pathlib import Path
from random import Random
from typing import cast

import orjson
import pytest
from penstock_core.domain.replica_view import KvCache
from penstock_core.timing.time_model import from_json, to_json
from penstock_pool import Pool, load_pool
from penstock_pool.time_models import FORMAT
from penstock_profiler import EngineKvCache, MeasuredEngine
from penstock_runtime.serving import StartError
from penstock_sidecar.engine.client import Probe
from penstock_sidecar.engine.facts import Facts
from penstock_sidecar.engine.facts_at_start import facts_of, until_ready
from penstock_sidecar.engine.measured_facts import facts_from
from structlog.testing import capture_logs
from virtual_time import now_s, run

from tests.profiler.virtual_engine import MODEL, TRANSPORT_S, VirtualEngine, connected

POOL = """
apiVersion: penstock.dev/v1alpha1
kind: ServingPool
metadata: {{name: test}}
spec:
  model: {{name: tiny}}
  engine: {{type: openai, timeModel: {time_model}, {kv}profileTimeout: 5s, maxModelLen: 4096}}
  scheduling: {{maxBatchTokens: 256, maxRunning: 8}}
  tiers: [{{name: chat, slo: {{ttft: 1s, tpot: 100ms}}}}]
"""


def pool_of(folder: Path, time_model: str = "auto", kv: str = "kvCacheTokens: 40000, ") -> Pool:
    file = folder / "pool.yaml"
    file.write_text(POOL.format(time_model=time_model, kv=kv))
    return load_pool(file)


def written_model(folder: Path) -> None:
    page = {"format": FORMAT, "model": "tiny", "time_model": to_json(MODEL)}
    (folder / "model.json").write_bytes(orjson.dumps(page))


@pytest.fixture(autouse=True)
def virtual_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_profiler.engine.perf_counter", now_s)
    monkeypatch.setattr("penstock_profiler.profiling.monotonic", now_s)


def test_an_engine_is_probed_once_a_second_and_each_cause_is_logged_once() -> None:
    answers = [
        Probe(False, cause="starts"),
        Probe(False, cause="starts"),
        Probe(False, cause="loads"),
        Probe(True),
    ]
    ready = answers[-1]

    async def probe() -> Probe:
        return answers.pop(0)

    async def program() -> tuple[Probe, float]:
        return await until_ready(probe), now_s()

    with capture_logs() as logs:
        assert run(program()) == (ready, 3.0)
    assert [entry["cause"] for entry in logs] == ["starts", "loads"]


def test_a_sidecar_that_stops_first_has_no_facts(tmp_path: Path) -> None:
    async def probe() -> Probe:
        return Probe(False, cause="starts")

    async def program() -> Facts | None:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(2.5, stop.set)
        return await facts_of(pool_of(tmp_path), "http://engine", probe, stop)

    assert run(program()) is None


def test_a_measured_model_in_the_pool_is_used_without_a_measurement(tmp_path: Path) -> None:
    written_model(tmp_path)
    engine = VirtualEngine()
    facts = run(facts_from(connected(engine), pool_of(tmp_path, "model.json"), None))
    assert (facts.model, facts.kv) == (MODEL, KvCache(2500, 2500, 16))
    assert engine.asked == []


@pytest.mark.parametrize("left", [False, True])
def test_a_model_is_measured_within_the_pools_bounds_and_written_for_the_engine(
    left: bool, tmp_path: Path
) -> None:
    engine, file = VirtualEngine(), tmp_path / "left.json"
    facts = run(facts_from(connected(engine), pool_of(tmp_path), 1000, file if left else None))
    assert facts.model.prefill_seconds(200) == pytest.approx(MODEL.prefill_seconds(200), rel=0.1)
    assert max(prompt for prompt, _ in engine.asked) <= 256, "maxBatchTokens"
    assert max(sum(requested) for requested in engine.asked) <= 1000, "the engine's own max_model_len"
    assert facts.overhead_s == pytest.approx(TRANSPORT_S, rel=0.1)
    assert file.exists() == left
    assert not left or from_json(orjson.loads(file.read_bytes())) == facts.model
    assert not list(tmp_path.glob("*.unfinished"))


@pytest.mark.parametrize("steady", [True, False])
def test_an_inaccurate_measurement_is_a_warning(steady: bool, tmp_path: Path) -> None:
    engine = VirtualEngine(slowdown=lambda at_s: 1.0 if steady else Random(at_s).uniform(1.0, 9.0))
    with capture_logs() as logs:
        run(facts_from(connected(engine), pool_of(tmp_path), None))
    warned = [log for log in logs if log["log_level"] == "warning" and "inaccurate" in log["event"]]
    assert bool(warned) != steady


def test_an_engine_that_cannot_be_measured_names_the_pools_setting(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"^spec\.engine\.timeModel: auto: .*out of memory"):
        run(facts_from(connected(VirtualEngine(error="out of memory")), pool_of(tmp_path), None))


def test_a_model_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"cannot write the time model to .*: No such file"):
        run(facts_from(connected(VirtualEngine()), pool_of(tmp_path), None, tmp_path / "none" / "m.json"))


class Reporting:
    """An engine that reports its KV cache, or does not."""

    def __init__(self, kv: EngineKvCache | None) -> None:
        self._kv = kv

    async def kv_cache(self) -> EngineKvCache | None:
        return self._kv


def test_without_a_size_in_the_pool_the_kv_cache_is_the_engines(tmp_path: Path) -> None:
    written_model(tmp_path)
    pool = pool_of(tmp_path, "model.json", kv="")
    reporting = cast(MeasuredEngine, Reporting(EngineKvCache(100, 32)))
    assert run(facts_from(reporting, pool, None)).kv == KvCache(100, 100, 32)
    with pytest.raises(StartError, match=r"spec\.engine\.kvCacheTokens: missing"):
        run(facts_from(cast(MeasuredEngine, Reporting(None)), pool, None))
