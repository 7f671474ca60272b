"""Runs the steps in order, and prints the evidence of each in one line."""

import json
import shutil
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

from pool_on_vllm.world import World

Step = Callable[[World], str]
"""Runs one step. Returns the evidence as a sentence; raises AssertionError where it does not hold."""


def name_of(step: Step) -> str:
    """For the command line and figures: overload.spills_over."""
    return f"{step.__module__.rpartition('.')[2]}.{getattr(step, '__name__', step)}"


def title_of(step: Step) -> str:
    """For people: the first line of what it says of itself."""
    return (step.__doc__ or name_of(step)).splitlines()[0].rstrip(".")


def run_steps(steps: Sequence[Step], results: Path) -> int:
    """Run all steps. Returns the exit code: 0 if every step held."""
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    began_s = monotonic()
    with ExitStack() as running:
        world = World(results, running)
        running.enter_context(world.plain_running)
        try:
            for step in steps:
                _take(step, world)
        except (Exception, KeyboardInterrupt) as error:
            _failed(step, world, error)
            return 1
        finally:
            world.figures["total_s"] = round(monotonic() - began_s)
            (results / "figures.json").write_text(json.dumps(world.figures, indent=2) + "\n")
    print(f"all held, {monotonic() - began_s:.0f} s; figures and logs: {results}")
    return 0


def _take(step: Step, world: World) -> None:
    began_s = monotonic()
    evidence = step(world)
    took_s = monotonic() - began_s
    world.figures.setdefault("steps", []).append(
        {"step": name_of(step), "seconds": round(took_s, 1), "evidence": evidence}
    )
    print(f"{title_of(step)}: {evidence} ({took_s:.0f} s)", flush=True)


def _failed(step: Step, world: World, error: BaseException) -> None:
    why = world.file("failure.txt")
    why.write_text("".join(traceback.format_exception(error)))
    print(f"{title_of(step)}: FAILED\n  {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    print(f"{why} says where; logs are beside it", file=sys.stderr)
