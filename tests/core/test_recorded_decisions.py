"""Every decision of every policy on drawn scenes equals the recorded one.

No test of one rule sees all of a policy. This one notices any change of what is decided, and says where it
begins. Where the change is meant, read it, and record anew:

  PENSTOCK_RECORD=1 .venv/bin/pytest tests/core/test_recorded_decisions.py
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from penstock_core.domain.policy import Step
from penstock_core.domain.verdict import Admitted, Rejected, Verdict
from penstock_core.policies import POLICIES, build
from penstock_core.timing.time_model import BatchWork
from recorded_lines import assert_recorded

from tests.core.test_policies_all import scene

RECORDED = Path(__file__).with_name("recorded_decisions.json")
REQUESTS = 30
SEEDS = {"slos-serve": 16}
FEW_SEEDS, PER_TEST = 8, 4


def decisions(name: str, random: Random) -> Iterator[str]:
    """Yield each admission and each step in words. Of the rejected, every other is served best effort."""
    here = scene(random, REQUESTS, random.choice((0, 3)))
    policy, engine, now_s = build(name), here.engine(), 0.0
    memory, coming = policy.start(), list(here.jobs)
    while coming or engine.running or engine.waiting:
        if not engine.running and not engine.waiting:
            now_s = max(now_s, coming[0].request.arrival_s)
        view = engine.view(now_s, now_s, here.model, here.speculation)
        new = [job for job in coming if job.request.arrival_s <= now_s]
        coming = coming[len(new) :]
        for job, verdict in zip(new, policy.admit(view, new) if new else (), strict=True):
            yield f"{job.request.id} {_words(verdict)}"
            refused = isinstance(verdict, Rejected)
            if not refused or random.random() < 0.5:
                engine.add(job._replace(best_effort=job.best_effort or refused), here.answers[job.request.id])
        step, memory = policy.step(engine.view(now_s, now_s, here.model, here.speculation), memory)
        yield _step(step)
        engine.start(step)
        now_s += step.duration_s or here.model.seconds(BatchWork(1))
        engine.finish(now_s)


def _words(verdict: Verdict) -> str:
    match verdict:
        case Admitted(ttft_s, tpot_s):
            return f"admitted {ttft_s:.6g} {tpot_s:.6g}"
        case Rejected(reason, earliest_s):
            return f"{reason} {earliest_s if earliest_s is None else format(earliest_s, '.6g')}"
    return "best effort"


def _step(step: Step) -> str:
    tokens = " ".join(f"{job_id}:{tokens}" for job_id, tokens in step.tokens.items())
    drafts = " ".join(f"{job_id}:{tokens}" for job_id, tokens in step.drafts.items())
    after = f"{step.repeatable_blocks} {step.duration_s:.6g}"
    rest = f"-{','.join(step.preempt)} +{','.join(step.promote)} {after}"
    return f"{tokens} / {drafts} {rest}"


@pytest.mark.parametrize(
    ("name", "seed"),
    [(name, seed) for name in POLICIES for seed in range(0, SEEDS.get(name, FEW_SEEDS), PER_TEST)],
)
def test_decisions_equal_the_recorded_ones(name: str, seed: int) -> None:
    for each in range(seed, seed + PER_TEST):
        assert_recorded(RECORDED, f"{name} {each}", list(decisions(name, Random(each))))
