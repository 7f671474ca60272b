"""What one iteration computes, as the GPU sees it."""

from typing import NamedTuple

from penstock_core.timing.time_model import BatchWork, chunk_work


class Chunk(NamedTuple):
    """A part of a prompt: its tokens, and those computed before it."""

    tokens: int
    context_tokens: int


class BatchShape(NamedTuple):
    """One iteration.

    chunks: prefill chunks.
    decodes: requests that take one token, beside their drafts.
    context_tokens: tokens in the KV cache that those decodes read, summed.
    draft_tokens: tokens drafted and verified beside them, summed.
    spec_steps: drafter steps of the decode with most.
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
        """The same as a planner accounts for it."""
        prefill_work = sum(chunk_work(*chunk) for chunk in self.chunks)
        return BatchWork(self.tokens, self.context_tokens, prefill_work, self.spec_steps)
