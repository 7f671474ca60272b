"""One iteration of an engine as values: its batch, and its results."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from penstock_core.domain.request import Job, RequestId
from penstock_core.timing.acceptance_rate import Drafted

from penstock_simulator.engine_timing.batch_shape import BatchShape, Chunk
from penstock_simulator.prefix_cache.prefix_cache import RequestBlocks


class Finish(StrEnum):
    """OpenAI's `finish_reason`."""

    STOP = "stop"  # the model ended its answer
    LENGTH = "length"  # the answer reached its token limit


class InvalidStep(Exception):
    """A policy's step that the engine cannot execute."""


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """A request inside the engine.

    answer_tokens: true length of its answer, which no policy can read.
    thinking_tokens: how many of them are thinking tokens, which come first; 0 once they are generated.
    blocks: KV blocks that it holds; 0 while it waits.
    decoding: whether exactly its last token is pending.
    aborted: whether it was aborted while an iteration computed it.
    preempted: whether it has been preempted.
    next_event_tokens: number of generated tokens at which something other than one more token happens.
    kv: which blocks, if the engine has a prefix cache. A waiting request may hold the blocks of its prefix.
    """

    job: Job
    answer_tokens: int
    thinking_tokens: int = 0
    blocks: int = 0
    decoding: bool = False
    aborted: bool = False
    preempted: bool = False
    next_event_tokens: int = 0
    kv: RequestBlocks | None = None

    def __post_init__(self) -> None:
        self.update_next_event()

    def update_next_event(self) -> None:
        """Set `next_event_tokens`: the end, the end of thinking or the predicted length."""
        predicted = max(self.job.output_tokens - 1, self.job.generated_tokens + 1)
        ends = self.thinking_tokens or self.answer_tokens
        self.next_event_tokens = min(self.answer_tokens, ends, predicted)

    def ends_thinking(self) -> bool:
        """Return whether the thinking has just ended."""
        return 0 < self.thinking_tokens <= self.job.generated_tokens


class Grant(NamedTuple):
    """The part of a request that an iteration computes, except decodes without draft tokens.

    tokens: pending tokens that it computes; computing the last one generates a token.
    drafts: draft tokens verified with it, for a decode.
    """

    entry: ActiveRequest
    tokens: int
    drafts: int

    @property
    def emits(self) -> bool:
        """Whether it computes the last pending token, and so generates one."""
        return self.tokens == self.entry.job.pending_tokens

    @property
    def kv_tokens(self) -> int:
        """Most KV cache entries that it needs at the end; drafts beyond the answer need none."""
        job = self.entry.job
        longest = job.request.prompt_tokens + self.entry.answer_tokens
        return min(job.computed_tokens + self.tokens + self.drafts, longest)


@dataclass(frozen=True, slots=True)
class Iteration:
    """The batch of one iteration.

    decodes: requests that decode one token without drafts. They are most of a batch, hence have no grant.
    grants: prefill chunks, and decodes with draft tokens.
    preempted: jobs preempted before it, by the step or because blocks ran out.
    """

    decodes: list[ActiveRequest] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    preempted: tuple[RequestId, ...] = ()

    def chunks(self) -> dict[RequestId, int]:
        """Return the prefill tokens of each request. Valid before the iteration's end."""
        return {g.entry.job.request.id: g.tokens for g in self.grants if not g.entry.decoding}

    def resting(self, running: Iterable[Job]) -> frozenset[RequestId]:
        """Return the running decodes that are not in the batch. Valid before the iteration's end."""
        computed = {entry.job.request.id for entry in self.decodes}
        computed.update([grant.entry.job.request.id for grant in self.grants])
        return frozenset(
            [job.request.id for job in running if job.decoding and job.request.id not in computed]
        )

    def shape(self) -> BatchShape:
        """Return its shape. Valid before the iteration's end, which advances the jobs."""
        drafting = [g for g in self.grants if g.entry.decoding]
        chunks = [Chunk(g.tokens, g.entry.job.computed_tokens) for g in self.grants if not g.entry.decoding]
        contexts = [entry.job.computed_tokens + 1 for entry in self.decodes]  # a token attends to itself too
        contexts += [g.entry.job.computed_tokens + 1 for g in drafting]
        drafts = [g.drafts for g in drafting]
        return BatchShape(tuple(chunks), len(contexts), sum(contexts), sum(drafts), max(drafts, default=0))


@dataclass(frozen=True, slots=True)
class IterationResult:
    """The results of an iteration.

    tokens: generated tokens by job id, without zeros.
    finished: jobs whose answer ended, and why.
    preempted: as in the iteration.
    drafted: draft tokens and accepted draft tokens of every decode that had any.
    cached_tokens: tokens found in the prefix cache, of each request that this iteration started.
    """

    tokens: Mapping[RequestId, int] = field(default_factory=dict)
    finished: Mapping[RequestId, Finish] = field(default_factory=dict)
    preempted: tuple[RequestId, ...] = ()
    drafted: Sequence[Drafted] = ()
    cached_tokens: Mapping[RequestId, int] = field(default_factory=dict)
