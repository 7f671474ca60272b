"""Measures how far predicted iteration times are from those of the simulated engine.

    python bench/calibration/planner_fidelity.py [--steps N] [--seed N]

Each built-in model predicts the iterations of a busy engine, one after another, whose ground truth is
measured and has noise, stalls and drift. Columns: mean error of the built-in model against the ground truth
without noise; the error after a fit to 1,000 of these iterations, and after online correction (noise
included); the final margin of planning; and the share of iterations that were longer than planned.
"""

import argparse
from collections.abc import Iterator
from random import Random
from statistics import fmean

from penstock_core.timing.builtin_models import BUILTINS, kv_cache_tokens, time_model
from penstock_core.timing.correction import Correction, corrected, expected, observe
from penstock_core.timing.fit import Point, fit
from penstock_simulator.engine_timing.batch_shape import BatchShape, Chunk
from penstock_simulator.engine_timing.ground_truth import TruthKind, ground_truth, noiseless

MEDIAN_CONTEXT_LOG, MEDIAN_CHUNK_LOG = 6.6, 6.5


def busy_iterations(
    draw: Random, count: int, cache_tokens: int, most_prefill: int = 2048
) -> Iterator[BatchShape]:
    """Yield iterations of 0 to 256 decodes with chat-like contexts and 0 to 4 prefill chunks."""
    for _ in range(count):
        decodes = draw.choice([0, draw.randint(1, 32), draw.randint(1, 256)])
        context = sum(int(draw.lognormvariate(MEDIAN_CONTEXT_LOG, 0.8)) for _ in range(decodes))
        prefills = decodes == 0 or draw.random() < 0.7
        chunks = tuple(_chunks(draw, most_prefill)) if prefills else ()
        yield BatchShape(chunks, decodes, min(context, cache_tokens))


def _chunks(draw: Random, most_prefill: int) -> Iterator[Chunk]:
    left = int(most_prefill ** draw.uniform(0.4, 1.0))
    for _ in range(draw.randint(1, 4)):
        tokens = min(left, max(1, int(draw.lognormvariate(MEDIAN_CHUNK_LOG, 0.9))))
        if tokens == 0:
            return
        left -= tokens
        yield Chunk(tokens, draw.choice([0, 0, draw.randint(0, 3000)]))


def error(predicted: float, true: float) -> float:
    return abs(predicted / true - 1)


def built_in(name: str, shapes: list[BatchShape]) -> float:
    model, truth = time_model(name), noiseless(name)
    return fmean(error(model.seconds(shape.work()), truth(shape)) for shape in shapes)


def fitted(name: str, shapes: list[BatchShape], seed: int) -> float:
    truth = ground_truth(name, TruthKind.MEASURED, seed)
    points = [Point(shape.work(), truth.seconds(shape, 0.0)) for shape in shapes[:1000]]
    return fit(name, points).seen.mean_error


def online(name: str, shapes: list[BatchShape], seed: int) -> tuple[float, float, float]:
    """Return the remaining mean error, the last margin, and the share of iterations longer than planned."""
    model, truth = time_model(name), ground_truth(name, TruthKind.MEASURED, seed)
    correction, at_s, longer, errors = Correction(), 0.0, 0, []
    for shape in shapes:
        work, seconds = shape.work(), truth.seconds(shape, at_s)
        at_s += seconds
        errors.append(error(expected(model, correction).seconds(work), seconds))
        longer += seconds > corrected(model, correction).seconds(work)
        correction = observe(correction, model, work, seconds)
    return fmean(errors), correction.margin, longer / len(shapes)


def main() -> None:
    parser = argparse.ArgumentParser(description="The planner's time models against the simulated engine.")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(f"{'model':32} {'built-in':>8} {'fitted':>8} {'online':>8} {'margin':>8} {'longer':>8}")
    for name in BUILTINS:
        shapes = list(busy_iterations(Random(args.seed), args.steps, kv_cache_tokens(name)))
        left, margin, longer = online(name, shapes, args.seed)
        row = (built_in(name, shapes), fitted(name, shapes, args.seed), left, margin - 1, longer)
        print(f"{name:32} " + " ".join(f"{value:8.1%}" for value in row))


if __name__ == "__main__":
    main()
