"""A replay from end to end: read the trace, look at the server, send, count."""

import resource
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from rich.console import Console

from penstock_cli.failure import Failure
from penstock_cli.replay.client import Client
from penstock_cli.replay.generator import Generator
from penstock_cli.replay.outcome import Outcome
from penstock_cli.replay.planner_metrics import planner_times, read_planner
from penstock_cli.replay.promises import Promises
from penstock_cli.replay.prompts import Prompts
from penstock_cli.replay.report import Report
from penstock_cli.replay.rows_file import RowsFile
from penstock_cli.replay.schedule import Schedule, stretch_to
from penstock_cli.replay.target import AdminPages, Target, look
from penstock_cli.replay.watch import watching
from penstock_cli.replay.wording import Endpoint, Wording
from penstock_cli.traces import summarise

READ_BUFFER_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class Settings:
    """What a replay was asked for.

    admin_url: of the admin port of the pool's router; None: as the router tells it.
    promises: judged by in place of the server's own; None: the server tells.
    """

    trace: Path
    url: str
    admin_url: str | None = None
    rate_rps: float | None = None
    duration_s: float | None = None
    seed: int = 0
    tier: str = ""
    renamed: dict[str, str] = field(default_factory=dict)
    endpoint: Endpoint = Endpoint.COMPLETIONS
    model: str | None = None
    api_key: str | None = None
    max_in_flight: int = 10_000
    timeout_s: float = 300.0
    promises: Promises | None = None
    rows: Path | None = None


async def replay(settings: Settings, console: Console, title: str = "replaying") -> Report:
    """Replay a trace and report. Raises TraceError before anything is sent, or Failure."""
    schedule = plan(settings)
    requests, span_s = count(schedule)
    _allow_sockets(settings.max_in_flight)
    async with _session(settings) as session, aiohttp.ClientSession(trust_env=False) as keyless:
        admin = AdminPages(keyless, settings.admin_url)
        target = await look(session, settings.url, settings.model, admin)
        before = await read_planner(keyless, target.metrics)
        rows = nullcontext() if settings.rows is None else RowsFile(settings.rows)
        with rows as file:
            generator = _generator(settings, session, target, file.add if file else _nothing)
            async with watching(console, title, generator.progress, requests):
                tally = await generator.run(schedule.requests())
        after = await read_planner(keyless, target.metrics)
    return Report(target.policy, target.replicas, span_s, tally, planner_times(before, after))


def plan(settings: Settings) -> Schedule:
    """The trace as it will be sent. Reads all of it once. Raises TraceError."""
    summary = summarise(settings.trace)
    return Schedule(
        trace=settings.trace,
        stretch=stretch_to(summary, settings.rate_rps),
        duration_s=settings.duration_s,
        tier=settings.tier,
        renamed=settings.renamed,
    )


def count(schedule: Schedule) -> tuple[int, float]:
    """How many requests will be sent, and the seconds from the first to the last."""
    requests, last_s = 0, 0.0
    for request in schedule.requests():
        requests, last_s = requests + 1, request.arrival_s
    return requests, last_s


def _session(settings: Settings) -> aiohttp.ClientSession:
    key = {} if settings.api_key is None else {"Authorization": f"Bearer {settings.api_key}"}
    return aiohttp.ClientSession(
        headers={"Content-Type": "application/json", **key},
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),  # each request has its own, which covers all of it
        read_bufsize=READ_BUFFER_BYTES,
        auto_decompress=False,
        trust_env=False,
    )


def _generator(
    settings: Settings,
    session: aiohttp.ClientSession,
    target: Target,
    on_outcome: Callable[[Outcome], None],
) -> Generator:
    wording = Wording(
        settings.endpoint, target.model, target.simulated, target.max_model_len, Prompts(settings.seed)
    )
    client = Client(
        session=session,
        url=settings.url + settings.endpoint.path,
        wording=wording,
        promises=target.promises if settings.promises is None else settings.promises,
        timeout_s=settings.timeout_s,
    )
    return Generator(client, settings.max_in_flight, on_outcome)


def _nothing(outcome: Outcome) -> None:
    """Nobody wants the rows."""


def _allow_sockets(wanted: int) -> None:
    """Every request in flight is a socket, and the usual limit is a thousand."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = min(wanted + 100, hard) if hard != resource.RLIM_INFINITY else wanted + 100
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    if needed < min(wanted, 1000):
        raise Failure(f"only {hard} files may be open here (ulimit -n); --max-in-flight {wanted} needs more")
