"""An iteration's time from tables of measured kernels (`kernel_shapes/`).

The parts are added, as kernels on one stream are:

- all that depends on the tokens of the batch: matrix products, the small kernels between them, all-reduce.
  The time is that of the next point up, because the engine pads a batch to the next size it captured a CUDA
  graph for, and a product computes whole tiles;
- logits, one row for every sequence that brings out a token;
- attention of the decodes, between the measured batches and contexts;
- attention of the prefill chunks. A chunk is what a prompt costs with it, less what it costs without it:
  tables have whole prompts only;
- drafter steps, one after another;
- the engine's own work between iterations.
"""

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from penstock_simulator.batch_shape import BatchShape, Chunk

SHAPES = files("penstock_simulator") / "kernel_shapes"


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """One model on its GPUs, in ms. Fields as in the files; `attention_pair_ms` is per pair of tokens."""

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
        """Duration of an iteration without noise; 0 for an empty one."""
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
        """Attention of a whole prompt, less its launch."""
        if tokens <= self.prompts[0]:
            return 0.0
        pair_ms = between(self.prompts, self.attention_pair_ms, min(tokens, self.prompts[-1]))
        return pair_ms * tokens * tokens / 2


def between(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Linear between the points, and along the outermost two beyond them."""
    i = min(max(bisect_left(xs, x), 1), len(xs) - 1)
    return ys[i - 1] + (ys[i] - ys[i - 1]) * (x - xs[i - 1]) / (xs[i] - xs[i - 1])


def measured(name: str) -> bool:
    """Whether there are tables for the model of this name."""
    return SHAPES.joinpath(f"{name}.json").is_file()


def kernel_times(name: str) -> KernelTimes:
    """The tables of a model that is `measured`."""
    return _from_values(json.loads(SHAPES.joinpath(f"{name}.json").read_bytes()))


def _from_values(values: dict[str, Any]) -> KernelTimes:
    prompts_ms = values.pop("prompts_ms")
    launch_ms = prompts_ms[0]
    pairs_ms = [2 * (ms - launch_ms) / n**2 for n, ms in zip(values["prompts"], prompts_ms, strict=True)]
    return KernelTimes(attention_pair_ms=pairs_ms, attention_launch_ms=launch_ms, **values)
