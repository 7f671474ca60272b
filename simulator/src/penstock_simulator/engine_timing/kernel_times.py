"""Duration of an iteration from tables of measured kernels (`kernel_shapes/`).

Kernels run on one stream, so the duration is the sum of:

- kernels that depend on the batch's tokens: matrix products, the small kernels between them, all-reduce. The
  time is that of the next larger table entry, because the engine pads a batch to the next CUDA graph size and
  a matrix product computes whole tiles;
- logits, one row for every sequence that generates a token;
- attention of decodes, interpolated between measured batch sizes and contexts;
- attention of prefill chunks. The tables have whole prompts only, so a chunk costs the difference between the
  prompt up to its end and up to its start;
- drafter steps, in sequence;
- the engine's own work between iterations.
"""

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from penstock_simulator.engine_timing.batch_shape import BatchShape, Chunk

SHAPES = files(__package__) / "kernel_shapes"


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """Kernel times of one model, in ms. Fields as in the files; `attention_pair_ms` is per token pair."""

    tokens: Sequence[int]
    tokens_ms: Sequence[float]
    rows: Sequence[int]
    rows_ms: Sequence[float]
    decode_batches: Sequence[int]
    decode_contexts: Sequence[int]
    decode_ms: Sequence[Sequence[float]]
    prompts: Sequence[int]
    attention_pair_ms: Sequence[float]
    attention_launch_ms: float
    drafter_step_ms: float
    overhead_ms: float

    def seconds(self, shape: BatchShape) -> float:
        """Return the duration of an iteration without noise; 0 if it is empty."""
        tokens = shape.tokens
        if tokens == 0:
            return 0.0
        rows = shape.decodes + shape.draft_tokens + len(shape.chunks)
        total_ms = (
            self._padded_ms(tokens)
            + between(self.rows, self.rows_ms, rows)
            + self._decode_ms(shape.decodes, shape.context_tokens)
            + self._prefill_ms(shape.chunks)
            + shape.spec_steps * self.drafter_step_ms
            + self.overhead_ms
        )
        return total_ms / 1e3

    def _padded_ms(self, tokens: int) -> float:
        most = self.tokens[-1]
        if tokens > most:
            return self.tokens_ms[-1] * tokens / most
        return self.tokens_ms[bisect_left(self.tokens, tokens)]

    def _decode_ms(self, decodes: int, context_tokens: int) -> float:
        if decodes == 0:
            return 0.0
        mean = context_tokens / decodes
        batches = self.decode_batches
        above = min(max(bisect_left(batches, decodes), 1), len(batches) - 1)
        low_ms = between(self.decode_contexts, self.decode_ms[above - 1], mean)
        high_ms = between(self.decode_contexts, self.decode_ms[above], mean)
        share = (decodes - batches[above - 1]) / (batches[above] - batches[above - 1])
        return low_ms + share * (high_ms - low_ms)

    def _prefill_ms(self, chunks: Sequence[Chunk]) -> float:
        if not chunks:
            return 0.0
        pairs_ms = sum(
            self._prompt_ms(chunk.context_tokens + chunk.tokens) - self._prompt_ms(chunk.context_tokens)
            for chunk in chunks
        )
        return self.attention_launch_ms + pairs_ms

    def _prompt_ms(self, tokens: int) -> float:
        """Return the attention time of a whole prompt without the kernel launch."""
        if tokens <= self.prompts[0]:
            return 0.0
        pair_ms = between(self.prompts, self.attention_pair_ms, min(tokens, self.prompts[-1]))
        return pair_ms * tokens * tokens / 2


def between(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Interpolate linearly, and extrapolate along the outermost two points."""
    i = min(max(bisect_left(xs, x), 1), len(xs) - 1)
    return ys[i - 1] + (ys[i] - ys[i - 1]) * (x - xs[i - 1]) / (xs[i] - xs[i - 1])


def measured(name: str) -> bool:
    """Return whether there are tables for the model of this name."""
    return SHAPES.joinpath(f"{name}.json").is_file()


def kernel_times(name: str) -> KernelTimes:
    """Return the tables of a model that is `measured`."""
    return _from_values(json.loads(SHAPES.joinpath(f"{name}.json").read_bytes()))


def _from_values(values: dict[str, Any]) -> KernelTimes:
    prompts_ms = values.pop("prompts_ms")
    launch_ms = prompts_ms[0]
    pairs_ms = [2 * (ms - launch_ms) / n**2 for n, ms in zip(values["prompts"], prompts_ms, strict=True)]
    return KernelTimes(attention_pair_ms=pairs_ms, attention_launch_ms=launch_ms, **values)
