"""One replica in virtual time: arrivals, a policy, an engine whose iterations take what a model says.

The policy is asked for a verdict at each arrival, also while an iteration is under way, with what can be
seen then: the jobs as they were when it began, and what it prefills. Nothing is drawn at random and no
clock is read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from penstock_core.policy import Policy
from penstock_core.replica_view import at_iteration_end
from penstock_core.request import Job, RequestId
from penstock_core.slo import judged_tpot_s
from penstock_core.time_model import BatchWork, TimeModel, chunk_work
from penstock_core.verdict import Rejected, Verdict

from penstock_simulator.engine_state import EngineState
from penstock_simulator.iteration import Iteration


@dataclass(slots=True)
class Fate:
    """What became of one request: its job on arrival, true length, verdict, when its tokens came out."""

    job: Job
    answer_tokens: int
    verdict: Verdict
    token_times_s: list[float] = field(default_factory=list)

    def met(self) -> bool:
        """Whether every target was kept. A rejected or unfinished request met nothing."""
        return not self.broken() and len(self.token_times_s) == self.answer_tokens

    def broken(self, tolerance_s: float = 1e-6) -> list[str]:
        """Targets that its tokens broke."""
        targets, arrival_s, times_s = self.job.request.targets, self.job.request.arrival_s, self.token_times_s
        if not times_s:
            return []
        measured = {
            "ttft": (times_s[0] - arrival_s, targets.ttft_s),
            "tpot": (judged_tpot_s(times_s, targets.judge), targets.tpot_s),
            "e2e": (times_s[-1] - arrival_s, targets.e2e_s),
        }
        return [
            f"{name} {value:.4f} > {target:.4f}"
            for name, (value, target) in measured.items()
            if value is not None and target is not None and value > target + tolerance_s
        ]


def serve(
    policy: Policy[Any],
    engine: EngineState,
    model: TimeModel,
    jobs: Sequence[Job],
    *,
    truth: TimeModel | None = None,
    answer_tokens: Callable[[Job], int] = attrgetter("output_tokens"),
) -> list[Fate]:
    """Serve jobs (in order of arrival) until all are done. Those that are rejected leave at once.

    truth: what iterations really take, where the policy's `model` is wrong.
    answer_tokens: true lengths, where the jobs' predicted ones are wrong.
    """
    fates: dict[RequestId, Fate] = {}
    memory, now_s, coming = policy.start(), 0.0, list(reversed(jobs))

    def arrive(until_s: float, under_way: Iteration) -> None:
        while coming and coming[-1].request.arrival_s <= until_s:
            job = coming.pop()
            at_s = job.request.arrival_s
            view = at_iteration_end(engine.view(at_s, max(until_s, at_s), model), under_way.chunks())
            verdict = policy.admit(view, [job])[0]
            fates[job.request.id] = Fate(job, answer_tokens(job), verdict)
            if not isinstance(verdict, Rejected):
                engine.add(job, answer_tokens(job))

    while coming or engine.running or engine.waiting:
        if not engine.running and not engine.waiting:
            now_s = max(now_s, coming[-1].request.arrival_s)
        arrive(now_s, Iteration())
        step, memory = policy.step(engine.view(now_s, now_s, model), memory)
        if not step.tokens:
            if not coming:
                break
            now_s = max(now_s, coming[-1].request.arrival_s)
            continue
        work = work_of(engine, step.tokens)
        iteration = engine.start(step)
        end_s = now_s + (truth or model).seconds(work)
        arrive(end_s, iteration)
        for job_id, tokens in engine.finish(end_s).tokens.items():
            fates[job_id].token_times_s += [end_s] * tokens
        now_s = end_s
    return list(fates.values())


def work_of(engine: EngineState, tokens: Mapping[RequestId, int]) -> BatchWork:
    """What a step computes, by the jobs as they are before it."""
    here = {job.request.id: job for job in (*engine.running, *engine.waiting)}
    context, attention = 0, 0.0
    for job_id, count in tokens.items():
        job = here[job_id]
        if job.decoding:
            context += job.computed_tokens + 1
        else:
            attention += chunk_work(count, job.computed_tokens)
    return BatchWork(sum(tokens.values()), context, attention)
