"""Jobs as NumPy columns, so that arithmetic over hundreds of jobs takes a few array operations."""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from penstock_core.compilation.arrays import Bools, Floats, Ints
from penstock_core.domain.request import Job, transposed


class JobColumns(NamedTuple):
    """One element per job, named as in `Job`; `size_tokens` are its prompt and its generated tokens.

    output_tokens_left: at least one. tpot_s: TPOT target, infinite without one.
    """

    size_tokens: Ints
    computed_tokens: Ints
    generated_tokens: Ints
    output_tokens_left: Ints
    due_s: Floats
    tpot_s: Floats

    def of(self, chosen: Bools | Ints) -> "JobColumns":
        """Return some of the jobs."""
        return JobColumns(
            self.size_tokens[chosen],
            self.computed_tokens[chosen],
            self.generated_tokens[chosen],
            self.output_tokens_left[chosen],
            self.due_s[chosen],
            self.tpot_s[chosen],
        )

    @property
    def pending_tokens(self) -> Ints:
        """Return the tokens whose keys and values are not computed yet."""
        return self.size_tokens - self.computed_tokens

    @property
    def decoding(self) -> Bools:
        """Return whether computing one more token generates one."""
        decoding: Bools = (self.generated_tokens > 0) & (self.pending_tokens == 1)
        return decoding


def columns(jobs: Sequence[Job]) -> JobColumns:
    """Return the columns of these jobs, in order."""
    of, count = transposed(jobs), len(jobs)
    generated = np.fromiter(of.generated_tokens, np.int64, count)
    return JobColumns(
        np.fromiter([request.prompt_tokens for request in of.request], np.int64, count) + generated,
        np.fromiter(of.computed_tokens, np.int64, count),
        generated,
        np.maximum(np.fromiter(of.output_tokens, np.int64, count) - generated, 1),
        np.fromiter(of.due_s, np.float64, count),
        np.fromiter([inf if tpot_s is None else tpot_s for tpot_s in of.tpot_s], np.float64, count),
    )
