"""Runs the steps in order, prints one line for each, and keeps the evidence if one fails."""

import json
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from pool_on_cluster.evidence import GoneLogs, keep_evidence
from pool_on_cluster.place import place
from pool_on_cluster.pool import MODEL
from pool_on_cluster.traffic import Toll, Traffic
from pool_on_cluster.world import World

BEFORE_AND_AFTER = 4
"""Requests that begin before a step does anything, and after it has done all."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step. traffic: clients send requests meanwhile. own_cluster: it kills processes of nodes."""

    run: Callable[[World], None]
    traffic: bool = False
    own_cluster: bool = False

    @property
    def name(self) -> str:
        """For the command line and figures: kills.engine."""
        return f"{self.run.__module__.rpartition('.')[2]}.{self.run.__name__}"

    @property
    def title(self) -> str:
        """For people: the first line of what it says of itself."""
        return (self.run.__doc__ or self.name).splitlines()[0].rstrip(".")


class Lost(AssertionError):
    """Requests were lost that had not to be."""

    def __init__(self, toll: Toll) -> None:
        lines = [f"  {requested}" for requested in toll.lost]
        super().__init__("\n".join([f"{len(toll.lost)} of {toll.asked} requests were lost:", *lines]))


def run_steps(steps: Sequence[Step], results: Path, keep: bool) -> int:
    """Run all steps. Returns the exit code: 0 if every step held."""
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    world = World(place(), results)
    began_s = monotonic()
    try:
        with ExitStack() as running:
            for step in steps:
                _take(step, world, running)
    except (Exception, KeyboardInterrupt) as error:
        _failed(world, step, error)
        return 1
    finally:
        world.figures["total_s"] = round(monotonic() - began_s, 1)
        _write(world)
        if not keep:
            world.place.down()
    for name, figure in world.figures.items():
        if name not in ("steps", "left_out"):
            print(f"  {name}: {json.dumps(figure)}")
    print(f"{verdict(steps, world.figures)}; figures: {results / 'figures.json'}")
    return 0


def verdict(steps: Sequence[Step], figures: Mapping[str, Any]) -> str:
    """What a story may say of itself that ended well: which steps it took, and which it left out."""
    left_out = figures.get("left_out", [])
    if not left_out:
        return f"all {len(steps)} steps held"
    return f"{len(steps) - len(left_out)} of {len(steps)} steps held, left out: {', '.join(left_out)}"


def _take(step: Step, world: World, running: ExitStack) -> None:
    if step.own_cluster and not world.place.own:
        print(f"{step.title}: left out, for it kills processes of nodes", flush=True)
        world.figures.setdefault("left_out", []).append(step.name)
        return
    began_s = monotonic()
    if not step.traffic:
        _quiet(world, running)
        step.run(world)
        toll = Toll()
    else:
        toll = _under_traffic(step, world, running)
    _record(world, step, monotonic() - began_s, toll)
    if toll.lost:
        raise Lost(toll)


def _under_traffic(step: Step, world: World, running: ExitStack) -> Toll:
    if world.traffic_or_none is None:
        if world.place.own:
            running.enter_context(GoneLogs(world.tools.kubeconfig.parent))
        world.traffic_or_none = running.enter_context(Traffic(world.url, MODEL))
    traffic = world.traffic
    traffic.more_requests(BEFORE_AND_AFTER)
    step.run(world)
    traffic.more_requests(BEFORE_AND_AFTER)
    return traffic.toll()


def _quiet(world: World, running: ExitStack) -> None:
    """End the traffic, if there is any."""
    if world.traffic_or_none is not None:
        world.traffic_or_none = None
        running.close()


def _record(world: World, step: Step, seconds: float, toll: Toll) -> None:
    line: dict[str, Any] = {"step": step.name, "seconds": round(seconds, 1)}
    if step.traffic:
        line |= {
            "requests": toll.asked,
            "lost": len(toll.lost),
            "killed": toll.excused,
            "refused": toll.refused,
        }
    world.figures.setdefault("steps", []).append(line)
    output = f", {toll.asked} requests, {len(toll.lost)} lost" if step.traffic else ""
    output += f", {toll.excused} killed with their process" if toll.excused else ""
    print(f"{step.title}: {seconds:.0f} s{output}", flush=True)


def _failed(world: World, step: Step, error: BaseException) -> None:
    kept = world.results / "failure"
    kept.mkdir()
    (kept / "why.txt").write_text("".join(traceback.format_exception(error)))
    print(f"{step.title}: FAILED\n  {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    if world.tools_or_none is not None:
        keep_evidence(world.tools, kept)
    print(f"what there was is in {kept}", file=sys.stderr)


def _write(world: World) -> None:
    (world.results / "figures.json").write_text(json.dumps(world.figures, indent=2) + "\n")
