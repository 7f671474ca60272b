"""The engine's warm-up of its policy before it reports ready."""

from collections.abc import Sequence

import pytest
from penstock_core import policies
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import Limits, ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Verdict
from penstock_core.timing.speculation import Speculation
from penstock_simulator.warm_up import warm_up

from tests.simulator.conftest import MODEL, Eager


class Watched(Eager):
    """Keeps the views that it is shown."""

    def __init__(self) -> None:
        self.views: list[ReplicaView] = []

    def step(self, view: ReplicaView, memory: None) -> tuple[Step, None]:
        self.views.append(view)
        return super().step(view, memory)


def test_a_policy_is_warmed_up_with_prefills_decodes_and_drafts() -> None:
    policy, reported = Watched(), Speculation(4, 0.7)
    warm_up(policy, Limits(), MODEL, reported)
    assert all(view.speculation == reported for view in policy.views)
    assert any(job.decoding for view in policy.views for job in view.running)
    seen = {job.request.id: job for view in policy.views for job in view.waiting}.values()
    assert {job.best_effort for job in seen} == {True, False}
    assert policy.views[-1].running == (), "all requests have ended"
    assert [job.best_effort for job in seen] == [True, False, False, False] * 2
    assert [job.request.tier for job in seen] == ["batch", "chat"] * 4
    assert [job.request.prompt_tokens for job in seen] == list(range(100, 900, 100))
    assert [job.request.targets.ttft_s for job in seen] == [None, 1.0] * 4
    assert len(policy.views) == 16


@pytest.mark.parametrize("speculation", [None, Speculation(4, 0.7)], ids=["plain", "speculating"])
@pytest.mark.parametrize("name", policies.POLICIES)
def test_every_policy_can_be_warmed_up(name: str, speculation: Speculation | None) -> None:
    warm_up(policies.build(name), Limits(batch_tokens=256, running=4), MODEL, speculation)


class Broken:
    def start(self) -> None:
        return None

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> Sequence[Verdict]:
        raise NotImplementedError

    def step(self, view: ReplicaView, memory: None) -> tuple[Step, None]:
        raise ZeroDivisionError


def test_a_policy_that_fails_at_once_prevents_the_engines_start() -> None:
    with pytest.raises(ZeroDivisionError):
        warm_up(Broken(), Limits(), MODEL, None)
