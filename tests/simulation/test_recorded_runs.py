"""Whole runs of small fleets, as they were: each request's replica, hops, tokens and times.

The policy here plans vLLM's steps and rejects by a count, so that hardly anything but the simulator can
change a row. A row that changes on purpose is recorded anew: `rows(NAME)` returns the rows of `RECORDED`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from penstock_core import policies
from penstock_core.autoscaling.demand import DemandObservation
from penstock_core.domain.policy import Policy, Step
from penstock_core.domain.replica_view import Limits, ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.slo import Judge, Slo, Tier
from penstock_core.domain.verdict import Admitted, BestEffort, Reason, Rejected, Verdict
from penstock_core.routing.attempts import Backup
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.speculation import Speculation
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.simulation import (
    Arrival,
    Fleet,
    FleetAutoscaler,
    LengthKnowledge,
    SimulatedOutcome,
    simulate,
)
from penstock_simulator.simulation.autoscaling.autoscaler import ReplicaCounts
from penstock_simulator.simulation.disaggregated.distserve import Ratio, simulate_distserve

TIERS = {
    "chat": Tier("chat", Slo(ttft_slowdown=5, tpot_s=0.1)),
    "coder": Tier("coder", Slo(ttft_s=0.4, tpot_s=0.05, judge=Judge.WINDOW)),
    "thinker": Tier("thinker", Slo(ttft_s=2.0, tpot_s=0.03, answer_tpot_s=0.2)),
    "batch": Tier("batch", best_effort=True),
}
FLEET = Fleet("counting", time_model("slos-serve-opt-6.7b-a100"), 5120, TIERS, "chat", replicas=2)
EXACT = replace(FLEET, truth=TruthKind.EXACT, lengths=LengthKnowledge.KNOWN)


@dataclass
class Counting:
    """Rejects the third of those that a replica has, and answers those of 400 tokens as best effort."""

    drafts: int = 0
    policy: Policy[Any] = field(default_factory=lambda: policies.build("vllm"))

    def start(self) -> Any:
        return self.policy.start()

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        here = len(view.running) + len(view.waiting)
        return [self._verdict(here + more, job) for more, job in enumerate(new)]

    def _verdict(self, here: int, job: Job) -> Verdict:
        if job.request.prompt_tokens == 400:
            return BestEffort()
        return Rejected(Reason.KV_MEMORY) if here > 2 else Admitted(0.0, 0.0)

    def step(self, view: ReplicaView, memory: Any) -> tuple[Step, Any]:
        step, memory = self.policy.step(view, memory)
        drafting = [job.request.id for job in view.running if job.decoding and job.request.id in step.tokens]
        drafts = dict.fromkeys(drafting, self.drafts) if self.drafts else {}
        return replace(step, drafts=drafts), memory


def mixed(count: int = 14, rate_rps: float = 12.0) -> Iterable[Arrival]:
    """Single requests and sessions of all tiers, some at the same instant."""
    random, at_s = Random(1), 0.0
    for i in range(count):
        at_s += random.expovariate(rate_rps) if i % 4 else 0.0
        tier, output = random.choice(["", *TIERS]), random.randint(1, 90)
        session = random.choice(["", "", "s", "t"])
        prompt, thinking = random.choice([60, 400, 1500, 2600]), random.randint(0, output)
        yield Arrival(str(i), at_s, tier, prompt, output, thinking, session, i if session else 0)


RUNS: dict[str, Callable[[], Iterable[SimulatedOutcome]]] = {
    "lengths and times are learned": lambda: run(FLEET),
    "routers see each other late": lambda: run(
        replace(
            EXACT,
            routers=2,
            replicas=3,
            order="least-loaded",
            snapshot_age_s=0.4,
            placement_delay_s=0.05,
            hop_latency_s=0.02,
        )
    ),
    "with drafts": lambda: run(replace(FLEET, speculation=Speculation(2, 0.6)), drafts=2),
    "memory and slots run out": lambda: run(replace(EXACT, kv_tokens=3200, limits=Limits(512, 3))),
    "no request is served as backup": lambda: run(
        replace(EXACT, backup=Backup.REJECT, max_hops=1, max_model_len=2000, block_tokens=48)
    ),
    "split by phase": lambda: simulate_distserve(
        replace(FLEET, kv_tokens=6000, speculation=Speculation(2, 0.6)), Ratio(1, 2), mixed(), 3
    ),
}


def run(fleet: Fleet, drafts: int = 0) -> Iterable[SimulatedOutcome]:
    return simulate(fleet, mixed(), 3, lambda name, knobs: Counting(drafts))


def rows(name: str) -> list[str]:
    return [row(outcome) for outcome in RUNS[name]()]


def row(outcome: SimulatedOutcome) -> str:
    times = [outcome.arrival_s, outcome.ttft_s, outcome.tpot_s, outcome.e2e_s]
    shown = ["-" if time_s is None else f"{time_s:.6f}" for time_s in times]
    served = f"{outcome.replica or '-'} {outcome.hops} {outcome.output_tokens}"
    return " ".join([outcome.id, outcome.tier, outcome.verdict.value, served, *shown, "+-"[not outcome.met]])


RECORDED: dict[str, str] = {
    "lengths and times are learned": """\
2 thinker admitted r0 1 56 0.112767 0.233142 0.025967 1.644055 +
1 thinker best-effort r1 1 61 0.057005 0.055139 0.024232 1.804528 +
4 chat admitted r0 1 4 0.219308 1.762036 0.025702 1.839142 -
7 chat best-effort r1 1 54 0.604486 0.176119 0.025504 1.527814 +
3 chat admitted r1 1 76 0.219308 0.131209 0.027275 2.176816 +
5 chat admitted r1 1 68 0.508898 0.218396 0.024908 1.887226 +
0 chat admitted r0 1 73 0.000000 0.132574 0.033537 2.547207 +
6 coder best-effort r0 2 30 0.575971 1.687386 0.025907 2.429267 -
8 coder best-effort r0 2 16 0.604486 2.626339 0.025430 3.007020 -
13 chat best-effort r1 2 61 0.940951 1.778866 0.024174 3.229335 -
12 batch best-effort r0 1 14 0.884889 2.949350 0.025864 3.285580 +
10 chat best-effort r1 2 62 0.793818 1.925999 0.024176 3.400710 -
9 chat best-effort r0 1 39 3.611507 0.770626 0.025526 1.740606 +
11 coder best-effort r1 1 71 5.352113 0.029868 0.024424 1.717611 +""",
    "routers see each other late": """\
4 chat admitted r1 1 4 0.219308 0.345901 0.025006 0.420921 +
2 thinker admitted r2 1 56 0.112767 0.223628 0.026601 1.621812 +
1 thinker best-effort r1 1 61 0.057005 0.072312 0.024869 2.036824 +
0 chat admitted r0 1 73 0.000000 0.147970 0.027405 2.121133 +
7 chat best-effort r2 1 54 0.604486 0.082715 0.030358 1.691704 +
5 chat admitted r0 1 68 0.508898 0.240670 0.024925 1.910661 +
8 coder admitted r2 3 16 0.604486 1.441641 0.025006 1.816392 -
10 chat admitted r1 1 62 0.793818 0.224739 0.024986 1.748888 +
3 chat admitted r1 1 76 0.219308 0.345901 0.029748 2.576970 +
12 batch best-effort r1 1 14 0.884889 1.861513 0.024879 2.184944 +
6 coder admitted r0 1 30 0.575971 2.047215 0.024869 2.768410 -
9 chat admitted r2 2 39 2.420879 0.253434 0.024938 1.201062 +
13 chat best-effort r2 3 61 0.940951 1.105176 0.027921 2.780464 -
11 coder admitted r1 1 71 3.621940 0.048927 0.024869 1.789741 +""",
    "with drafts": """\
2 thinker admitted r0 1 56 0.112767 0.235220 0.014716 0.939803 +
1 thinker best-effort r1 1 61 0.057005 0.055139 0.009508 1.097225 +
4 chat admitted r0 1 4 0.219308 1.049850 0.025760 1.127130 -
3 chat admitted r1 1 76 0.219308 0.131764 0.014926 1.251207 +
7 chat best-effort r1 1 54 0.604486 0.180472 0.013842 0.914111 +
0 chat admitted r0 1 73 0.000000 0.132574 0.020603 1.615968 +
5 chat admitted r1 1 68 0.508898 0.222543 0.013884 1.152793 +
6 coder best-effort r0 2 30 0.575971 0.988528 0.017255 1.346265 -
8 coder best-effort r0 2 16 0.604486 1.538909 0.015414 1.742737 -
13 chat best-effort r1 2 61 0.940951 1.042634 0.011345 1.723339 -
10 chat best-effort r1 2 62 0.793818 1.189767 0.012376 1.944689 -
12 batch best-effort r0 1 14 0.884889 1.686855 0.013870 1.867170 +
9 chat best-effort r0 1 39 2.347224 0.621631 0.014842 1.185631 +
11 coder best-effort r1 1 71 3.532855 0.029711 0.016769 0.924496 +""",
    "memory and slots run out": """\
1 thinker best-effort r1 1 61 0.057005 0.053312 0.024869 1.652185 +
0 chat admitted r0 1 73 0.000000 0.178570 0.024869 1.969122 +
3 chat admitted r1 1 76 0.219308 0.193130 0.024916 2.061865 +
2 thinker admitted r0 1 56 0.112767 2.183983 0.024869 3.551766 -
7 chat best-effort r1 1 54 0.604486 2.031826 0.024938 3.353517 -
4 chat admitted r0 1 4 0.219308 3.772854 0.024869 3.847460 -
5 chat admitted r1 1 68 0.508898 2.127415 0.024923 3.797268 -
6 coder best-effort r0 2 30 0.575971 3.818424 0.024869 4.539619 -
8 coder best-effort r0 2 16 0.604486 4.838732 0.024869 5.211763 -
10 chat best-effort r1 2 62 0.793818 3.839976 0.024869 5.356972 -
12 batch best-effort r0 1 14 0.884889 5.258988 0.024869 5.582283 +
9 chat best-effort r0 1 39 5.816250 0.978550 0.024869 1.923564 +
13 chat best-effort r1 2 61 0.940951 5.387408 0.024940 6.883799 -
11 coder best-effort r1 1 71 7.739814 0.035062 0.024883 1.776014 +""",
    "no request is served as backup": """\
2 thinker failed - 0 0 0.112767 - - - -
4 chat failed - 0 0 0.219308 - - - -
5 chat failed - 0 0 0.508898 - - - -
6 coder failed - 0 0 0.575971 - - - -
8 coder failed - 0 0 0.604486 - - - -
9 chat failed - 0 0 0.752167 - - - -
10 chat failed - 0 0 0.793818 - - - -
12 batch failed - 0 0 0.884889 - - - -
13 chat rejected - 1 0 0.940951 - - - -
1 thinker best-effort r1 1 61 0.057005 0.053312 0.024869 1.689189 +
0 chat admitted r0 1 73 0.000000 0.128970 0.024869 1.919522 +
7 chat best-effort r1 1 54 0.604486 0.060038 0.025127 1.391771 +
3 chat admitted r1 1 76 0.219308 0.143392 0.025438 2.051263 +
11 coder best-effort r1 1 71 0.884889 0.033826 0.025075 1.783582 +""",
    "split by phase": """\
4 chat admitted p0+d0 1 4 0.219308 0.504812 0.017720 0.557971 +
0 chat admitted p0+d0 1 73 0.000000 0.129229 0.012478 1.027624 +
1 thinker admitted p0+d1 1 61 0.057005 0.311429 0.009959 1.075691 +
2 thinker admitted p0+d1 1 56 0.112767 0.255666 0.014131 1.019928 +
6 coder admitted p0+d0 1 30 0.575971 0.574700 0.012168 0.868290 -
3 chat admitted p0+d0 1 76 0.219308 0.504812 0.013226 1.496779 +
8 coder admitted p0+d0 1 16 0.604486 0.929819 0.014552 1.111600 -
7 chat admitted p0+d1 1 54 0.604486 0.546184 0.013876 1.281639 -
5 chat admitted p0+d1 1 68 0.508898 0.641773 0.013241 1.528953 +
12 batch best-effort p0+d0 1 14 0.884889 1.004214 0.013741 1.182851 +
10 chat admitted p0+d1 1 62 0.793818 0.740488 0.013112 1.540326 +
9 chat admitted p0+d0 1 39 1.716087 0.390104 0.013369 0.898129 +
13 chat admitted p0+d0 1 61 0.940951 0.948152 0.014137 1.796352 -
11 coder admitted p0+d1 1 71 2.614216 0.031209 0.017286 0.940880 +""",
    "scaled": """\
2 thinker admitted r1 1 56 0.112767 0.226115 0.024938 1.597681 +
1 thinker best-effort r1 1 61 0.057005 0.053312 0.060676 1.934665 -
0 chat admitted r0 1 73 0.000000 0.128970 0.026366 2.027300 +
4 chat admitted r0 1 4 0.219308 2.011690 0.024938 2.086502 -
3 chat admitted r0 1 76 0.219308 0.137176 0.029704 2.365012 +
6 coder best-effort r0 2 30 0.575971 1.933536 0.024889 2.654937 -
7 chat best-effort r1 1 54 0.604486 1.337171 0.024940 2.658999 -
5 chat admitted r1 2 68 0.508898 1.432759 0.024925 3.102751 -
8 coder best-effort r0 2 16 0.604486 2.937894 0.024938 3.311958 -
13 chat best-effort r0 2 61 0.940951 2.601429 0.024886 4.094588 -
10 chat best-effort r1 2 62 0.793818 3.021459 0.024869 4.538454 -
12 batch best-effort r1 1 14 0.884889 4.651010 0.024869 4.974305 +
9 chat best-effort r0 1 39 3.916444 2.023723 0.024869 2.968737 -
11 coder best-effort r0 1 71 6.885181 0.029927 0.024869 1.770741 +""",
}
"""Run -> by request, in the order in which they ended: tier, verdict, replica, hops, tokens; when it was
sent, TTFT, TPOT, end-to-end time; whether it met its targets."""


@pytest.mark.parametrize("name", RUNS)
def test_a_run_equals_the_recorded_one(name: str) -> None:
    assert rows(name) == RECORDED[name].split("\n")


SCALED = [
    (0.0, 2, 2, 2),
    (0.5, 3, 2, 3),
    (1.0, 1, 1, 2),
    (1.5, 3, 1, 3),
    (2.0, 1, 1, 2),
    (2.5, 0, 0, 2),
    (3.5, 2, 0, 2),
    (4.0, 1, 0, 2),
    (5.735539, 1, 1, 2),
    (5.859194, 1, 1, 1),
]
"""When the numbers changed: time, desired, ready, GPUs."""


def test_a_run_with_autoscaling_equals_the_recorded_one() -> None:
    """Up, down while replicas work or start, to none while requests are held, and up again."""
    seen: list[ReplicaCounts] = []
    demands: list[DemandObservation] = []

    def decide(demand: DemandObservation, now_s: float) -> int:
        assert len(demands) < len(HELD), "it ends with the last request"
        demands.append(demand)
        return [2, 3, 1, 3, 1, 0, 0, 2, 1][min(len(demands), 9) - 1]

    autoscaler = FleetAutoscaler(decide, period_s=0.5, startup_s=0.7, on_change=seen.append)
    fleet = replace(EXACT, order="least-loaded")
    outcomes = list(simulate(fleet, mixed(), 3, lambda name, knobs: Counting(), autoscaler=autoscaler))
    assert [(round(counts.at_s, 6), *counts[1:]) for counts in seen] == SCALED
    assert [row(outcome) for outcome in outcomes] == RECORDED["scaled"].split("\n")
    reported = [
        (name, tier.arrived, tier.admitted, tier.best_effort, tier.rejected, tier.hops, tier.judged, tier.met)
        for demand in demands
        for name, tier in demand.tiers.items()
    ]
    assert reported == REPORTED
    assert [demand.held for demand in demands] == HELD
    assert {demand.elapsed_s for demand in demands} == {0.0, 0.5}
    states = [" ".join(f"{one.name}={one.state.value}" for one in demand.replicas) for demand in demands]
    assert states == STATES


REPORTED = [
    ("chat", 3, 3, 0, 0, 3, 0, 0),
    ("thinker", 2, 1, 1, 0, 2, 0, 0),
    ("chat", 4, 1, 3, 0, 7, 0, 0),
    ("coder", 2, 0, 2, 0, 4, 0, 0),
    ("batch", 1, 0, 1, 0, 0, 0, 0),
    ("thinker", 0, 0, 0, 0, 0, 1, 1),
    ("chat", 0, 0, 0, 0, 0, 2, 1),
    ("chat", 0, 0, 0, 0, 0, 1, 1),
    ("chat", 0, 0, 0, 0, 0, 1, 0),
]
HELD = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0]
STATES = [
    "r0=ready r1=ready",
    "r0=ready r1=ready",
    "r2=starting r0=ready r1=ready",
    "r0=ready r1=draining",
    "r2=starting r0=ready r1=draining",
    "r0=ready r1=draining",
    "r1=draining r0=draining",
    "r1=draining r0=draining",
    "r1=draining r0=draining",
    "r1=draining r0=draining",
    "r1=draining r0=draining",
    "r0=starting r1=draining",
    "r0=ready",
    "r0=ready",
    "r0=ready",
    "r0=ready",
    "r0=ready",
    "r0=ready",
    "r0=ready",
]
