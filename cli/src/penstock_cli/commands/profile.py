"""`penstock profile`: measures an engine and fits its time model."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import orjson
import typer
from penstock_core.timing.fit import Quality
from penstock_core.timing.time_model import TimeModel, to_json
from penstock_pool.time_models import FORMAT
from penstock_profiler import (
    EngineError,
    NoTimeModel,
    Probe,
    ProbeSummary,
    Profile,
    ProfileLimits,
    connected,
    profile,
)
from penstock_runtime.engine_key import bearer, engine_key
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from penstock_cli.failure import Failure
from penstock_cli.replay.report import aligned

TICK_S = 0.5
"""Interval at which the bar moves."""

INACCURATE_MODEL = """
This model is inaccurate: do not use it. Measure again for longer (--seconds), with no other load on the
engine or its machine, and with a --longest-prompt that the engine computes in one iteration."""


def profile_engine(
    engine: Annotated[
        str, typer.Option(metavar="URL", help="URL of the engine, for example http://127.0.0.1:8000.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Write the time model here, as JSON.")],
    *,
    seconds: Annotated[float, typer.Option(min=1, help="Duration of the measurement.")] = 120.0,
    longest_prompt: Annotated[
        int, typer.Option(min=64, help="Most tokens that the engine computes in one iteration.")
    ] = 2048,
    most_requests: Annotated[int, typer.Option(min=1, max=512, help="Most concurrent decodes.")] = 32,
    kv_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens of the engine's KV cache; larger probes are skipped. Default: as it reports.",
        ),
    ] = None,
) -> None:
    """Measure an idle engine, and fit its time model.

    Measures prefills of several lengths and decodes of several batch sizes and contexts, and reports the
    error of the fit on held-out points. The file is a value for `engine.timeModel`:

      penstock profile --engine http://127.0.0.1:8000 --out tiny.json

      spec: {engine: {timeModel: tiny.json}}
    """
    console = Console(stderr=True)
    if not out.parent.is_dir():
        raise Failure(f"--out {out}: folder {out.parent} does not exist", bad_input=True)
    limits = ProfileLimits(longest_prompt, most_requests, kv_tokens=kv_tokens)
    try:
        model, found = asyncio.run(_measure(engine, limits, seconds, console))
    except (EngineError, NoTimeModel) as error:
        raise Failure(f"--engine: {error}") from None
    out.write_bytes(as_file(model, found))
    show(Console(), found)
    Console().print(f"\nWritten to {out}.")


async def _measure(url: str, limits: ProfileLimits, seconds: float, console: Console) -> tuple[str, Profile]:
    async with connected(url, bearer(engine_key(os.environ))) as engine:
        if limits.kv_tokens is None and (cache := await engine.kv_cache()) is not None:
            limits = replace(limits, kv_tokens=cache.blocks * cache.block_tokens)
        with _progress(console) as progress:
            task = progress.add_task("", total=seconds)

            def on_reading(probe: Probe, readings: int) -> None:
                progress.update(task, description=f"reading {readings + 1}: {probe}")

            ticking = asyncio.create_task(_tick(progress, task))
            try:
                return engine.model, await profile(
                    engine, limits.within(engine.context_tokens), seconds, on_reading=on_reading
                )
            finally:
                ticking.cancel()


async def _tick(progress: Progress, task: TaskID) -> None:
    while True:
        await asyncio.sleep(TICK_S)
        progress.advance(task, TICK_S)


def _progress(console: Console) -> Progress:
    columns = (TextColumn("measuring"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=console, transient=True)


def as_file(model: str, found: Profile) -> bytes:
    """Return the file: the time model, the model's name, the accuracy of the fit, and the measured points."""
    held_out = found.fit.held_out
    page = {
        "format": FORMAT,
        "model": model,
        "time_model": to_json(found.fit.model),
        "held_out": {
            "points": held_out.points,
            "mean_error": held_out.mean_error,
            "r_squared": held_out.r_squared,
        },
        "noise": found.noise,
        "points": [
            {**summary.point.work._asdict(), "seconds": summary.point.seconds, "times": summary.times}
            for summary in found.summaries
        ],
    }
    return orjson.dumps(page, option=orjson.OPT_INDENT_2) + b"\n"


def show(console: Console, found: Profile) -> None:
    """Print measured and predicted durations, and the accuracy of the fit."""
    heads = ("tokens", "context", "measured ms", "model ms", "error %", "spread %")
    ordered = sorted(found.summaries, key=lambda summary: summary.point.work)
    console.print(aligned("Iterations", ("probe", *heads), [_line(found, summary) for summary in ordered]))
    for line in formula(found.fit.model):
        console.print(line)
    console.print(
        f"The overhead of a request outside of iterations is {1e3 * found.overhead_s:.2f} ms.\n\n"
        f"Accuracy on the fitted points: {_accuracy(found.fit.seen)}.\n"
        f"Accuracy on held-out points: {_accuracy(found.fit.held_out)}.\n"
        f"{_noise(found)}"
    )
    if found.inaccurate:
        console.print(INACCURATE_MODEL)


def _noise(found: Profile) -> str:
    if all(summary.times == 1 for summary in found.summaries):
        return "Each point was measured once, so the noise is unknown: increase --seconds."
    return (
        f"Single measurements deviate by {found.noise:.1%} from their median, by "
        f"{found.noise_without_drift:.1%} without drift: no model predicts single iterations more accurately."
    )


def formula(model: TimeModel) -> list[str]:
    """Return the time model as a formula."""
    lines = [f"{1e6 * term.token_s:.2f} µs a token + {1e3 * term.fixed_s:.3f} ms" for term in model.terms]
    roofline = lines[0] if len(lines) == 1 else f"max({', '.join(lines)})"
    context, attention = 1e9 * model.context_token_s, 1e9 * model.prefill_work_s
    return [
        f"T = {roofline}",
        f"    + {context:.2f} ns a token of context + {attention:.4f} ns a pair of a prompt's attention",
    ]


def _line(found: Profile, summary: ProbeSummary) -> list[str]:
    work, seconds = summary.point
    model_s = found.fit.model.seconds(work)
    return [
        str(summary.probe),
        str(work.tokens),
        str(work.context_tokens),
        f"{1e3 * seconds:.2f}",
        f"{1e3 * model_s:.2f}",
        f"{100 * (model_s / seconds - 1):+.1f}",
        f"{100 * summary.spread:.1f}",
    ]


def _accuracy(quality: Quality) -> str:
    return f"R² {quality.r_squared:.4f}, mean error {quality.mean_error:.1%}, worst {quality.worst_error:.1%}"
