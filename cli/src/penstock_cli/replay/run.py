"""A replay from end to end: reads the trace, inspects the server, sends requests, counts outcomes."""

import resource
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from rich.console import Console

from penstock_cli.failure import Failure
from penstock_cli.replay.client import ReplayClient
from penstock_cli.replay.generator import Generator
from penstock_cli.replay.outcome import RequestOutcome
from penstock_cli.replay.planner_metrics import planner_times, read_planner
from penstock_cli.replay.progress import show_progress
from penstock_cli.replay.prompts import PromptGenerator
from penstock_cli.replay.report import Report
from penstock_cli.replay.request_bodies import ReplayEndpoint, RequestBodies
from penstock_cli.replay.rows_file import RowsFile
from penstock_cli.replay.schedule import (
    MOONCAKE_BLOCK_TOKENS,
    ScheduleOptions,
    check_hash_ids,
    requests_and_span_s,
    schedule_of,
)
from penstock_cli.replay.server import AdminPages, ReplayServer, inspect_server
from penstock_cli.replay.tier_slos import TierSlos

READ_BUFFER_BYTES = 2**16
"""Buffer of a connection's reader."""


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """The settings of a replay.

    admin_url: URL of the admin port of the pool's router; None for the URL that the router reports.
    tier_slos: SLOs to judge by; None for those that the server reports.
    closed_loop: whether the trace's sessions are closed loops; None: if it has think times.
    block_tokens: tokens per hash id of the trace.
    """

    trace: Path
    url: str
    admin_url: str | None = None
    rate_rps: float | None = None
    duration_s: float | None = None
    seed: int = 0
    tier: str = ""
    renamed: dict[str, str] = field(default_factory=dict)
    endpoint: ReplayEndpoint = ReplayEndpoint.COMPLETIONS
    model: str | None = None
    api_key: str | None = None
    max_in_flight: int = 10_000
    timeout_s: float = 300.0
    tier_slos: TierSlos | None = None
    rows: Path | None = None
    closed_loop: bool | None = None
    block_tokens: int = MOONCAKE_BLOCK_TOKENS

    def schedule_options(self) -> ScheduleOptions:
        """Return the settings that determine which requests are sent when."""
        return ScheduleOptions(
            self.trace, self.rate_rps, self.duration_s, self.tier, self.renamed, self.closed_loop
        )


async def replay(settings: ReplaySettings, console: Console, title: str = "replaying") -> Report:
    """Replay a trace and report. Raises TraceError before anything is sent, or Failure."""
    schedule, _ = schedule_of(settings.schedule_options())
    check_hash_ids(schedule, settings.block_tokens, console)
    requests, span_s = requests_and_span_s(schedule)
    _allow_sockets(settings.max_in_flight)
    async with _session(settings) as session, aiohttp.ClientSession() as keyless:
        admin = AdminPages(keyless, settings.admin_url)
        target = await inspect_server(session, settings.url, settings.model, admin)
        before = await read_planner(keyless, target.metrics)
        rows = nullcontext() if settings.rows is None else RowsFile(settings.rows)
        with rows as file:
            generator = _generator(settings, session, target, file.add if file else _ignore)
            async with show_progress(console, title, generator.progress, requests):
                tally = await generator.run(schedule.requests())
        after = await read_planner(keyless, target.metrics)
    return Report(target.policy, target.replicas, span_s, tally, planner_times(before, after))


def _session(settings: ReplaySettings) -> aiohttp.ClientSession:
    key = {} if settings.api_key is None else {"Authorization": f"Bearer {settings.api_key}"}
    return aiohttp.ClientSession(
        headers={"Content-Type": "application/json", **key},
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),  # each request has its own timeout
        read_bufsize=READ_BUFFER_BYTES,
    )


def _generator(
    settings: ReplaySettings,
    session: aiohttp.ClientSession,
    target: ReplayServer,
    on_outcome: Callable[[RequestOutcome], None],
) -> Generator:
    bodies = RequestBodies(
        settings.endpoint,
        target.model,
        target.simulated,
        target.max_model_len,
        PromptGenerator(settings.seed, settings.block_tokens),
    )
    client = ReplayClient(
        session=session,
        url=settings.url + settings.endpoint.path,
        bodies=bodies,
        tier_slos=target.tier_slos if settings.tier_slos is None else settings.tier_slos,
        timeout_s=settings.timeout_s,
    )
    return Generator(client, settings.max_in_flight, on_outcome)


def _ignore(outcome: RequestOutcome) -> None:
    """Ignore an outcome."""


def _allow_sockets(wanted: int) -> None:
    """Raise the limit of open files, because every request in flight is a socket. Raises Failure."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = min(wanted + 100, hard) if hard != resource.RLIM_INFINITY else wanted + 100
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    if needed < min(wanted, 1000):
        raise Failure(f"at most {hard} files may be open (ulimit -n); --max-inflight {wanted} needs more")
