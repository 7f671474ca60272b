"""`penstock profile`: how fast is this engine?"""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import orjson
import typer
from penstock_core.timing.fit import Quality
from penstock_core.timing.time_model import TimeModel, to_json
from penstock_pool.time_models import FORMAT
from penstock_profiler import EngineError, Limits, Probe, Profile, Reading, TooLittle, connected, profile
from penstock_runtime.engine_key import bearer, engine_key
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from penstock_cli.failure import Failure
from penstock_cli.replay.report import aligned


def profile_engine(
    engine: Annotated[str, typer.Option(metavar="URL", help="The engine, like http://127.0.0.1:8000.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Write the time model here, as JSON.")],
    *,
    seconds: Annotated[float, typer.Option(min=1, help="Stop measuring after so long.")] = 120.0,
    longest_prompt: Annotated[
        int, typer.Option(min=64, help="Tokens that the engine computes in one iteration, at most.")
    ] = 2048,
    most_requests: Annotated[int, typer.Option(min=1, max=512, help="Most that decode at once.")] = 32,
    kv_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of its KV cache; probes that need more are left out.")
    ] = None,
) -> None:
    """Measure a live engine that does nothing else, and fit its time model.

    Prefills of many lengths, decodes of many batch sizes and contexts, again and again; then a model, with
    its error on points that it was not fitted to. The file is what `engine.timeModel` takes:

      penstock profile --engine http://127.0.0.1:8000 --out tiny.json

      spec: {engine: {timeModel: tiny.json}}
    """
    console = Console(stderr=True)
    if not out.parent.is_dir():
        raise Failure(f"--out {out}: there is no folder {out.parent}", bad_input=True)
    limits = Limits(longest_prompt, most_requests, kv_tokens=kv_tokens)
    try:
        model, found = asyncio.run(_measure(engine, limits, seconds, console))
    except (EngineError, TooLittle) as error:
        raise Failure(f"--engine: {error}") from None
    out.write_bytes(as_file(model, found))
    show(Console(), found)
    Console().print(f"\nWritten to {out}.")


async def _measure(url: str, limits: Limits, seconds: float, console: Console) -> tuple[str, Profile]:
    async with connected(url, bearer(engine_key(os.environ))) as engine:
        with _progress(console) as progress:
            task = progress.add_task("", total=seconds)

            def told(probe: Probe, readings: int) -> None:
                progress.update(task, description=f"reading {readings + 1}: {probe}")

            ticking = asyncio.create_task(_tick(progress, task, seconds))
            try:
                return engine.model, await profile(
                    engine, _within(limits, engine.context_tokens), seconds, told=told
                )
            finally:
                ticking.cancel()


async def _tick(progress: Progress, task: "object", seconds: float) -> None:
    while True:
        await asyncio.sleep(0.5)
        progress.advance(task, 0.5)  # type: ignore[arg-type]


def _within(limits: Limits, context_tokens: int) -> Limits:
    """The same, within the engine's context."""
    if not context_tokens:
        return limits
    return Limits(
        min(limits.prompt_tokens, context_tokens - 1), limits.requests, context_tokens, limits.kv_tokens
    )


def _progress(console: Console) -> Progress:
    columns = (TextColumn("measuring"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=console, transient=True)


def as_file(model: str, found: Profile) -> bytes:
    """The file: the time model, what it is of, and what is known of its worth."""
    worth = found.fit.held_out
    page = {
        "format": FORMAT,
        "model": model,
        "time_model": to_json(found.fit.model),
        "held_out": {"points": worth.points, "mean_error": worth.mean_error, "r_squared": worth.r_squared},
        "noise": found.noise,
    }
    return orjson.dumps(page, option=orjson.OPT_INDENT_2) + b"\n"


def show(console: Console, found: Profile) -> None:
    """What was measured beside what the model says, and what the model is worth."""
    heads = ("tokens", "context", "measured ms", "model ms", "error %", "spread %")
    ordered = sorted(found.readings, key=lambda reading: reading.point.work)
    console.print(aligned("Iterations", ("probe", *heads), [_line(found, reading) for reading in ordered]))
    for line in formula(found.fit.model):
        console.print(line)
    console.print(
        f"A request's way beside it takes {1e3 * found.way_s:.2f} ms.\n\n"
        f"On the points that it was fitted to: {_worth(found.fit.seen)}.\n"
        f"On points that a fit to the others had not seen: {_worth(found.fit.held_out)}.\n"
        f"{_noise(found)}"
    )


def _noise(found: Profile) -> str:
    if all(reading.times == 1 for reading in found.readings):
        return "Each was read once, so how noisy the machine is is not known: give it more --seconds."
    return (
        f"Single readings lie {found.noise:.1%} from their own median, {found.steady_noise:.1%} without the "
        "machine's changes of pace: no model is closer to single iterations than about that."
    )


def formula(model: TimeModel) -> list[str]:
    """The model as people write it."""
    lines = [f"{1e6 * term.token_s:.2f} µs a token + {1e3 * term.fixed_s:.3f} ms" for term in model.terms]
    roofline = lines[0] if len(lines) == 1 else f"max({', '.join(lines)})"
    context, attention = 1e9 * model.context_token_s, 1e9 * model.prefill_work_s
    return [
        f"T = {roofline}",
        f"    + {context:.2f} ns a token of context + {attention:.4f} ns a pair of a prompt's attention",
    ]


def _line(found: Profile, reading: Reading) -> list[str]:
    work, seconds = reading.point
    model_s = found.fit.model.seconds(work)
    return [
        str(reading.probe),
        str(work.tokens),
        str(work.context_tokens),
        f"{1e3 * seconds:.2f}",
        f"{1e3 * model_s:.2f}",
        f"{100 * (model_s / seconds - 1):+.1f}",
        f"{100 * reading.spread:.1f}",
    ]


def _worth(quality: Quality) -> str:
    return f"R² {quality.r_squared:.4f}, mean error {quality.mean_error:.1%}, worst {quality.worst_error:.1%}"
