"""The picture that a policy decides by, of vLLM's requests as they will be when the next step begins.

vLLM that schedules asynchronously plans a step while the one before is still being computed. Its counts are
already those at that step's end, except for drafts, which it counts as accepted until it knows; a policy is
shown them as refused, so nobody is taken to be further than is certain. The step that is planned begins when
the one under way ends, so that is the picture's moment.

Some running requests are left out, because vLLM will not compute them in this step whatever is planned: those
whose last token is under way, and those that wait for their turn in a pipeline. Their memory and their seats
are theirs still.
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, advance, after_each
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import TimeModel

from penstock_vllm.engine import EngineRequest
from penstock_vllm.ledger import Held


class Bounds(NamedTuple):
    """What no step may pass. Bounds of the engine, or lower ones that were set.

    longest_tokens: most tokens of one request whose KV is ever computed.
    """

    batch_tokens: int
    running: int
    longest_tokens: int


class Memory(NamedTuple):
    """vLLM's KV cache. groups: layers of one kind each hold blocks of their own for the same tokens."""

    total_blocks: int
    free_blocks: int
    block_tokens: int
    groups: int = 1

    @property
    def kv(self) -> KvCache:
        """As policies count it: a block is one for every group of layers."""
        return KvCache(self.total_blocks // self.groups, self.free_blocks // self.groups, self.block_tokens)


class Ahead(Enum):
    """What is still being computed while the next step is planned."""

    OF_NOTHING = auto()
    OF_ONE_EACH = auto()  # one step, of one token of everybody who runs
    OF_MORE = auto()


def view_of(
    running: Sequence[Held],
    waiting: tuple[Job, ...],
    *,
    memory: Memory,
    bounds: Bounds,
    model: TimeModel,
    speculation: Speculation | None,
    step: int,
    begins_s: float,
    ahead: Ahead,
) -> ReplicaView:
    """The picture for step number `step`, which begins at `begins_s`."""
    jobs = _running_jobs(running, bounds, step, begins_s, ahead)
    hidden = len(running) - len(jobs)
    limits = Limits(bounds.batch_tokens, max(bounds.running - hidden, 0))
    return ReplicaView(begins_s, begins_s, jobs, waiting, memory.kv, limits, model, speculation)


def _running_jobs(
    running: Sequence[Held], bounds: Bounds, step: int, begins_s: float, ahead: Ahead
) -> tuple[Job, ...]:
    """Jobs that can be computed in this step."""
    if ahead is Ahead.OF_NOTHING:
        return tuple([held.job for held in running if held.planned])
    going = [
        held for held in running if held.planned and can_go_on(held.request, bounds.longest_tokens, step)
    ]
    if ahead is Ahead.OF_ONE_EACH:
        return tuple(after_each([held.job for held in going], [begins_s]))
    seen = [foreseen(held, begins_s) for held in going]
    return tuple([job for job in seen if job.pending_tokens > 0])


def can_go_on(request: EngineRequest, longest_tokens: int, step: int) -> bool:
    """Whether vLLM would compute this running request in this step."""
    coming, computed = request.num_output_placeholders, request.num_computed_tokens
    ends = coming > 0 and computed + 2 - coming >= request.num_prompt_tokens + request.max_tokens
    return not ends and computed < longest_tokens and step >= request.next_decode_eligible_step


def foreseen(held: Held, end_s: float) -> Job:
    """A running job as it will be when the steps under way have ended, every draft refused."""
    request, job, drafts = held.request, held.job, held.drafts_under_way
    new_tokens = max(request.num_output_placeholders - drafts, 0)
    computed = request.num_computed_tokens - drafts - job.computed_tokens
    if not computed and not new_tokens:
        return job
    return advance(job, computed, new_tokens, end_s)
