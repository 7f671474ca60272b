"""Which requests are preempted if an iteration needs more KV blocks than are free.

As in vLLM, the request started last is preempted first, until the rest fits. Two kinds are preempted before
it: requests that this iteration would start, which stay in the queue, and best-effort requests.
"""

from collections.abc import Sequence

from penstock_core.domain.replica_view import KvCache

from penstock_simulator.engine.iteration import ActiveRequest, Iteration


def growth_blocks(entry: ActiveRequest, kv_tokens: int, kv: KvCache) -> int:
    """Return the free blocks needed for `kv_tokens`, including cached ones that no request holds."""
    job = entry.job
    if job.unheld_blocks is None:
        return max(kv.blocks_for(kv_tokens) - entry.blocks, 0)
    return kv.blocks_for(kv_tokens) - kv.blocks_for(job.computed_tokens) + job.unheld_blocks


def blocks_freed(entry: ActiveRequest, kv: KvCache) -> int:
    """Return how many blocks preempting a running request alone frees."""
    shared = kv.shared_blocks
    return entry.blocks if shared is None else entry.blocks - shared.get(entry.job.request.id, 0)


def missing_blocks(wanted: Iteration, kv: KvCache) -> int:
    """Return how many more blocks than are free an iteration needs; negative if some are left."""
    return sum(_needed_blocks(wanted, kv).values()) - kv.free_blocks


def preempt_for_growth(
    wanted: Iteration, running: Sequence[ActiveRequest], kv: KvCache
) -> tuple[Iteration, list[ActiveRequest]]:
    """Return the part of an iteration that fits into KV memory, and the running requests to preempt for it.

    running: all requests that hold blocks, in the order in which they were started.
    """
    needed = _needed_blocks(wanted, kv)
    missing = sum(needed.values()) - kv.free_blocks
    out: dict[int, ActiveRequest] = {}
    for entry in _preemption_order(wanted, running) if missing > 0 else ():
        out[id(entry)] = entry
        missing -= blocks_freed(entry, kv) + needed.get(id(entry), 0)
        if missing <= 0:
            break
    return _without(wanted, out), [entry for entry in out.values() if entry.blocks]


def _needed_blocks(wanted: Iteration, kv: KvCache) -> dict[int, int]:
    """Return the blocks that each request of an iteration needs."""
    full = [entry for entry in wanted.decodes if entry.job.computed_tokens == entry.blocks * kv.block_tokens]
    needed = {id(g.entry): growth_blocks(g.entry, g.kv_tokens, kv) for g in wanted.grants}
    return needed | {id(entry): 1 for entry in full}


def _preemption_order(wanted: Iteration, running: Sequence[ActiveRequest]) -> list[ActiveRequest]:
    """Return all candidates, the first to be preempted first."""
    started = [g.entry for g in reversed(wanted.grants) if g.entry.blocks == 0]
    return [*started, *sorted(reversed(running), key=lambda entry: not entry.job.best_effort)]


def _without(wanted: Iteration, out: dict[int, ActiveRequest]) -> Iteration:
    if not out:
        return wanted
    preempted = [entry.job.request.id for entry in out.values() if entry.blocks]
    return Iteration(
        [entry for entry in wanted.decodes if id(entry) not in out],
        [grant for grant in wanted.grants if id(grant.entry) not in out],
        (*wanted.preempted, *preempted),
    )
