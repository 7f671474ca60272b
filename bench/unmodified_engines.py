"""Compares unmodified engines with and without Penstock in front: attainment at the same load.

    bench/vllm_environment serving
    .venv/bin/python bench/unmodified_engines.py [--engines vllm,transformers] [--out FILE]

One engine at a time, with a small random model on the CPU. First its speed is measured: a single answer and a
single long prompt determine the targets, many concurrent clients the capacity. Then the same arrivals, above
the capacity, are sent to it directly and through a pool of one replica, type `openai`, with each policy.
Attainment is over all requests; a rejected request is a miss.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from statistics import median, quantiles
from time import perf_counter
from typing import NamedTuple

from penstock_cli.local.ports import free_ports
from unmodified import servers
from unmodified.load import (
    KINDS,
    MeasuredOutcome,
    Planned,
    arrivals,
    closed_loop,
    one,
    open_loop,
    send,
    session,
)

PENSTOCK = servers.PROJECT / ".venv" / "bin" / "penstock"

POOL = """\
apiVersion: penstock.dev/v1alpha1
kind: ServingPool
metadata: {{name: unmodified}}
spec:
  model: {{name: {model}}}
  engine: {{type: openai, timeModel: measured.json, maxModelLen: 4096{more}}}
  scheduling: {{policy: {policy}, maxRunning: {running}, maxBatchTokens: {batch}}}
  routing: {{backup: reject}}
  tiers:
"""
TIER = "  - {{name: {name}, slo: {{ttft: {ttft_ms}ms, tpot: {tpot_ms}ms}}}}\n"


class TierTargets(NamedTuple):
    ttft_s: float
    tpot_s: float


class PlannedLoad(NamedTuple):
    """The load that every way gets."""

    planned: list[Planned]
    targets: dict[str, TierTargets]
    capacity_rps: float


def main() -> None:
    options = parsed()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers are stopped
    machine = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.0f} at the start"
    head = f"# Unmodified engines, {datetime.now(UTC):%Y-%m-%d}\n\n{machine}.\n"
    print(head, flush=True)
    reported = [head]
    with tempfile.TemporaryDirectory(prefix="penstock-unmodified-") as name:
        model = servers.make_model(Path(name))
        for engine in options.engines.split(","):
            reported.append(measured(servers.ENGINES[engine], model, options))
            print(reported[-1], flush=True)
    if options.out:
        options.out.write_text("\n".join(reported))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--engines", default=",".join(servers.ENGINES), help="default: %(default)s")
    add("--policies", default="slos-serve,annealing", help="default: %(default)s")
    add("--seconds", type=float, default=25.0, help="seconds of arrivals for each way (default: %(default)s)")
    add("--load", type=float, default=1.3, help="multiple of the engine's capacity (default: %(default)s)")
    add("--profile-seconds", type=float, default=25.0, help="default: %(default)s")
    add("--seed", type=int, default=1, help="seed of the arrivals (default: %(default)s)")
    add("--out", type=Path, help="also write the output to this file")
    return parser.parse_args()


def measured(engine: servers.UnmodifiedEngine, model: Path, options: argparse.Namespace) -> str:
    """Measure one engine in all ways, and return its page."""
    with servers.serving(engine, model, *free_ports(1, "127.0.0.1")) as url:
        targets = asyncio.run(targets_of(url, engine.model))
        capacity_rps = asyncio.run(closed_loop(url, engine.model, clients=12, seconds=10.0))
        planned = arrivals(options.load * capacity_rps, options.seconds, options.seed)
        load = PlannedLoad(planned, targets, capacity_rps)
        profiled(url, engine, model.parent, options.profile_seconds)
        rows = [directly(url, engine, load)]
        for policy in options.policies.split(","):
            outcomes = through(url, engine, policy, load, model.parent)
            rows.append(row(f"Penstock, {policy}", outcomes, targets))
        rows.append(
            directly(url, engine, load)
        )  # measured again, because the machine's speed may have changed
    return page(engine, load, rows)


async def targets_of(url: str, model: str) -> dict[str, TierTargets]:
    """Return targets as multiples of a single request's TPOT and a single long prompt's TTFT."""
    random = Random(0)
    async with session() as http:

        async def lone(tier: str) -> MeasuredOutcome:
            return await send(http, url, model, one(random, tier), perf_counter())

        for tier in KINDS:
            await lone(tier)
        pace_s = median([(await lone("chat")).tpot_s for _ in range(5)])
        prompt_s = median([(await lone("summary")).ttft_s for _ in range(5)])
    return {
        "chat": TierTargets(2 * prompt_s + 10 * pace_s, 4 * pace_s),
        "summary": TierTargets(8 * prompt_s + 10 * pace_s, 10 * pace_s),
    }


def directly(url: str, engine: servers.UnmodifiedEngine, load: PlannedLoad) -> str:
    return row("direct", asyncio.run(open_loop(url, engine.model, load.planned)), load.targets)


def profiled(url: str, engine: servers.UnmodifiedEngine, folder: Path, seconds: float) -> None:
    command = [PENSTOCK, "profile", "--engine", url, "--out", folder / "measured.json"]
    command += ["--seconds", str(seconds), "--longest-prompt", str(engine.max_batch_tokens)]
    subprocess.run([*map(str, command), "--most-requests", "16"], check=True, stdout=subprocess.DEVNULL)


def through(
    url: str, engine: servers.UnmodifiedEngine, policy: str, load: PlannedLoad, folder: Path
) -> list[MeasuredOutcome]:
    """Send the load through a pool of one replica with this engine."""
    pool, (port,) = folder / f"{policy}.yaml", free_ports(1, "127.0.0.1")
    pool.write_text(pool_text(engine, policy, load.targets))
    log = folder / f"{policy}.log"
    command: list[str | Path] = [PENSTOCK, "up", "-f", pool, "--engine", url, "--port", str(port)]
    with ExitStack() as stack:
        stack.enter_context(servers.running(command, {}, log))
        servers.until_answers(f"http://127.0.0.1:{port}/ready", log)
        return asyncio.run(open_loop(f"http://127.0.0.1:{port}", engine.model, load.planned))


def pool_text(engine: servers.UnmodifiedEngine, policy: str, targets: dict[str, TierTargets]) -> str:
    head = POOL.format(
        model=engine.model,
        more=engine.pool,
        policy=policy,
        running=engine.max_running,
        batch=engine.max_batch_tokens,
    )
    tiers = [
        TIER.format(name=name, ttft_ms=round(1e3 * of.ttft_s), tpot_ms=round(1e3 * of.tpot_s))
        for name, of in targets.items()
    ]
    return head + "".join(tiers)


def row(way: str, outcomes: Sequence[MeasuredOutcome], targets: dict[str, TierTargets]) -> str:
    """Return a row of the table."""
    answered = [one for one in outcomes if one.status == 200 and one.times_s]
    chat = [one for one in answered if one.tier == "chat"]
    cells = [way, percent(outcomes, targets)]
    cells += [percent([one for one in outcomes if one.tier == tier], targets) for tier in KINDS]
    cells += [percent(answered, targets), str(sum(one.status == 429 for one in outcomes))]
    cells.append(str(sum(one.status not in (200, 429) for one in outcomes)))
    cells += [p99(chat, lambda one: one.ttft_s), p99(chat, lambda one: one.tpot_s)]
    return "| " + " | ".join(cells) + " |"


def percent(outcomes: Sequence[MeasuredOutcome], targets: dict[str, TierTargets]) -> str:
    return f"{100 * sum(met(one, targets) for one in outcomes) / len(outcomes):.0f}" if outcomes else "–"


def met(outcome: MeasuredOutcome, targets: dict[str, TierTargets]) -> bool:
    """Return whether a request was answered and met its tier's targets."""
    of = targets[outcome.tier]
    return (
        outcome.status == 200
        and bool(outcome.times_s)
        and outcome.ttft_s <= of.ttft_s
        and outcome.tpot_s <= of.tpot_s
    )


def p99(outcomes: Sequence[MeasuredOutcome], of: Callable[[MeasuredOutcome], float]) -> str:
    return f"{1e3 * quantiles(map(of, outcomes), n=100)[98]:.0f}" if len(outcomes) > 1 else "–"


def page(engine: servers.UnmodifiedEngine, load: PlannedLoad, rows: list[str]) -> str:
    targets = ", ".join(
        f"{tier}: first token {1e3 * of.ttft_s:.0f} ms, pace {1e3 * of.tpot_s:.0f} ms"
        for tier, of in load.targets.items()
    )
    span_s = load.planned[-1].at_s
    lines = [
        f"## {engine.title} {servers.version(engine)}",
        "",
        f"{len(load.planned)} requests in {span_s:.0f} s, {len(load.planned) / span_s:.1f} a second; "
        f"twelve clients at once get {load.capacity_rps:.1f} answered. {targets}.",
        "",
        "| way | attained % | chat % | summary % | of those answered % | refused | failed "
        "| chat's first token p99, ms | chat's pace p99, ms |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
        *rows,
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
