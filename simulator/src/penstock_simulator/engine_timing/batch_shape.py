"""The work of one iteration, as far as its duration depends on it."""

from typing import NamedTuple

from penstock_core.timing.time_model import BatchWork, chunk_work


class Chunk(NamedTuple):
    """A prefill chunk: its tokens, and the prompt tokens computed before it."""

    tokens: int
    context_tokens: int


class BatchShape(NamedTuple):
    """The shape of one iteration.

    chunks: prefill chunks.
    decodes: requests that decode.
    context_tokens: KV cache tokens that the decodes read, in total.
    draft_tokens: draft tokens verified, in total.
    spec_steps: drafter steps, which is the longest draft.
    """

    chunks: tuple[Chunk, ...] = ()
    decodes: int = 0
    context_tokens: int = 0
    draft_tokens: int = 0
    spec_steps: int = 0

    @property
    def tokens(self) -> int:
        """All tokens in the batch."""
        return sum(chunk.tokens for chunk in self.chunks) + self.decodes + self.draft_tokens

    def work(self) -> BatchWork:
        """Return this work in the units of the planner's time model."""
        prefill_work = sum(chunk_work(*chunk) for chunk in self.chunks)
        return BatchWork(self.tokens, self.context_tokens, prefill_work, self.spec_steps)
