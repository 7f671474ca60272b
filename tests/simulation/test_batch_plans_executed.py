"""Execution follows the plan: batches formed one after the other meet the plan's deadlines."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random

from hypothesis import example, given
from hypothesis import strategies as st
from penstock_core.domain.replica_view import Limits, ReplicaView
from penstock_core.domain.request import Job, Request, new_job
from penstock_core.domain.slo import Judge, Targets, judged_tpot_s
from penstock_core.policies.slos_serve.batch_formation import form_batch
from penstock_core.policies.slos_serve.batch_plan import best_plan
from penstock_core.policies.slos_serve.workload import AdmittedSet, Workload
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import BatchWork
from penstock_simulator.engine.engine_state import EngineState
from penstock_simulator.engine.generation import no_drafts

from examples import examples

OPT = time_model("slos-serve-opt-6.7b-a100")
ERROR_S = 1e-6


def drawn(random: Random, name: str, now_s: float, judges: Sequence[Judge], longest: int) -> Job:
    """A request of any SLO; its length is known."""
    prompt, answer = random.randint(1, 2500), random.randint(1, longest)
    ttft_s = OPT.prefill_seconds(prompt) * random.uniform(1.0, 6.0)
    tpot_s = random.choice((None, 0.03, 0.05, 0.1, 0.3))
    targets = Targets(ttft_s, tpot_s, None, random.choice(judges))
    return new_job(Request(name, "tier", now_s, prompt, 4096, targets), answer, False, answer)


def is_feasible(view: ReplicaView, new: Job) -> bool:
    jobs = [job for job in (*view.running, *view.waiting) if not job.best_effort]
    decodes = [job for job in jobs if job.decoding]
    prompts = sorted([*(job for job in jobs if not job.decoding), new], key=lambda job: job.due_s)
    rejected = Workload.of(view, inf).admitted.rejected
    plan = best_plan(AdmittedSet(view, decodes, prompts, rejected))
    alone_s = view.model.seconds(BatchWork(new.pending_tokens))
    return plan.feasible and view.now_s + alone_s <= new.due_s


@dataclass
class Served:
    """An engine that is given every request with which a plan is feasible.

    refused: whether it is given the others too, as best effort.
    longest: most tokens of an answer.
    """

    seed: int
    speculation: Speculation | None
    judges: Sequence[Judge] = tuple(Judge)
    refused: bool = False
    longest: int = 60
    times_s: dict[str, list[float]] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)

    def run(self) -> None:
        random = Random(self.seed)
        engine = EngineState(400_000, Limits(), accept=self._accepting(random))
        now_s, come = 0.0, 0
        while come < 40 or engine.running or engine.waiting:
            for _ in range(random.choice((0, 0, 1, 3)) if come < 40 else 0):
                come += 1
                job = drawn(random, f"{come:02d}", now_s, self.judges, self.longest)
                view = engine.view(now_s, now_s, OPT, self.speculation)
                if is_feasible(view, job):
                    engine.add(job, job.output_tokens)
                    self.jobs[job.request.id] = job
                elif self.refused:
                    engine.add(job._replace(best_effort=True), job.output_tokens)
            view = engine.view(now_s, now_s, OPT, self.speculation)
            step = form_batch(Workload.of(view, inf))
            assert step.tokens or not (engine.running or engine.waiting) or come < 40
            now_s += step.duration_s or 0.01
            for name, tokens in engine.apply(step, now_s).tokens.items():
                self.times_s.setdefault(name, []).extend([now_s] * tokens)

    def _accepting(self, random: Random) -> Callable[[int], int]:
        if self.speculation is None:
            return no_drafts
        chance = random.choice((0.0, 0.3, self.speculation.acceptance, 1.0))
        return lambda drafts: next((n for n in range(drafts) if random.random() >= chance), drafts)

    def late(self) -> list[str]:
        return [*self.late_first_tokens(), *self.late_decodes()]

    def late_first_tokens(self) -> list[str]:
        return [name for name, job in self.jobs.items() if self.times_s[name][0] > job.due_s + ERROR_S]

    def late_decodes(self) -> list[str]:
        return [
            name
            for name, job in self.jobs.items()
            if (judged_tpot_s(self.times_s[name], job.request.targets.judge) or 0.0)
            > (job.tpot_s or inf) + ERROR_S
        ]


@examples(30)
@given(st.integers(0, 1 << 20))
def test_the_deadlines_of_a_feasible_plan_are_met(seed: int) -> None:
    served = Served(seed, None)
    served.run()
    assert served.jobs
    assert served.late() == []


@examples(30)
@given(st.integers(0, 1 << 20))
def test_tpot_targets_are_met_for_any_number_of_accepted_drafts(seed: int) -> None:
    """But for windows, which accepted drafts can fill early: see `batch_plan`."""
    served = Served(seed, Speculation(8, 0.7), (Judge.MEAN, Judge.MAX))
    served.run()
    assert served.jobs
    assert served.late_decodes() == []


def test_accepted_drafts_delay_at_most_one_first_token_in_a_thousand() -> None:
    """A prompt that is computed early decodes early, beside the prompts behind it: see `batch_plan`."""
    requests = late = 0
    for seed in range(130, 210):
        served = Served(seed, Speculation(8, 0.7), (Judge.MEAN, Judge.MAX))
        served.run()
        requests += len(served.jobs)
        late += len(served.late_first_tokens())
    assert 1 <= late <= requests / 1000, requests


@examples(5)
@given(st.integers(0, 1 << 20))
@example(9)
@example(45)
def test_deadlines_are_met_beside_best_effort(seed: int) -> None:
    """Rejected requests are served beside, at times more of them than admitted ones."""
    served = Served(seed, None, (Judge.MEAN, Judge.WINDOW), refused=True, longest=3000)
    served.run()
    assert served.jobs
    assert served.late() == []
