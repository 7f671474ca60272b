"""Writes the simulated engine's ground truth: a small file of kernel times per model, from public tables.

    python bench/calibration/make_kernel_shapes.py TABLES [--out FOLDER]

TABLES is a folder with the tables as `aic_<device>_*_perf.csv.gz` and `vidur_a100_*_mlp.csv.gz`. A model's
iteration is composed as vLLM runs it. Of these parts, the first three depend on the tokens of the iteration
only and become one curve, `tokens` -> `tokens_ms`:

- products: the four of a layer, from aiconfigurator; between its points by the tile steps that vidur
  measured (A100), or by whole tiles of 128 rows (H100, where none are published);
- the small kernels between them (norms, rotary, activation): bytes moved at the memory's bandwidth, and at
  least the time of their launches;
- all-reduce, twice a layer: under a CUDA graph up to 512 tokens, eager above;
- logits: one row a sequence, `rows` -> `rows_ms`;
- decode attention: `decode_ms[batch][context]`. The table has no multi-head attention (OPT), where the
  time is that of grouped heads over a context of as many bytes;
- prefill attention: `prefill_ms` of whole prompts. A chunk's is the difference of two prompts;
- a drafter step: an EAGLE head, which is one layer and its own logits.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from kernel_tables import Curve, Products, all_reduce, attention, interpolated, tiled_products

HEAD = 128
GRAPH_TOKENS = 512
TILE_ROWS = 128
SMALL_KERNELS_MS = 0.012
"""Least time of a layer's small kernels, five launches under a CUDA graph."""

MEMORY_BYTES_MS = {"a100": 1.60e9, "h100": 2.72e9}
"""Memory bandwidth of streaming kernels in bytes per ms, about 0.8 of the peak."""

OVERHEAD_MS = {"a100": 3.0, "h100": 1.2}
"""Engine overhead between two iterations: scheduling, sampling, detokenising."""

ROWS = (1, 8, 16, 32, 64, 128, 256)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (1, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
PROMPTS = (16, 128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 10240, 12288, 16384)


@dataclass(frozen=True)
class Shape:
    """The part of a transformer that one GPU computes. tiles: name of the table of its tile steps."""

    device: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    gpus: int = 1
    gated: bool = True
    tiles: str = "vidur_a100_Meta-Llama-3-8B_mlp.csv.gz"

    def products(self) -> list[tuple[int, int]]:
        """Return (n, k) of a layer's products."""
        return [
            ((self.heads + 2 * self.kv_heads) * HEAD // self.gpus, self.hidden),
            (self.hidden, self.heads * HEAD // self.gpus),
            ((2 if self.gated else 1) * self.inner // self.gpus, self.hidden),
            (self.hidden, self.inner // self.gpus),
        ]

    def small_bytes(self) -> float:
        """Return the bytes that a layer's small kernels move per token: two norms, rotary, activation."""
        norms = 2 * 4 * self.hidden
        rotary = 2 * (self.heads + self.kv_heads) * HEAD / self.gpus if self.gated else 0
        activation = (3 if self.gated else 2) * self.inner / self.gpus
        return 2 * (norms + rotary + activation)


SHAPES = {
    "llama-3-8b-a100": Shape("a100", 32, 4096, 32, 8, 14336, 128256),
    "llama-3-70b-4xa100": Shape(
        "a100", 80, 8192, 64, 8, 28672, 128256, gpus=4, tiles="vidur_a100_Meta-Llama-3-70B_mlp.csv.gz"
    ),
    "qwen2.5-7b-a100": Shape("a100", 28, 3584, 28, 4, 18944, 152064),
    "opt-13b-a100": Shape("a100", 40, 5120, 40, 40, 20480, 50272, gated=False),
    "opt-13b-h100": Shape("h100", 40, 5120, 40, 40, 20480, 50272, gated=False),
    "llama-3-8b-h100": Shape("h100", 32, 4096, 32, 8, 14336, 128256),
    "llama-3-70b-4xh100": Shape("h100", 80, 8192, 64, 8, 28672, 128256, gpus=4),
}


def table(tables: Path, shape: Shape, kind: str) -> Path:
    return tables / f"aic_{shape.device}_sxm_{kind}_perf.csv.gz"


def layer_products(products: Products, shape: Shape) -> Curve:
    """Return tokens -> ms of one layer's products on the coarse grid."""
    return {m: sum(products.ms(m, n, k) for n, k in shape.products()) for m in products.tokens}


def with_tile_steps(coarse: Curve, tables: Path, shape: Shape) -> Curve:
    """Return the coarse curve with intermediate points: from vidur's fine curve, or in whole tiles."""
    if shape.device == "h100":
        last = max(coarse)
        grid = sorted({*(m for m in coarse if m <= 256), *range(384, last + 1, TILE_ROWS)})
        return {m: interpolated(coarse, m) for m in grid}
    fine = tiled_products(tables / shape.tiles, shape.gpus)
    level = {m: fine[m] if m in fine else interpolated(fine, m) for m in coarse}
    grid = sorted({*coarse, *(m for m in fine if m < max(coarse))})
    return {m: interpolated(coarse, m) * interpolated(fine, m) / interpolated(level, m) for m in grid}


def small_kernels_ms(shape: Shape, tokens: int) -> float:
    return max(SMALL_KERNELS_MS, tokens * shape.small_bytes() / MEMORY_BYTES_MS[shape.device])


def all_reduces(tables: Path, shape: Shape) -> tuple[Curve, Curve]:
    """Return bytes -> ms under a CUDA graph and eager; empty for one GPU."""
    if shape.gpus == 1:
        return {0: 0.0, 1: 0.0}, {0: 0.0, 1: 0.0}
    path = table(tables, shape, "custom_allreduce")
    return all_reduce(path, shape.gpus, "vllm_graph"), all_reduce(path, shape.gpus, "vllm_eager")


def tokens_ms(products: Products, tables: Path, shape: Shape) -> Curve:
    """Return tokens -> ms of all kernels that depend on an iteration's tokens only."""
    steps = with_tile_steps(layer_products(products, shape), tables, shape)
    graph, eager = all_reduces(tables, shape)

    def layer_ms(tokens: int) -> float:
        reduce_ms = interpolated(graph if tokens <= GRAPH_TOKENS else eager, tokens * shape.hidden * 2)
        return steps[tokens] + small_kernels_ms(shape, tokens) + 2 * reduce_ms

    return {tokens: shape.layers * layer_ms(tokens) for tokens in steps}


def logits_ms(products: Products, shape: Shape, rows: int) -> float:
    return products.ms(rows, shape.vocabulary // shape.gpus, shape.hidden)


def attention_tables(tables: Path, shape: Shape, kind: str, length: str) -> tuple[dict[int, Curve], float]:
    """Return one layer's attention, and the factor on a context that gives an equal number of bytes in it."""
    heads, kv_heads = shape.heads // shape.gpus, shape.kv_heads // shape.gpus
    path = table(tables, shape, kind)
    exact = attention(path, heads, kv_heads, length)
    if exact:
        return exact, 1.0
    if heads == kv_heads:
        return attention(path, heads, 8, length), kv_heads / 8
    below, above = (attention(path, near, kv_heads, length) for near in (24, 32))
    share = (heads - 24) / 8
    mixed = {
        batch: {t: (1 - share) * ms + share * above[batch][t] for t, ms in curve.items() if t in above[batch]}
        for batch, curve in below.items()
    }
    return mixed, 1.0


def decode_ms(tables: Path, shape: Shape) -> list[list[float]]:
    """Return [batch][context] -> ms. Contexts beyond the table are extrapolated."""
    by_batch, stretch = attention_tables(tables, shape, "generation_attention", "step")
    return [
        [shape.layers * interpolated(by_batch[batch], context * stretch) for context in CONTEXTS]
        for batch in BATCHES
    ]


def prefill_ms(tables: Path, shape: Shape) -> list[float]:
    """Return ms of the attention of a whole prompt, alone in its batch."""
    by_batch, _ = attention_tables(tables, shape, "context_attention", "isl")
    return [shape.layers * by_batch[1][tokens] for tokens in PROMPTS]


def drafter_step_ms(products: Products, shape: Shape) -> float:
    layer = layer_products(products, shape)[8] + SMALL_KERNELS_MS
    return layer + logits_ms(products, shape, 8)


def rounded(values: object) -> object:
    """Round to five significant digits, more than the measurements have."""
    if isinstance(values, list):
        return [rounded(value) for value in values]
    return float(f"{values:.5g}") if isinstance(values, float) else values


def kernel_shapes(products: Products, tables: Path, shape: Shape) -> dict[str, object]:
    curve = tokens_ms(products, tables, shape)
    values = {
        "tokens": sorted(curve),
        "tokens_ms": [curve[m] for m in sorted(curve)],
        "rows": list(ROWS),
        "rows_ms": [logits_ms(products, shape, m) for m in ROWS],
        "decode_batches": list(BATCHES),
        "decode_contexts": list(CONTEXTS),
        "decode_ms": decode_ms(tables, shape),
        "prompts": list(PROMPTS),
        "prompts_ms": prefill_ms(tables, shape),
        "drafter_step_ms": drafter_step_ms(products, shape),
        "overhead_ms": OVERHEAD_MS[shape.device],
    }
    return {name: rounded(value) for name, value in values.items()}


def main() -> None:
    home = Path(__file__).resolve().parents[2] / "simulator/src/penstock_simulator/kernel_shapes"
    parser = argparse.ArgumentParser(
        description="Make the simulated engine's kernel times from public tables."
    )
    parser.add_argument("tables", type=Path)
    parser.add_argument("--out", type=Path, default=home)
    args = parser.parse_args()
    products = {d: Products(args.tables / f"aic_{d}_sxm_gemm_perf.csv.gz") for d in OVERHEAD_MS}
    for name, shape in SHAPES.items():
        shapes = kernel_shapes(products[shape.device], args.tables, shape)
        path = args.out / f"{name}.json"
        path.write_text(json.dumps(shapes, separators=(",", ":")) + "\n")
        print(f"{name:20} {path.stat().st_size:7,} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
