"""One immutable picture of a replica: everything a policy may look at, and nothing it may not.

The engine makes one at every iteration boundary, the sidecar one at every admission. The planner's belief
about time is part of the picture, because it changes as the engine is observed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock_core.domain.request import Job, RequestId, advance
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import TimeModel


@dataclass(frozen=True, slots=True)
class KvCache:
    """Blocks of the KV cache. A block holds `block_tokens` tokens of one request."""

    total_blocks: int
    free_blocks: int
    block_tokens: int

    def blocks_for(self, tokens: int) -> int:
        """Blocks that `tokens` tokens of one request occupy."""
        return -(-tokens // self.block_tokens)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the engine that no decision may pass.

    batch_tokens: most tokens in one iteration.
    running: most requests that hold KV at once.
    """

    batch_tokens: int = 8192
    running: int = 256


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A replica at one moment.

    now_s: the moment, on the clock that the jobs' times are on.
    busy_until_s: end of the iteration under way, which cannot be interrupted; `now_s` where there is none.
    running: jobs that hold KV, in the order they were started.
    waiting: jobs that hold none, in order of arrival; preempted ones too.
    speculation: what the engine can draft, and how well by what was seen so far; None where it cannot.
    resting: running decodes that the iteration under way leaves out: its end brings no token of theirs.
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


def at_iteration_end(
    view: ReplicaView, chunks: Mapping[RequestId, int], resting: frozenset[RequestId] = frozenset()
) -> ReplicaView:
    """The view with the prefills of the iteration under way done, as they will be at `busy_until_s`.

    chunks: tokens that it computes of each, by id. What cannot be interrupted need not be planned again. Its
    decodes are left as they are, a token short, which errs to the safe side. resting: those it leaves out.
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
