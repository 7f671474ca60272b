"""AccelGen's batching on two resources [AccelGen, §4.4, Algorithms 1 and 2].

Algorithm 1: urgent requests and running decodes first, in ascending remaining time. If they need more tokens
or blocks than there are, those with the most remaining time skip the iteration (tokens) or are preempted
(blocks). A decode that would be late by skipping is served before prompts: it takes one token, and a prompt
can be cut.

Algorithm 2: of the other prompts, those whose remaining time is within γ of the first. A prompt that does not
fit whole is cut to the remaining tokens or blocks. Repeatedly, the prompt is added whose demand is nearest to
the remaining resources, both scaled to their totals, until none fits. Then the prompts of the next γ follow,
if tokens and blocks remain.

Exclusive allocation (§4.2): a prompt is only cut while no other is unfinished, unless it is urgent. One long
prompt at a time has the KV cache to itself and frees it sooner; whole prompts overtake it.

Two rules bound preemption, which would otherwise cause further preemption once the cache is full. A prompt
starts only if there are free blocks for the whole prompt besides those that unfinished prompts still need, as
the paper's engine allocated them. By the paper's pseudocode it would start with any free blocks; once
half-computed prompts fill the cache, only preemption frees blocks. And an urgent prompt takes blocks only
from a decode that has time to be computed again; otherwise one target would be met by missing another.
"""

from collections.abc import Sequence
from math import hypot
from typing import NamedTuple

from penstock_core.batch.open_batch import OpenBatch
from penstock_core.batch.ordered_batch import add_running
from penstock_core.domain.request import Job, RequestId, holding_kv
from penstock_core.policies.accelgen.remaining_time import Claim
from penstock_core.policies.accelgen.token_budget import Budget


class ResourceDemand(NamedTuple):
    """Tokens and blocks of a prompt in an iteration."""

    tokens: int
    blocks: int


class Prompt(NamedTuple):
    """A prompt in the group. whole: demand of all of it."""

    job: Job
    whole: ResourceDemand


def serve_urgent(batch: OpenBatch, claims: Sequence[Claim], room: Budget, best_effort: Sequence[Job]) -> None:
    """Add decodes that cannot wait, then urgent prompts and other decodes [Algorithm 1, lines 1-4].

    Both parts are in order of remaining time. A decode that needs a block preempts the job with the most
    remaining time; an urgent prompt preempts only decodes with enough remaining time to be computed again.
    """
    in_order = sorted(claims, key=lambda claim: (_can_skip_iteration(claim, room), *_by_remaining_s(claim)))
    idle = holding_kv(best_effort)
    victims = reversed([*holding_kv(c.job for c in in_order), *idle])
    patient = [c.job for c in in_order if c.job.decoding and c.remaining_s > c.recompute_s]
    for claim in in_order:
        job, left = claim.job, room.tokens - batch.work.tokens
        if left <= 0:
            return
        if job.request.id in batch.preempted:
            continue
        if job.decoding:
            add_running(batch, job, victims)
        elif claim.urgent:
            tokens = min(left, batch.largest_chunk(job, room.limit_s))
            reserved = _reserved(batch, claims)
            others = sum(reserved.values()) - reserved.get(job.request.id, 0)
            _add_urgent(batch, job, tokens, others, [*patient, *idle])


def _add_urgent(batch: OpenBatch, job: Job, tokens: int, spared: int, patient: Sequence[Job]) -> None:
    """Add the prompt, if preempting `patient` jobs can free the blocks that it needs.

    spared: blocks that other unfinished prompts still need.
    """
    slots, blocks = int(not job.holds_kv), batch.blocks_wanted(job, job.pending_tokens) + spared
    others = [v for v in reversed(patient) if not _decided(batch, v)]
    could_be_free = batch.free_blocks + sum([batch.blocks_freed(v) for v in others])
    if tokens > 0 and blocks <= could_be_free and slots <= batch.free_slots + len(others):
        batch.make_room(blocks, slots, others)
        batch.add(job, tokens)


def select(batch: OpenBatch, claims: Sequence[Claim], room: Budget, gamma_s: float) -> None:
    """Add prompts to the rest of the batch, the least remaining time first [Algorithm 1, lines 5-7]."""
    reserved = _reserved(batch, claims)
    queue = sorted([c for c in claims if not _decided(batch, c.job)], key=_by_remaining_s)
    while queue and _left_tokens(batch, room) > 0:
        last_s = queue[0].remaining_s + gamma_s
        group = [_prompt(batch, claim.job) for claim in queue if claim.remaining_s <= last_s]
        queue = queue[len(group) :]
        _fill_with_nearest(batch, group, room, reserved)


def _fill_with_nearest(
    batch: OpenBatch, group: list[Prompt], room: Budget, reserved: dict[RequestId, int]
) -> None:
    """Add the prompt nearest to the remaining resources until none fits [Algorithm 2]. Updates `reserved`."""
    while group:
        left = ResourceDemand(_left_tokens(batch, room), batch.free_blocks)
        unreserved = left.blocks - sum(reserved.values())
        demands = {
            i: demand
            for i, prompt in enumerate(group)
            if (demand := _demand(batch, prompt, ResourceDemand(left.tokens, unreserved), reserved))
        }
        if not demands:
            return
        nearest = min(demands, key=lambda i: _wasted(batch, group[i], demands[i], left, room.tokens))
        job, whole = group.pop(nearest)
        tokens = min(demands[nearest].tokens, batch.largest_chunk(job, room.limit_s))
        if tokens == whole.tokens or (tokens > 0 and _may_be_cut(job, reserved)):
            batch.add(job, tokens)
            reserved.pop(job.request.id, None)
            if tokens < whole.tokens:
                reserved[job.request.id] = _blocks_after(batch, job, tokens)


def _wasted(
    batch: OpenBatch, prompt: Prompt, demand: ResourceDemand, left: ResourceDemand, all_tokens: int
) -> tuple[float, int]:
    """Return the sort key: smallest distance first; of equal ones a prompt that is not cut."""
    unused = distance(demand, left, all_tokens, batch.view.kv.total_blocks)
    return unused, prompt.whole.tokens - demand.tokens


def distance(demand: ResourceDemand, left: ResourceDemand, all_tokens: int, all_blocks: int) -> float:
    """Return the unused share of both resources after this demand."""
    return hypot((left.tokens - demand.tokens) / all_tokens, (left.blocks - demand.blocks) / all_blocks)


def _prompt(batch: OpenBatch, job: Job) -> Prompt:
    pending = job.pending_tokens
    return Prompt(job, ResourceDemand(pending, batch.blocks_wanted(job, pending)))


def _left_tokens(batch: OpenBatch, room: Budget) -> int:
    return min(room.tokens - batch.work.tokens, batch.left_tokens)


def _demand(
    batch: OpenBatch, prompt: Prompt, unreserved: ResourceDemand, reserved: dict[RequestId, int]
) -> ResourceDemand | None:
    """Return the prompt's demand, cut to the remaining resources if allowed; None if it does not fit.

    unreserved: resources beside the blocks that running prompts still need.
    """
    job, whole = prompt
    if not job.holds_kv and (whole.blocks > unreserved.blocks or batch.free_slots < 1):
        return None
    if whole.tokens > unreserved.tokens and not _may_be_cut(job, reserved):
        return None
    tokens = min(whole.tokens, unreserved.tokens, batch.room_tokens(job))
    return ResourceDemand(tokens, batch.blocks_wanted(job, tokens)) if tokens > 0 else None


def _may_be_cut(job: Job, reserved: dict[RequestId, int]) -> bool:
    """Return whether a prompt may be cut: it is running already, or no other is."""
    return not reserved or job.request.id in reserved


def _reserved(batch: OpenBatch, claims: Sequence[Claim]) -> dict[RequestId, int]:
    """Return the blocks still needed by prompts that are half computed after this iteration."""
    reserved: dict[RequestId, int] = {}
    for job in [claim.job for claim in claims if not claim.job.decoding]:
        tokens = batch.tokens.get(job.request.id, 0)
        under_way = (job.holds_kv or tokens > 0) and job.request.id not in batch.preempted
        if under_way and tokens < job.pending_tokens:
            reserved[job.request.id] = _blocks_after(batch, job, tokens)
    return reserved


def _blocks_after(batch: OpenBatch, job: Job, tokens: int) -> int:
    """Return the blocks that the rest of a prompt needs after this many more of its tokens."""
    return batch.blocks_wanted(job, job.pending_tokens) - batch.blocks_wanted(job, tokens)


def _decided(batch: OpenBatch, job: Job) -> bool:
    """Return whether the batch already has the job, or has preempted it."""
    return job.request.id in batch.tokens or job.request.id in batch.preempted


def _can_skip_iteration(claim: Claim, room: Budget) -> bool:
    return not claim.job.decoding or claim.remaining_s > room.longest_s


def _by_remaining_s(claim: Claim) -> tuple[float, str]:
    return claim.remaining_s, claim.job.request.id
