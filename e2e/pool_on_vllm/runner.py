"""Runs the steps in order, and prints the result of each in one line."""

import json
import shutil
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

from pool_on_vllm.context import VllmContext

VllmStep = Callable[[VllmContext], str]
"""Runs one step. Returns its result as a sentence; raises AssertionError if a check fails."""


def name_of(step: VllmStep) -> str:
    """Return the name on the command line and in figures, such as overload.hops_then_429."""
    return f"{step.__module__.rpartition('.')[2]}.{getattr(step, '__name__', step)}"


def title_of(step: VllmStep) -> str:
    """Return the first line of the step's docstring."""
    return (step.__doc__ or name_of(step)).splitlines()[0].rstrip(".")


def run_steps(steps: Sequence[VllmStep], results: Path) -> int:
    """Run all steps. Returns the exit code: 0 if every step passed."""
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    started_s = monotonic()
    with ExitStack() as running:
        context = VllmContext(results, running)
        running.enter_context(context.plain_servers)
        try:
            for step in steps:
                _run_step(step, context)
        except (Exception, KeyboardInterrupt) as error:
            _report_failure(step, context, error)
            return 1
        finally:
            context.figures["total_s"] = round(monotonic() - started_s)
            (results / "figures.json").write_text(json.dumps(context.figures, indent=2) + "\n")
    print(f"all steps passed, {monotonic() - started_s:.0f} s; figures and logs: {results}")
    return 0


def _run_step(step: VllmStep, context: VllmContext) -> None:
    started_s = monotonic()
    result = step(context)
    took_s = monotonic() - started_s
    context.figures.setdefault("steps", []).append(
        {"step": name_of(step), "seconds": round(took_s, 1), "result": result}
    )
    print(f"{title_of(step)}: {result} ({took_s:.0f} s)", flush=True)


def _report_failure(step: VllmStep, context: VllmContext, error: BaseException) -> None:
    traceback_file = context.file("failure.txt")
    traceback_file.write_text("".join(traceback.format_exception(error)))
    print(f"{title_of(step)}: FAILED\n  {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    print(f"traceback: {traceback_file}; logs are beside it", file=sys.stderr)
