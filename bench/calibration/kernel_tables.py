"""Reads public tables of measured kernel times into functions of shape.

Two sources. aiconfigurator (ai-dynamo, Apache-2.0) has matrix products, attention and all-reduce under
vLLM 0.14 on A100 and H100, on a coarse grid of token counts. vidur (microsoft, MIT) has the matrix products
of Llama-3 on A100 every eight tokens: fine enough to show the steps of 128-row tiles, from an older engine.
Times are in ms throughout, as in the tables.
"""

import csv
import gzip
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

Row = dict[str, str]
Curve = dict[int, float]

SLOW_POINT = 1.55
"""Ratio of time per token to that of the next smaller size above which a measurement is taken as failed."""


def rows(path: Path) -> Iterator[Row]:
    with gzip.open(path, "rt") as file:
        yield from csv.DictReader(file)


def interpolated(curve: Curve, at: float) -> float:
    """Interpolate linearly, and extrapolate along the outermost two points."""
    xs = sorted(curve)
    if at > xs[-1]:
        a, b = xs[-2:]
        return curve[b] + (curve[b] - curve[a]) * (at - b) / (b - a)
    return float(np.interp(at, xs, [curve[x] for x in xs]))


def repaired(curve: Curve) -> Curve:
    """Return the curve with failed measurements replaced, at the time per token of the next smaller size.

    One in 150 products of the H100 table runs at two thirds to a fifth of the speed of the same product at
    neighbouring sizes. From 512 tokens on every product is bound by compute: its speed may fall by one more
    wave of tiles, a factor of up to 1.5 in the A100 table, but not by more.
    """
    good = dict(curve)
    for below, m in pairwise(m for m in sorted(curve) if m >= 512):
        if curve[m] / m > SLOW_POINT * good[below] / below:
            good[m] = m * good[below] / below
    return good


class Products:
    """Matrix products in bfloat16 on one device: (tokens, n, k) -> ms."""

    def __init__(self, path: Path) -> None:
        measured: dict[tuple[int, int], Curve] = {}
        for row in rows(path):
            if row["gemm_dtype"] == "bfloat16":
                curve = measured.setdefault((int(row["n"]), int(row["k"])), {})
                curve[int(row["m"])] = float(row["latency"])
        self.measured = {shape: repaired(curve) for shape, curve in measured.items()}
        self.tokens = sorted(next(iter(measured.values())))
        self.sizes = sorted({n for n, _ in measured})

    def ms(self, tokens: int, n: int, k: int) -> float:
        return sum(
            weight_n * weight_k * self.measured[size_n, size_k][tokens]
            for size_n, weight_n in _between(n, self.sizes)
            for size_k, weight_k in _between(k, self.sizes)
        )


def _between(value: int, grid: Sequence[int]) -> list[tuple[int, float]]:
    if value >= grid[-1]:
        return [(grid[-1], value / grid[-1])]
    above = next(g for g in grid if g >= value)
    if above == value:
        return [(above, 1.0)]
    below = max(g for g in grid if g < value)
    share = (value - below) / (above - below)
    return [(below, 1 - share), (above, share)]


def attention(path: Path, heads: int, kv_heads: int, length: str) -> dict[int, Curve]:
    """Return batch -> (tokens -> ms) of one layer's attention. length: the column with the tokens."""
    found: dict[int, Curve] = {}
    for row in rows(path):
        if (row["num_heads"], row["num_key_value_heads"]) != (str(heads), str(kv_heads)):
            continue
        if row["kv_cache_dtype"] == "bfloat16":
            found.setdefault(int(row["batch_size"]), {})[int(row[length])] = float(row["latency"])
    return found


def all_reduce(path: Path, gpus: int, backend: str) -> Curve:
    """Return bytes -> ms of one all-reduce of vLLM's own kernel, under a CUDA graph or eager."""
    return {
        int(row["message_size"]): float(row["latency"])
        for row in rows(path)
        if (row["num_gpus"], row["backend"]) == (str(gpus), backend)
    }


TILED = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")


def tiled_products(path: Path, gpus: int) -> Curve:
    """Return tokens -> ms of one layer's products, every eight tokens."""
    return {
        int(float(row["num_tokens"])): sum(float(row[f"time_stats.{op}.median"]) for op in TILED)
        for row in rows(path)
        if row["num_tensor_parallel_workers"] == str(gpus)
    }
