"""An immutable view of a replica: all inputs of a policy's decision.

The engine makes one at every iteration boundary, the sidecar at every admission. The time model is part of
the view, because it is corrected while the engine runs.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from penstock_core.domain.request import Job, RequestId, advance, promoted
from penstock_core.domain.shared_prefixes import SharedPrefixes, shared_blocks
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import TimeModel


@dataclass(frozen=True, slots=True)
class KvCache:
    """Capacity of the KV cache in blocks. A block holds `block_tokens` tokens.

    free_blocks: blocks that no request holds, including those in the prefix cache.
    shared_blocks: of running requests, by id, the blocks that other requests hold too: preempting one alone
        does not free them. None without a prefix cache; requests with none may be absent.
    shared_prefixes: which requests, running or not, hold the same leading blocks. None if it is not
        known: forecasts then count them for each request.
    others_blocks: blocks that requests of other clients of the engine hold, not part of `total_blocks`.
    """

    total_blocks: int
    free_blocks: int
    block_tokens: int
    shared_blocks: Mapping[RequestId, int] | None = None
    shared_prefixes: SharedPrefixes | None = None
    others_blocks: int = 0

    @property
    def idle_blocks(self) -> int:
        """Blocks of an idle engine."""
        return self.total_blocks + self.others_blocks

    def with_shared_prefixes(self, prefixes: SharedPrefixes) -> "KvCache":
        """Return the cache with these common prefixes of its requests."""
        return replace(self, shared_blocks=shared_blocks(prefixes), shared_prefixes=prefixes)

    def blocks_for(self, tokens: int) -> int:
        """Return the blocks that `tokens` tokens of one request occupy."""
        return -(-tokens // self.block_tokens)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the engine.

    batch_tokens: most tokens in one iteration.
    running: most requests that hold KV at once.
    """

    batch_tokens: int = 8192
    running: int = 256


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A replica at one moment.

    now_s: the moment, on the clock of the jobs' times.
    busy_until_s: end of the iteration in progress, which cannot be interrupted; `now_s` if there is none.
    running: jobs that hold KV, in the order they were started.
    waiting: jobs that hold none, in order of arrival; preempted ones too.
    speculation: the engine's speculation with measured acceptance rates; None without a drafter.
    resting: running decodes that are not in the iteration in progress.
    """

    now_s: float
    busy_until_s: float
    running: tuple[Job, ...]
    waiting: tuple[Job, ...]
    kv: KvCache
    limits: Limits
    model: TimeModel
    speculation: Speculation | None = None
    resting: frozenset[RequestId] = frozenset()


def with_promoted(view: ReplicaView, ids: Collection[RequestId]) -> ReplicaView:
    """Return the view with these best-effort jobs admitted."""
    if not ids:
        return view
    running, waiting = (
        tuple([promoted(job) if job.request.id in ids else job for job in jobs])
        for jobs in (view.running, view.waiting)
    )
    return replace(view, running=running, waiting=waiting)


def at_iteration_end(
    view: ReplicaView, chunks: Mapping[RequestId, int], resting: frozenset[RequestId] = frozenset()
) -> ReplicaView:
    """Return the view after the prefills of the iteration in progress, at `busy_until_s`.

    chunks: prompt tokens that the iteration computes, by request id. The token that it generates for each
        decode is not counted, which is pessimistic.
    resting: decodes that are not in the iteration.
    """
    if resting:
        view = replace(view, resting=resting)
    if not chunks:
        return view
    running = tuple(
        _after_chunk(job, chunks[job.request.id], view.busy_until_s) if job.request.id in chunks else job
        for job in view.running
    )
    return replace(view, running=running)


def _after_chunk(job: Job, tokens: int, end_s: float) -> Job:
    tokens = min(tokens, job.pending_tokens)
    return advance(job, tokens, int(tokens == job.pending_tokens), end_s)
