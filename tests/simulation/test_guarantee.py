"""The guarantee: with an exact time model and known lengths, no admitted request misses any target.

Load is far beyond capacity, so that admission is what limits; arrivals come in bursts, at any moment of an
iteration; best effort runs alongside. A miss names the request and the target, and the parameters of the test
reproduce it.
"""

from dataclasses import dataclass, field, replace
from random import Random

import pytest
from penstock_core.builtin_time_models import builtin
from penstock_core.policies.slos_serve import SlosServe
from penstock_core.policies.vllm import Vllm
from penstock_core.replica_view import Limits
from penstock_core.request import Job, Request, new_job
from penstock_core.slo import Judge, Slo
from penstock_core.time_model import TimeModel
from penstock_core.verdict import Admitted, BestEffort, Rejected
from penstock_simulator.engine_state import EngineState
from penstock_simulator.one_replica import Fate, serve


@dataclass(frozen=True)
class Kind:
    """Requests of one application: lengths as in the paper's scenarios, mean and spread."""

    slo: Slo
    prompt: tuple[float, float]
    output: tuple[float, float]
    best_effort: bool = False


KINDS = {
    "chat": Kind(Slo(ttft_slowdown=5, tpot_s=0.1), (763, 424), (266, 160)),
    "coder": Kind(Slo(ttft_slowdown=5, tpot_s=0.05, judge=Judge.WINDOW), (847, 617), (26, 47)),
    "summary": Kind(Slo(ttft_slowdown=3, tpot_s=0.1, judge=Judge.MAX), (1333, 444), (202, 150)),
    "strict": Kind(Slo(ttft_s=0.5, tpot_s=0.06, judge=Judge.MAX), (300, 200), (60, 30)),
    "report": Kind(Slo(e2e_s=12.0), (500, 300), (80, 40)),
    "whole": Kind(Slo(ttft_s=2.0, tpot_s=0.08, e2e_s=15.0), (600, 300), (120, 60)),
    "relaxed": Kind(Slo(ttft_s=20.0, tpot_s=0.3, judge=Judge.MAX), (2000, 900), (150, 60)),
    "free": Kind(Slo(), (300, 100), (50, 20)),
    "batch": Kind(Slo(), (1000, 600), (200, 80), best_effort=True),
}
BROAD = ("chat", "coder", "summary", "strict", "report", "whole", "relaxed", "free", "batch")


def arrivals(
    kinds: tuple[str, ...], rate_rps: float, count: int, model: TimeModel, random: Random
) -> list[Job]:
    """Poisson arrivals, three in ten of them together with the one before."""
    at_s, jobs = 0.0, []
    for i in range(count):
        at_s += random.expovariate(0.7 * rate_rps) if random.random() < 0.7 else 0.0
        tier = random.choice(kinds)
        kind = KINDS[tier]
        prompt, output = (max(2, int(random.gauss(*spread))) for spread in (kind.prompt, kind.output))
        targets = kind.slo.targets(model.prefill_seconds(prompt))
        request = Request(f"{i:04d}-{tier}", tier, at_s, prompt, 8192, targets)
        jobs.append(new_job(request, output, kind.best_effort))
    return jobs


def replica(name: str, kv_tokens: int | None = None, limits: Limits | None = None) -> EngineState:
    return EngineState(kv_tokens or builtin(name).kv_cache_tokens, limits or Limits())


def misses(fates: list[Fate]) -> list[tuple[str, list[str], int]]:
    return [
        (fate.job.request.id, fate.broken(), len(fate.token_times_s))
        for fate in fates
        if isinstance(fate.verdict, Admitted) and not fate.met()
    ]


@dataclass(frozen=True)
class Load:
    """An engine and what comes at it."""

    model: str
    kinds: tuple[str, ...]
    rate_rps: float
    kv_tokens: int | None = None
    limits: Limits = field(default_factory=Limits)


LOADS = [
    Load("slos-serve-opt-6.7b-a100", ("chat",), 6.0, 43296),
    Load("slos-serve-opt-6.7b-a100", ("chat", "coder", "summary"), 6.0, 43296),
    Load("slos-serve-opt-6.7b-a100", BROAD, 6.0, 43296),
    Load("slos-serve-opt-30b-4xa100", ("chat", "relaxed", "batch"), 4.0),
    Load("llama-3-8b-a100", ("chat", "coder", "summary", "batch"), 15.0),
    Load("llama-3-8b-a100", BROAD, 20.0, None, Limits(batch_tokens=512, running=24)),
    Load("opt-13b-h100", ("chat", "coder", "report"), 10.0),
    Load("opt-13b-h100", BROAD, 15.0, 200_000),
    Load("llama-3-70b-4xh100", ("chat", "coder", "summary", "batch"), 20.0),
    Load("llama-3-8b-h100", ("coder", "strict"), 60.0),
]


@pytest.mark.parametrize("load", LOADS, ids=lambda load: f"{load.model}-{len(load.kinds)}-kinds")
@pytest.mark.parametrize("seed", range(2))
def test_no_admitted_request_misses(load: Load, seed: int) -> None:
    model = builtin(load.model).model
    engine = replica(load.model, load.kv_tokens, load.limits)
    jobs = arrivals(load.kinds, load.rate_rps, 160, model, Random(seed))
    fates = serve(SlosServe(), engine, model, jobs)
    admitted = sum(isinstance(fate.verdict, Admitted) for fate in fates)
    assert misses(fates) == []
    assert 0 < admitted < len(fates)


def test_promises_are_kept_where_first_come_first_served_keeps_few() -> None:
    """The same load, served by vLLM's policy, meets less than half as many requests."""
    name = "slos-serve-opt-6.7b-a100"
    model = builtin(name).model
    jobs = arrivals(("chat", "coder", "summary"), 6.0, 300, model, Random(1))
    promised = serve(SlosServe(), replica(name, 43296), model, jobs)
    first_come = serve(Vllm(), replica(name, 43296, Limits(batch_tokens=512)), model, jobs)
    assert sum(fate.met() for fate in promised) > 2 * sum(fate.met() for fate in first_come) > 0


def test_wrong_predictions_cost_promises_but_everybody_is_served() -> None:
    """The engine a tenth slower than believed, answers up to half longer: tokens late, blocks short."""
    name = "slos-serve-opt-6.7b-a100"
    model = builtin(name).model
    jobs = arrivals(("chat", "coder", "summary", "batch"), 6.0, 250, model, Random(4))
    engine = replica(name, 20_000)
    fates = serve(
        SlosServe(),
        engine,
        model,
        jobs,
        truth=replace(model, scale=1.1),
        answer_tokens=lambda job: job.output_tokens * (2 + int(job.request.id[:4]) % 2) // 2,
    )
    accepted = [fate for fate in fates if not isinstance(fate.verdict, Rejected)]
    kept = [fate for fate in accepted if isinstance(fate.verdict, Admitted) and fate.met()]
    assert engine.preemptions > 0
    assert all(len(fate.token_times_s) == fate.answer_tokens for fate in accepted)
    assert 0 < len(kept) < len(accepted)


def test_light_load_is_nearly_all_admitted() -> None:
    name = "llama-3-8b-a100"
    model = builtin(name).model
    jobs = arrivals(("chat", "coder", "summary"), 2.0, 150, model, Random(2))
    fates = serve(SlosServe(), replica(name), model, jobs)
    assert sum(isinstance(fate.verdict, Admitted) for fate in fates) >= 0.9 * len(fates)


def test_best_effort_never_starves_under_endless_load() -> None:
    """The replica is full all the time and refuses much, yet offline work ends while the load goes on."""
    name = "slos-serve-opt-6.7b-a100"
    model = builtin(name).model
    kinds = ("chat",) * 7 + ("coder",) * 2 + ("batch",)
    jobs = arrivals(kinds, 8.0, 700, model, Random(3))
    fates = serve(SlosServe(aging_s=5.0), replica(name, 16_000), model, jobs)
    offline = [fate for fate in fates if isinstance(fate.verdict, BestEffort)]
    rejected = sum(isinstance(fate.verdict, Rejected) for fate in fates)
    last_arrival_s = jobs[-1].request.arrival_s
    early = [fate for fate in offline if fate.job.request.arrival_s < last_arrival_s / 4]
    assert misses(fates) == []
    assert rejected > len(fates) / 3
    assert all(len(fate.token_times_s) == fate.job.output_tokens for fate in offline)
    assert len(early) > 10
    assert all(fate.token_times_s[-1] < last_arrival_s for fate in early)
