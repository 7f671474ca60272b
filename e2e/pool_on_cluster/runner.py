"""Runs the steps in order, prints a line for each, and saves diagnostics if one fails."""

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

from pool_on_cluster.clusters import choose_cluster
from pool_on_cluster.context import ClusterContext
from pool_on_cluster.diagnostics import PodLogLinks, save_diagnostics
from pool_on_cluster.pool import MODEL
from pool_on_cluster.traffic import PoolTraffic, Summary

MARGIN_REQUESTS = 4
"""Requests that must start before a step begins, and after it ends."""


@dataclass(frozen=True, slots=True)
class ClusterStep:
    """One step.

    traffic: clients send requests during the step. local_cluster: the step needs a local cluster, because it
    kills processes of nodes.
    """

    run: Callable[[ClusterContext], None]
    traffic: bool = False
    local_cluster: bool = False

    @property
    def name(self) -> str:
        """The name on the command line and in figures, such as kills.engine."""
        return f"{self.run.__module__.rpartition('.')[2]}.{self.run.__name__}"

    @property
    def title(self) -> str:
        """The first line of the step's docstring."""
        return (self.run.__doc__ or self.name).splitlines()[0].rstrip(".")


class RequestsLost(AssertionError):
    """Requests were lost that should have been answered."""

    def __init__(self, summary: Summary) -> None:
        lines = [f"  {request}" for request in summary.lost]
        super().__init__("\n".join([f"{len(summary.lost)} of {summary.sent} requests were lost:", *lines]))


def run_steps(steps: Sequence[ClusterStep], results: Path, keep: bool) -> int:
    """Run all steps. Returns the exit code: 0 if every step passed."""
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    context = ClusterContext(choose_cluster(), results)
    started_s = monotonic()
    try:
        with ExitStack() as running:
            for step in steps:
                _run_step(step, context, running)
    except (Exception, KeyboardInterrupt) as error:
        _report_failure(context, step, error)
        return 1
    finally:
        context.figures["total_s"] = round(monotonic() - started_s, 1)
        _write_figures(context)
        if not keep:
            context.cluster.down()
    for name, figure in context.figures.items():
        if name not in ("steps", "skipped"):
            print(f"  {name}: {json.dumps(figure)}")
    print(f"{summary_line(steps, context.figures)}; figures: {results / 'figures.json'}")
    return 0


def summary_line(steps: Sequence[ClusterStep], figures: Mapping[str, Any]) -> str:
    """Return the last line of a run without failures: steps passed, and steps skipped."""
    skipped = figures.get("skipped", [])
    if not skipped:
        return f"all {len(steps)} steps passed"
    return f"{len(steps) - len(skipped)} of {len(steps)} steps passed, skipped: {', '.join(skipped)}"


def _run_step(step: ClusterStep, context: ClusterContext, running: ExitStack) -> None:
    if step.local_cluster and not context.cluster.is_local:
        print(f"{step.title}: skipped, because it needs a local cluster", flush=True)
        context.figures.setdefault("skipped", []).append(step.name)
        return
    started_s = monotonic()
    if not step.traffic:
        _stop_traffic(context, running)
        step.run(context)
        summary = Summary()
    else:
        summary = _run_under_traffic(step, context, running)
    _record(context, step, monotonic() - started_s, summary)
    if summary.lost:
        raise RequestsLost(summary)


def _run_under_traffic(step: ClusterStep, context: ClusterContext, running: ExitStack) -> Summary:
    if context.traffic_or_none is None:
        if context.cluster.is_local:
            running.enter_context(PodLogLinks(context.tools.kubeconfig.parent))
        context.traffic_or_none = running.enter_context(PoolTraffic(context.url, MODEL))
    traffic = context.traffic
    traffic.wait_for_requests(MARGIN_REQUESTS)
    step.run(context)
    traffic.wait_for_requests(MARGIN_REQUESTS)
    return traffic.summary()


def _stop_traffic(context: ClusterContext, running: ExitStack) -> None:
    """Stop the traffic, if any."""
    if context.traffic_or_none is not None:
        context.traffic_or_none = None
        running.close()


def _record(context: ClusterContext, step: ClusterStep, seconds: float, summary: Summary) -> None:
    line: dict[str, Any] = {"step": step.name, "seconds": round(seconds, 1)}
    if step.traffic:
        line |= {
            "requests": summary.sent,
            "lost": len(summary.lost),
            "allowed_losses": summary.allowed_losses,
            "rejected": summary.rejected,
        }
    context.figures.setdefault("steps", []).append(line)
    output = f", {summary.sent} requests, {len(summary.lost)} lost" if step.traffic else ""
    output += f", {summary.allowed_losses} lost with their killed process" if summary.allowed_losses else ""
    print(f"{step.title}: {seconds:.0f} s{output}", flush=True)


def _report_failure(context: ClusterContext, step: ClusterStep, error: BaseException) -> None:
    folder = context.results / "failure"
    folder.mkdir()
    (folder / "error.txt").write_text("".join(traceback.format_exception(error)))
    print(f"{step.title}: FAILED\n  {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    if context.tools_or_none is not None:
        save_diagnostics(context.tools, folder)
    print(f"diagnostics: {folder}", file=sys.stderr)


def _write_figures(context: ClusterContext) -> None:
    (context.results / "figures.json").write_text(json.dumps(context.figures, indent=2) + "\n")
