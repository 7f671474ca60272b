"""One iteration of an engine, as values: what it computes while it runs and what it brings out at its end."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from penstock_core.domain.request import Job, RequestId
from penstock_core.timing.acceptance_rate import Drafted

from penstock_simulator.batch_shape import BatchShape, Chunk


class Finish(StrEnum):
    """Why an answer ended, in OpenAI's words."""

    STOP = "stop"  # the model had said what it had to say
    LENGTH = "length"  # its token limit cut it off


class ImpossibleStep(Exception):
    """A policy asked for what no engine could do. Nothing has been changed."""


@dataclass(slots=True, eq=False)
class Seat:
    """A request inside the engine.

    answer_tokens: how long its answer will really be, which no policy is shown.
    thinking_tokens: how many of them are thinking, before the answer proper.
    blocks: KV blocks that it holds; 0 while it waits.
    decoding: exactly its last token is pending.
    gone: aborted while an iteration computed it.
    news_tokens: with how many generated tokens the next happens that is more than one token again.
    """

    job: Job
    answer_tokens: int
    thinking_tokens: int = 0
    blocks: int = 0
    decoding: bool = False
    gone: bool = False
    news_tokens: int = 0

    def __post_init__(self) -> None:
        self.look_out()

    def look_out(self) -> None:
        """Set `news_tokens` to whichever comes first: the end, the end of thinking, the predicted length."""
        predicted = max(self.job.output_tokens - 1, self.job.generated_tokens + 1)
        ends = self.thinking_tokens or self.answer_tokens
        self.news_tokens = min(self.answer_tokens, ends, predicted)

    def ends_thinking(self) -> bool:
        """Whether the last token of thinking is out, and was not before."""
        return 0 < self.thinking_tokens <= self.job.generated_tokens


class Grant(NamedTuple):
    """A request's part in an iteration, where it is more than one plain decode.

    tokens: of its pending ones; with the last of them a token comes out.
    drafts: tokens of a decode that are verified beside it.
    """

    seat: Seat
    tokens: int
    drafts: int

    @property
    def emits(self) -> bool:
        """Whether it reaches the end of what is pending."""
        return self.tokens == self.seat.job.pending_tokens

    @property
    def kv_tokens(self) -> int:
        """Entries of the KV cache that it may have filled at the end; drafts past its answer need none."""
        job = self.seat.job
        longest = job.request.prompt_tokens + self.seat.answer_tokens
        return min(job.computed_tokens + self.tokens + self.drafts, longest)


@dataclass(frozen=True, slots=True)
class Iteration:
    """What is being computed.

    decodes: requests that decode one token: nearly all of a batch, so they come without a grant each.
    grants: prefill chunks, and decodes that speculate.
    preempted: jobs that lost their KV before it, by the step's wish or for want of blocks.
    """

    decodes: list[Seat] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    preempted: tuple[RequestId, ...] = ()

    def chunks(self) -> dict[RequestId, int]:
        """Tokens that it prefills of each request. Read before its end."""
        return {g.seat.job.request.id: g.tokens for g in self.grants if not g.seat.decoding}

    def resting(self, running: Iterable[Job]) -> frozenset[RequestId]:
        """Decodes among those that run which it leaves out. Read before its end."""
        computed = {seat.job.request.id for seat in self.decodes}
        computed.update([grant.seat.job.request.id for grant in self.grants])
        return frozenset(
            [job.request.id for job in running if job.decoding and job.request.id not in computed]
        )

    def shape(self) -> BatchShape:
        """As the GPU sees it. Read before the iteration's end, which moves its jobs on."""
        drafting = [g for g in self.grants if g.seat.decoding]
        chunks = [Chunk(g.tokens, g.seat.job.computed_tokens) for g in self.grants if not g.seat.decoding]
        contexts = [seat.job.computed_tokens + 1 for seat in self.decodes]  # a token attends to itself too
        contexts += [g.seat.job.computed_tokens + 1 for g in drafting]
        drafts = [g.drafts for g in drafting]
        return BatchShape(tuple(chunks), len(contexts), sum(contexts), sum(drafts), max(drafts, default=0))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an iteration brought out.

    tokens: job id -> tokens that came out, for those that had any.
    finished: jobs that ended with it, and why.
    preempted: as in the iteration.
    drafted: of every decode that speculated, how many drafts were accepted.
    """

    tokens: Mapping[RequestId, int] = field(default_factory=dict)
    finished: Mapping[RequestId, Finish] = field(default_factory=dict)
    preempted: tuple[RequestId, ...] = ()
    drafted: Sequence[Drafted] = ()
