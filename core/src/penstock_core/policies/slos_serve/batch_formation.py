"""Batch formation [SLOs-Serve, Algorithm 2], as the first batch of a plan (`batch_plan`).

Decodes take their tokens first, with the draft tokens of the plan's rule; the rest of the batch goes to
prefills, by deadline, and then to best effort. The plan determines the duration of the batch. A prefill that
finishes in it and is due before its end shortens it to that deadline.

Best effort may lengthen a batch only in proportion to free memory: if memory is scarce, decodes that take
longer hold their blocks longer, which reduces admission.

If blocks or slots run out, other requests are preempted (`Victims`): best-effort ones first, started last
first. For a request that already runs, admitted ones with later deadlines follow, the latest deadline first.
That only happens after a wrong prediction, since admission has counted the blocks of all requests.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import inf

from penstock_core.batch.best_effort import fill_surplus
from penstock_core.batch.open_batch import OpenBatch
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, deadline_order, holding_kv
from penstock_core.policies.slos_serve.batch_plan import BatchPlan, best_plan
from penstock_core.policies.slos_serve.speculation import SpeculationLengths, speculation_lengths
from penstock_core.policies.slos_serve.workload import Workload

SCARCE = 0.5
"""Share of the KV cache, held by admitted requests, from which best effort only runs where they do not.
Without it Chatbot attains 4 points less near capacity (`bench/results/ablations.md`)."""


class Victims:
    """The jobs of one step that may be preempted; each is offered once (`OpenBatch.make_room`)."""

    def __init__(self, best_effort: Sequence[Job], admitted: Sequence[Job]) -> None:
        """Take the best-effort jobs in the order they were started."""
        self._best_effort = holding_kv(best_effort)
        self._all_admitted = admitted

    @cached_property
    def _admitted(self) -> list[Job]:
        """Admitted jobs by deadline, sorted on first use."""
        return sorted(holding_kv(self._all_admitted), key=deadline_order)

    def of(self, job: Job) -> Iterator[Job]:
        """Yield jobs to preempt for this one.

        A running job is itself admitted, so `_admitted` is never empty.
        """
        while self._best_effort:
            yield self._best_effort.pop()
        while job.holds_kv and deadline_order(self._admitted[-1]) > deadline_order(job):
            yield self._admitted.pop()


def form_batch(view: ReplicaView, workload: Workload, plan: BatchPlan | None = None) -> Step:
    """Return the largest batch that makes no token of an admitted request late.

    plan: of the admitted requests, where it is known: with the protected one among them.
    """
    admitted, surplus = workload.admitted, workload.best_effort
    if not admitted.prompts and not surplus:
        alone = _decodes_alone(view, admitted.decodes, all_admitted=plan is None)
        if alone is not None:
            return alone
    plan = plan or best_plan(view, admitted, either_margin=True)
    batch, victims = OpenBatch(view), Victims(surplus, [*admitted.decodes, *admitted.prompts])
    decodes = [job for place, job in enumerate(admitted.decodes) if place not in plan.skipped]
    _decode(batch, decodes, victims)
    _draft(batch, decodes, plan.rule.speculation, plan.limit_s)
    limit_s = _prefill(batch, admitted.prompts, victims, plan.limit_s)
    if surplus:
        fill_surplus(batch, surplus, _surplus_limit_s(batch, limit_s))
    return batch.step()


def _decodes_alone(view: ReplicaView, decodes: Sequence[Job], *, all_admitted: bool) -> Step | None:
    """The batch of nothing but decodes, where there is room for all of them and none is nearly due.

    all_admitted: none of them is best effort, whose turn comes and goes with time.
    """
    batch = OpenBatch(view)
    if not batch.decode_all(decodes):
        return None
    speculation = speculation_lengths(view.speculation, view.model, decodes)
    if speculation:
        _draft(batch, decodes, speculation, inf)
    step = batch.repeatable_step() if all_admitted else batch.step()
    in_time = step.duration_s <= min([job.due_s for job in decodes], default=inf) - view.now_s
    return step if in_time or not speculation else None


def _surplus_limit_s(batch: OpenBatch, limit_s: float) -> float:
    """How long best effort may make the batch: the less, the more of the KV cache admitted requests hold."""
    if not batch.tokens:
        return limit_s
    kv, taken_s = batch.view.kv, batch.seconds()
    held = sum([kv.blocks_for(job.computed_tokens) for job in batch.view.running if not job.best_effort])
    return taken_s + max(limit_s - taken_s, 0.0) * max(1.0 - held / (SCARCE * kv.total_blocks), 0.0)


def _draft(batch: OpenBatch, decodes: Sequence[Job], speculation: SpeculationLengths, limit_s: float) -> None:
    """Draft tokens for decodes in the batch, as far as tokens, blocks and its duration allow."""
    if not speculation:
        return
    wanted = [
        (job, drafts)
        for job in decodes
        if (drafts := min(speculation.get(job.request.tier, 0), job.output_tokens - job.generated_tokens - 1))
        > 0
        and job.request.id in batch.tokens
    ]
    if batch.draft_all(wanted, limit_s):
        return
    for job, most in wanted:
        drafts = min(most, batch.left_tokens)
        if drafts == 0:
            return
        blocks = batch.blocks_wanted(job, 1 + drafts) - batch.blocks_wanted(job, 1)
        if blocks <= batch.free_blocks and batch.seconds_drafting(drafts) <= limit_s:
            batch.draft(job, drafts)


def _decode(batch: OpenBatch, decodes: Sequence[Job], victims: Victims) -> None:
    """One token for each decode that has room, the most urgent first."""
    if batch.decode_all(decodes):
        return
    for job in sorted(decodes, key=deadline_order):
        if job.request.id in batch.preempted or not batch.left_tokens:
            continue
        if batch.make_room(batch.blocks_wanted(job, 1), 0, victims.of(job)):
            batch.add(job, 1)


def _prefill(batch: OpenBatch, prompts: Sequence[Job], victims: Victims, limit_s: float) -> float:
    """Chunks of prompts by deadline, as the batch has room; and how long it may be after that."""
    for job in prompts:
        if job.request.id in batch.preempted:
            continue
        shortened_s = batch.add_prompt(job, limit_s, victims.of(job))
        if shortened_s is None:
            break
        limit_s = shortened_s
    return limit_s
