"""**annealing.** Orders and batches the queue by simulated annealing, to meet the most SLOs per second of
latency.

Choose it if requests with different targets share a replica, some with TTFT and TPOT, others with an
end-to-end deadline, and no request may be rejected: waiting requests are planned together, so one that can
wait does, and one that is lost anyway goes last. The objective is `G = n / t`: requests in time over the sum
of all latencies. It only decides which requests start when, so it works in front of any engine.

Costs: rejects no request, so beyond capacity it chooses which requests are late, and prefers three short ones
to one long one. It relies on predicted lengths more than any other policy here. A plan takes 0.1 to 0.5 ms,
and is made when a slot is free and the queue has changed; numba is imported on use.

Knobs: `window`, requests planned at once; `spread`, share of the lengths' deviation that is drawn for a plan
(1 as in the paper; 0 plans with the mean); `aging_s`, delay of the oldest request after which none overtakes
it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from penstock_core.batch.open_batch import OpenBatch
from penstock_core.batch.ordered_batch import run_on, start, starting_tokens
from penstock_core.domain.policy import Knobs, Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Verdict
from penstock_core.policies.annealing.capacity import Room, fitting, room
from penstock_core.policies.annealing.latency import latency_of
from penstock_core.policies.annealing.plan_tables import PlanInput, plan_tables
from penstock_core.policies.annealing.search import best_plan, first_batch_s
from penstock_core.policies.annealing.state import AnnealingState, updated
from penstock_core.policies.annealing.window import overdue, plan_input, window
from penstock_core.policies.unconditional_admission import admit_all


@dataclass(frozen=True, slots=True)
class Annealing:
    """SLO-aware simulated annealing in front of an engine with continuous batching."""

    window: int = 16
    spread: float = 0.0
    aging_s: float = Knobs().aging_s

    def start(self) -> AnnealingState:
        """Return the initial state."""
        return AnnealingState()

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        """Admit all candidates."""
        return admit_all(view, new)

    def step(self, view: ReplicaView, memory: AnnealingState) -> tuple[Step, AnnealingState]:
        """Continue running requests, start the plan's first batch, and add best effort in the rest."""
        memory = updated(memory, view)
        batch = OpenBatch(view)
        with_slo, surplus = _split_by_slo(view.running, memory.moving)
        run_on(batch, with_slo, reversed([*with_slo, *surplus]))
        if view.waiting and not batch.preempted:
            if memory.open or view.now_s >= memory.next_s:
                memory = self._planned(view, memory, with_slo)
            _start(batch, _in_turn(view.waiting, memory), reversed(surplus))
        run_on(batch, [job for job in surplus if job.request.id not in batch.preempted])
        offline = [job for job in view.waiting if job.best_effort and job.request.id != memory.moving]
        if len(offline) == len(view.waiting) and offline and not batch.preempted:
            start(batch, fitting(view.kv, view.running, offline[: self.window]))
        return batch.step(), memory

    def _planned(self, view: ReplicaView, memory: AnnealingState, with_slo: list[Job]) -> AnnealingState:
        """Return the state with the jobs that start now: the plan's first batch, and an overdue job."""
        moving = memory.moving or _id_of(overdue(view.waiting, view.now_s, self.aging_s))
        jobs = [job for job in window(view.waiting, self.window, view.now_s) if job.request.id != moving]
        first, batch_s = self._first_batch(view, memory, with_slo, jobs) if jobs else ([], inf)
        return replace(
            memory,
            moving=moving,
            starting=tuple(job.request.id for job in first),
            plans=memory.plans + 1,
            next_s=view.now_s + batch_s,
            open=bool(jobs) and not first,
        )

    def _first_batch(
        self, view: ReplicaView, memory: AnnealingState, with_slo: list[Job], jobs: list[Job]
    ) -> tuple[list[Job], float]:
        """Return the waiting jobs that start now, in order, and the time of the next batch's start."""
        latency = latency_of(view.model)
        inputs = self._plan_inputs(view, memory, jobs)
        usual_tokens = sum(one.prompt_tokens for one in inputs) / len(inputs)
        most = min(len(fitting(view.kv, with_slo, jobs)), view.limits.running - len(with_slo))
        free = room(latency, view.running, self._plan_inputs(view, memory, view.running), usual_tokens, most)
        if not view.running:
            free = Room(max(free.places, 1), free.running)
        if not free.places:
            return [], inf
        tables = plan_tables(latency, inputs, free.places, free.running)
        plan = best_plan(tables, memory.plans)
        first = [jobs[at] for at in plan.order[: plan.sizes[0]]]
        return fitting(view.kv, with_slo, first), first_batch_s(tables, plan)

    def _plan_inputs(self, view: ReplicaView, memory: AnnealingState, jobs: Sequence[Job]) -> list[PlanInput]:
        return [
            plan_input(
                job, view.now_s, memory.share(job.request.tier).draw(memory.plans * 1024 + at, self.spread)
            )
            for at, job in enumerate(jobs)
        ]


def _split_by_slo(running: Sequence[Job], moving: str | None) -> tuple[list[Job], list[Job]]:
    """Return the jobs that are served first, including the overdue one, and the best-effort jobs."""
    surplus = [job for job in running if job.best_effort and job.request.id != moving]
    with_slo = [job for job in running if not job.best_effort or job.request.id == moving]
    return with_slo, surplus


def _start(batch: OpenBatch, jobs: Iterator[Job], victims: Iterator[Job]) -> None:
    """Start new requests until the first that does not fit even after preempting best effort."""
    for job in jobs:
        tokens = starting_tokens(batch, job, whole=False)
        if not tokens or not batch.make_room(batch.blocks_wanted(job, tokens), 1, victims):
            return
        batch.add(job, tokens)


def _in_turn(waiting: Sequence[Job], memory: AnnealingState) -> Iterator[Job]:
    """Yield the jobs to start, in order: the overdue job, then those of the plan."""
    jobs = {job.request.id: job for job in waiting}
    turns = (memory.moving, *memory.starting)
    return (jobs[job_id] for job_id in turns if job_id is not None and job_id in jobs)


def _id_of(job: Job | None) -> str | None:
    return None if job is None else job.request.id
