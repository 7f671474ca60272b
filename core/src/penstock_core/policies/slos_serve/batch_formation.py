"""Batch formation [SLOs-Serve, Algorithm 2], as the first batch of a plan (`batch_plan`).

Decodes take their tokens first, with the draft tokens of the plan's rule; the rest of the batch goes to
prefills, by deadline, and then to best effort. The plan determines the duration of the batch. A prefill that
finishes in it and is due before its end shortens it to that deadline.

Best effort may lengthen a batch as far as deadlines allow while memory is plentiful, and less the more of the
KV cache admitted requests hold (`PLENTIFUL`, `SCARCE`): decodes that take longer hold their blocks longer,
which reduces admission. Prompts that are mostly cached are short, and lose their prefix if they wait, so they
may lengthen batches until memory is scarce.

If blocks or slots run out, other requests are preempted (`Victims`): best-effort ones first, started last
first. For a request that already runs, admitted ones with later deadlines follow, the latest deadline first.
That only happens after a wrong prediction, since admission has counted the blocks of all requests.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from penstock_core.batch.best_effort import fill_surplus
from penstock_core.batch.open_batch import OpenBatch
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, deadline_order, holding_kv
from penstock_core.policies.slos_serve.batch_plan import FirstBatch, first_batch
from penstock_core.policies.slos_serve.workload import Workload

PLENTIFUL, SCARCE = 0.5, 0.9
"""Shares of the KV cache held by admitted requests: up to the first one decodes and mostly cached prompts of
best effort lengthen batches freely, from the second one not at all. Other prompts do so in proportion to what
is left until the first one. With the bound of cached prompts for all of them, capacities are 3 to 6 % less;
with that of the others, late turns of sessions wait beside free time until their prefixes are evicted (ADR
0056)."""


class Victims:
    """The jobs of one step that may be preempted. Each is returned once (`OpenBatch.make_room`)."""

    def __init__(self, best_effort: Sequence[Job], admitted: Sequence[Job]) -> None:
        """Take the best-effort jobs in the order they were started."""
        self._best_effort = holding_kv(best_effort)
        self._all_admitted = admitted

    @cached_property
    def _admitted(self) -> list[Job]:
        """Return the admitted jobs by deadline, sorted on first use."""
        return sorted(holding_kv(self._all_admitted), key=deadline_order)

    def of(self, job: Job) -> Iterator[Job]:
        """Yield jobs to preempt for this one.

        A running job is itself admitted, so `_admitted` is never empty.
        """
        while self._best_effort:
            yield self._best_effort.pop()
        while job.holds_kv and deadline_order(self._admitted[-1]) > deadline_order(job):
            yield self._admitted.pop()


def form_batch(workload: Workload, first: FirstBatch | None = None) -> Step:
    """Return the largest batch that makes no token of an admitted request late.

    first: the plan's first batch if it is known already, as with a protected best-effort request.
    """
    admitted, surplus = workload.admitted, workload.best_effort
    repeatable = first is None and not surplus  # whether best effort runs depends on time
    victims = Victims(surplus, admitted.jobs)
    first = first or first_batch(admitted, alone=not surplus)
    batch = OpenBatch(_bounded(admitted.view, first.most_tokens))
    decodes = admitted.decodes
    if first.skipped:
        decodes = [job for place, job in enumerate(decodes) if place not in first.skipped]
    batch.decode_most(decodes, victims.of)
    batch.draft_most(decodes, first.speculation, first.limit_s)
    limit_s = batch.prefill_most(admitted.prompts, victims.of, first.limit_s)
    if surplus:
        fill_surplus(batch, surplus, *_surplus_limits_s(batch, limit_s))
    return batch.repeatable_step() if repeatable else batch.step()


def _bounded(view: ReplicaView, most_tokens: int) -> ReplicaView:
    """Return the view with at most this many tokens in a batch."""
    if most_tokens >= view.limits.batch_tokens:
        return view
    return replace(view, limits=replace(view.limits, batch_tokens=most_tokens))


def _surplus_limits_s(batch: OpenBatch, limit_s: float) -> tuple[float, float]:
    """Return the durations up to which best effort may lengthen the batch.

    The first is for decodes and mostly cached prompts, the second for other prompts.
    """
    if not batch.tokens:
        return limit_s, limit_s
    held, taken_s = _share_of_admitted(batch), batch.seconds()
    free_s = max(limit_s - taken_s, 0.0)
    cached, others = _share_of_time(held, PLENTIFUL, SCARCE), _share_of_time(held, 0.0, PLENTIFUL)
    return taken_s + free_s * cached, taken_s + free_s * others


def _share_of_admitted(batch: OpenBatch) -> float:
    """Return the share of the KV cache that admitted requests hold. What they share counts once."""
    kv = batch.view.kv
    shared = kv.shared_blocks or {}
    surplus = sum(
        [
            kv.blocks_for(job.computed_tokens) - shared.get(job.request.id, 0)
            for job in batch.view.running
            if job.best_effort
        ]
    )
    return (kv.total_blocks - kv.free_blocks - surplus) / kv.total_blocks


def _share_of_time(held: float, plentiful: float, scarce: float) -> float:
    """Return the share of the free time to use while admitted requests hold this share of memory."""
    return min(max((scarce - held) / (scarce - plentiful), 0.0), 1.0)
