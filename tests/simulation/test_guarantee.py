"""The guarantee: with an exact time model and known lengths, no admitted request misses any target.

Load is far beyond capacity, so that admission is what limits; arrivals come in bursts, at any moment of an
iteration; best effort runs alongside, several replicas and hops between. A miss names the request, and the
parameters of the test reproduce it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest
from penstock_core.domain.policy import Knobs
from penstock_core.domain.replica_view import Limits
from penstock_core.domain.slo import Judge, Slo, Tier
from penstock_core.routing.attempts import Backup
from penstock_core.timing.builtin_models import builtin
from penstock_core.timing.speculation import Speculation
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.simulation import (
    Arrival,
    FirstVerdict,
    Fleet,
    LengthKnowledge,
    SimulatedOutcome,
    simulate,
)


@dataclass(frozen=True)
class Kind:
    """Requests of one application: lengths as in the paper's scenarios, mean and spread.

    thinks: the first part of each answer is thinking, which ends with any token.
    """

    slo: Slo
    prompt: tuple[float, float]
    output: tuple[float, float]
    best_effort: bool = False
    thinks: bool = False


KINDS = {
    "chat": Kind(Slo(ttft_slowdown=5, tpot_s=0.1), (763, 424), (266, 160)),
    "coder": Kind(Slo(ttft_slowdown=5, tpot_s=0.05, judge=Judge.WINDOW), (847, 617), (26, 47)),
    "summary": Kind(Slo(ttft_slowdown=3, tpot_s=0.1, judge=Judge.MAX), (1333, 444), (202, 150)),
    "strict": Kind(Slo(ttft_s=0.5, tpot_s=0.06, judge=Judge.MAX), (300, 200), (60, 30)),
    "report": Kind(Slo(e2e_s=12.0), (500, 300), (80, 40)),
    "whole": Kind(Slo(ttft_s=2.0, tpot_s=0.08, e2e_s=15.0), (600, 300), (120, 60)),
    "relaxed": Kind(Slo(ttft_s=20.0, tpot_s=0.3, judge=Judge.MAX), (2000, 900), (150, 60)),
    "thinker": Kind(
        Slo(ttft_slowdown=3, tpot_s=0.05, judge=Judge.WINDOW, answer_tpot_s=0.1),
        *((130, 80), (400, 200)),
        thinks=True,
    ),
    "free": Kind(Slo(), (300, 100), (50, 20)),
    "batch": Kind(Slo(), (1000, 600), (200, 80), best_effort=True),
}
BROAD = ("chat", "coder", "summary", "strict", "report", "whole", "relaxed", "free", "batch")
TIERS = {name: Tier(name, kind.slo, best_effort=kind.best_effort) for name, kind in KINDS.items()}


def arrivals(kinds: tuple[str, ...], rate_rps: float, count: int, random: Random) -> Iterator[Arrival]:
    """Poisson arrivals, three in ten of them together with the one before."""
    at_s = 0.0
    for i in range(count):
        at_s += random.expovariate(0.7 * rate_rps) if random.random() < 0.7 else 0.0
        tier = random.choice(kinds)
        kind = KINDS[tier]
        prompt, output = (max(2, int(random.gauss(*spread))) for spread in (kind.prompt, kind.output))
        thinking = random.randint(1, output - 1) if kind.thinks else 0
        yield Arrival(f"{i:04d}-{tier}", at_s, tier, prompt, output, thinking)


@dataclass(frozen=True)
class Load:
    """Replicas and what comes at each."""

    model: str
    kinds: tuple[str, ...]
    rate_rps: float
    kv_tokens: int | None = None
    limits: Limits = field(default_factory=Limits)
    policy: str = "slos-serve"
    replicas: int = 1
    backup: Backup = Backup.REJECT
    truth: TruthKind = TruthKind.EXACT
    lengths: LengthKnowledge = LengthKnowledge.KNOWN
    aging_s: float = 30.0
    speculation: Speculation | None = None

    def serve(self, count: int, seed: int) -> list[SimulatedOutcome]:
        """Return the outcomes of this many requests, by their number."""
        fleet = Fleet(
            self.policy,
            builtin(self.model).model,
            self.kv_tokens or builtin(self.model).kv_cache_tokens,
            TIERS,
            "chat",
            self.replicas,
            Knobs(aging_s=self.aging_s),
            self.limits,
            truth=self.truth,
            lengths=self.lengths,
            speculation=self.speculation,
            backup=self.backup,
        )
        coming = arrivals(self.kinds, self.rate_rps * self.replicas, count, Random(seed))
        return sorted(simulate(fleet, coming, seed))


def of(verdict: FirstVerdict, outcomes: list[SimulatedOutcome]) -> list[SimulatedOutcome]:
    return [outcome for outcome in outcomes if outcome.verdict is verdict]


def misses(outcomes: list[SimulatedOutcome]) -> list[SimulatedOutcome]:
    return [outcome for outcome in of(FirstVerdict.ADMITTED, outcomes) if not outcome.met]


OPT = "slos-serve-opt-6.7b-a100"
LOADS = [
    Load(OPT, ("chat",), 6.0, 43296),
    Load(OPT, ("chat", "coder", "summary"), 6.0, 43296),
    Load(OPT, BROAD, 6.0, 43296),
    Load("slos-serve-opt-30b-4xa100", ("chat", "relaxed", "batch"), 4.0),
    Load("llama-3-8b-a100", ("chat", "coder", "summary", "batch"), 15.0),
    Load("llama-3-8b-a100", BROAD, 20.0, None, Limits(batch_tokens=512, running=24)),
    Load("opt-13b-h100", ("chat", "coder", "report"), 10.0),
    Load("opt-13b-h100", BROAD, 15.0, 200_000),
    Load("llama-3-70b-4xh100", ("chat", "coder", "summary", "batch"), 20.0),
    Load("llama-3-8b-h100", ("coder", "strict"), 90.0),
    Load(OPT, ("chat", "coder", "summary"), 5.0, 43296, replicas=3, backup=Backup.BEST_EFFORT),
    Load("llama-3-8b-a100", BROAD, 15.0, replicas=4, backup=Backup.BEST_EFFORT),
    Load("slos-serve-r1-distill-1.5b-a100", ("thinker",), 15.0, backup=Backup.BEST_EFFORT),
    Load("slos-serve-r1-distill-1.5b-a100", ("thinker", "chat", "batch"), 20.0),
]


def name_of(load: Load) -> str:
    return f"{load.replicas}x-{load.model}-{len(load.kinds)}-kinds"


@pytest.mark.parametrize("load", LOADS, ids=name_of)
@pytest.mark.parametrize("seed", range(2))
def test_no_admitted_request_misses(load: Load, seed: int) -> None:
    outcomes = load.serve(160 * load.replicas, seed)
    assert misses(outcomes) == []
    assert 0 < len(of(FirstVerdict.ADMITTED, outcomes)) < len(outcomes)


def test_decodes_with_drafts_meet_nearly_every_slo() -> None:
    """Its acceptance is measured and what comes of drafts is chance; plans count on one token a batch."""
    load = Load(OPT, ("chat", "coder", "summary"), 6.0, 43296, speculation=Speculation(10, 0.7))
    kept, missed = 0, 0
    for seed in range(8):
        outcomes = load.serve(320, seed)
        kept, missed = kept + len(of(FirstVerdict.ADMITTED, outcomes)), missed + len(misses(outcomes))
    assert kept > 2000
    assert 500 * missed <= kept, "one or two in a thousand end a window early at the worst moment"


def test_hops_find_capacity_that_the_first_replica_lacks() -> None:
    """Two replicas admit more than twice what one does of half the traffic."""
    load = Load(OPT, ("chat", "coder", "summary"), 4.0, 43296, replicas=2)
    outcomes = load.serve(320, 0)
    hopped = [outcome for outcome in of(FirstVerdict.ADMITTED, outcomes) if outcome.hops == 2]
    assert misses(outcomes) == []
    assert len(hopped) > 10
    assert all(outcome.hops == 2 for outcome in of(FirstVerdict.REJECTED, outcomes))


def test_slos_are_met_that_first_come_first_served_misses() -> None:
    """The same load, served by vLLM's policy, meets less than half as many requests."""
    load = Load(OPT, ("chat", "coder", "summary"), 6.0, 43296)
    vllm = Load(OPT, load.kinds, load.rate_rps, load.kv_tokens, Limits(batch_tokens=512), "vllm")
    admitted, first_come = (sum(outcome.met for outcome in each.serve(300, 1)) for each in (load, vllm))
    assert admitted > 2 * first_come > 0


def test_with_wrong_predictions_slos_are_missed_but_all_requests_served() -> None:
    """An engine that is not quite the model's, answers of unknown length, little memory: some are late."""
    load = Load(
        OPT,
        ("chat", "coder", "summary", "batch"),
        6.0,
        20_000,
        truth=TruthKind.MEASURED,
        lengths=LengthKnowledge.PREDICTED,
    )
    outcomes = load.serve(250, 4)
    accepted = [outcome for outcome in outcomes if outcome.verdict is not FirstVerdict.REJECTED]
    kept = [outcome for outcome in of(FirstVerdict.ADMITTED, outcomes) if outcome.met]
    assert all(outcome.e2e_s is not None for outcome in accepted)
    assert 0.8 * len(of(FirstVerdict.ADMITTED, outcomes)) < len(kept) < len(accepted)


def test_nearly_all_requests_of_a_light_load_are_admitted() -> None:
    outcomes = Load("llama-3-8b-a100", ("chat", "coder", "summary"), 2.0).serve(150, 2)
    assert len(of(FirstVerdict.ADMITTED, outcomes)) >= 0.9 * len(outcomes)


def test_best_effort_never_starves_under_endless_load() -> None:
    """The replica is always full and rejects much, yet offline work ends under continued load."""
    kinds = ("chat",) * 7 + ("coder",) * 2 + ("batch",)
    outcomes = Load(OPT, kinds, 8.0, 16_000, aging_s=5.0).serve(700, 3)
    last_arrival_s = outcomes[-1].arrival_s
    early = [o for o in of(FirstVerdict.BEST_EFFORT, outcomes) if o.arrival_s < last_arrival_s / 4]
    assert misses(outcomes) == []
    assert len(of(FirstVerdict.REJECTED, outcomes)) > len(outcomes) / 3
    assert len(early) > 10
    assert all(o.e2e_s is not None and o.arrival_s + o.e2e_s < last_arrival_s for o in early)
