import pytest
from penstock_core.domain.replica_view import KvCache, Limits
from penstock_core.domain.request import Request, new_job
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import BatchWork
from penstock_sidecar.metrics import Metrics
from penstock_sidecar.mirror.holding_mirror import HoldingMirror
from penstock_sidecar.release.step_timer import StepTimer
from penstock_sidecar.requests.estimates import Estimates
from prometheus_client import CollectorRegistry

from tests.sidecar.conftest import MODEL


class Engine:
    """Decodes that run, and a step timer that gets their tokens."""

    def __init__(self, decodes: int, speculation: Speculation | None = None) -> None:
        self.estimates = Estimates(MODEL)
        self.mirror = HoldingMirror(KvCache(1000, 1000, 16), Limits(), lambda _: 400, speculation)
        self.step_timer = StepTimer(self.mirror, self.estimates, Metrics(CollectorRegistry()))
        self.keys = [f"d{i}" for i in range(decodes)]
        for key in self.keys:
            self.enters(key, 0.0)

    def enters(self, key: str, now_s: float) -> None:
        self.mirror.accept(new_job(Request(key, "chat", 0.0, 100, 5000), 4000, False), now_s)
        self.mirror.released(key, now_s)

    def iterates(self, now_s: float, tokens: int = 1) -> None:
        for key in self.keys:
            self.mirror.passed(key, tokens, now_s)
            self.step_timer.passed(key, tokens, now_s)

    @property
    def step_s(self) -> float:
        """As it is planned to be, with some margin."""
        return self.estimates.model.seconds(BatchWork(len(self.keys)))


def test_the_measured_time_of_an_engine_slower_than_its_model_is_used() -> None:
    engine = Engine(decodes=5)
    told_s = engine.step_s
    for step in range(800):
        engine.iterates(1.0 + 2 * told_s * step)
    assert engine.step_s == pytest.approx(2 * told_s, rel=0.1)


def test_step_times_are_not_learned_beside_prefill_or_from_merged_tokens() -> None:
    beside, merged, drafting = Engine(5), Engine(5), Engine(5, Speculation(3, 0.7))
    beside.enters("prompt", 0.5)
    for step in range(100):
        beside.iterates(1.0 + step)
        merged.iterates(1.0 + step, tokens=3)
        drafting.iterates(1.0 + step)
    for engine in (beside, merged, drafting):
        assert engine.estimates.model is MODEL


def test_another_decode_is_timed_after_the_first_has_ended() -> None:
    engine = Engine(decodes=2)
    engine.iterates(1.0)
    gone = engine.keys.pop(0)
    engine.mirror.forget(gone)
    for step in range(20):
        engine.iterates(3.0 + 0.5 * step)
    assert engine.estimates.model is not MODEL
