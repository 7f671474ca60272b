"""`penstock replay`: sends a recorded trace to a running server."""

import os
import sys
from pathlib import Path
from typing import Annotated

import orjson
import typer
import uvloop
from rich.console import Console

from penstock_cli.failure import Failure
from penstock_cli.replay.report import (
    Report,
    console_for_tables,
    lateness,
    prefix_lines,
    summary_line,
    table,
)
from penstock_cli.replay.request_bodies import ReplayEndpoint
from penstock_cli.replay.run import ReplaySettings
from penstock_cli.replay.run import replay as run_replay
from penstock_cli.replay.schedule import MOONCAKE_BLOCK_TOKENS
from penstock_cli.replay.slo_options import slos_from_options

STANDARD_OUTPUT = Path("-")


TraceFile = Annotated[
    Path, typer.Option(help="CSV (Penstock's or Azure's) or Mooncake JSONL, plain or gzip.")
]
Url = Annotated[str, typer.Option(help="URL of the server, without /v1.")]
AdminUrl = Annotated[
    str | None,
    typer.Option(
        help="Admin URL of the pool's router, which reports its tiers; detected for a pool on this machine."
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(help="Stretch the trace to this mean rate, requests/s."),
]
Duration = Annotated[
    float | None, typer.Option(help="Use only this many seconds of the trace, from its beginning.")
]
Seed = Annotated[int, typer.Option(help="Seed of the prompts' contents.")]
JsonFile = Annotated[
    Path | None,
    typer.Option(help="Write the result as JSON; - for standard output."),
]
RequestsFile = Annotated[Path | None, typer.Option(help="Write a CSV file with a line for each request.")]
TierName = Annotated[str, typer.Option(help="Tier of requests that have none in the trace.")]
TierMap = Annotated[
    list[str] | None,
    typer.Option(metavar="TRACE=POOL", help="Rename a tier of the trace. Repeatable."),
]
EndpointName = Annotated[
    ReplayEndpoint,
    typer.Option(help="completions: prompts with exact token counts; chat: text of about that length."),
]
Model = Annotated[str | None, typer.Option(help="Model name; by default the server's first.")]
ApiKey = Annotated[
    str | None, typer.Option(envvar="PENSTOCK_API_KEY", help="API key, sent as a bearer token.")
]
JudgeFile = Annotated[
    Path | None, typer.Option("-f", "--file", help="Judge requests by the tiers of this pool file.")
]
SloTargets = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TIER:TARGETS",
        help="Judge a tier by targets like ttft=800ms,tpot=50ms,answer_tpot=90ms,e2e=30s,judge=window.",
    ),
]
MaxInflight = Annotated[
    int,
    typer.Option(min=1, help="Most requests in flight. Further requests are not sent and count as failed."),
]
ClosedLoop = Annotated[
    bool | None,
    typer.Option(
        "--closed-loop/--open-loop",
        help="Send a session's next request after the previous answer and its think time (closed), or at its "
        "recorded time (open). Default: closed if the trace has think times. Without them a replay is open, "
        "and a simulation sends it at its recorded time, but not before the previous answer.",
    ),
]
BlockTokens = Annotated[
    int,
    typer.Option(min=1, metavar="N", help="Prompt tokens per hash id of the trace, often 512 or 16."),
]
Timeout = Annotated[float, typer.Option(help="Timeout of a request, in seconds.")]


def replay(
    *,
    trace: TraceFile,
    url: Url,
    admin_url: AdminUrl = None,
    rate: Rate = None,
    duration: Duration = None,
    seed: Seed = 0,
    json: JsonFile = None,
    requests: RequestsFile = None,
    tier: TierName = "",
    tier_map: TierMap = None,
    endpoint: EndpointName = ReplayEndpoint.COMPLETIONS,
    model: Model = None,
    api_key: ApiKey = None,
    file: JudgeFile = None,
    slo: SloTargets = None,
    closed_loop: ClosedLoop = None,
    block_tokens: BlockTokens = MOONCAKE_BLOCK_TOKENS,
    max_inflight: MaxInflight = 10_000,
    timeout: Timeout = 300.0,
) -> None:
    """Send a recorded trace at its arrival times, and judge each request by its tier's SLO.

    The load is open-loop: arrivals never wait for answers. Only sessions of a trace with think times, or all
    sessions with --closed-loop, send their next request after the previous answer. Prompts with equal
    hash_ids in the trace share their prefixes, so prefix caches have hits. The SLOs of a Penstock pool on
    this machine are detected; for a remote pool give --admin-url, for another server -f or --slo.

    Examples:

      penstock replay --trace examples/azure-excerpt.csv.gz --url http://127.0.0.1:8080

      penstock replay --trace AzureLLMInferenceTrace_code.csv --tier coder --rate 4 --url …

      penstock replay --trace t.csv --url http://vllm:8000 --slo chat:ttft=1s,tpot=100ms --json out.json

      penstock replay --trace agents.jsonl --block-tokens 16 --closed-loop --rate 2 --url …
    """
    check_positive({"--rate": rate, "--duration": duration, "--timeout": timeout})
    check_destinations({"--json": json})
    settings = ReplaySettings(
        trace=trace,
        url=url.rstrip("/").removesuffix("/v1"),
        admin_url=None if admin_url is None else admin_url.rstrip("/"),
        rate_rps=rate,
        duration_s=duration,
        seed=seed,
        tier=tier,
        renamed=parse_tier_map(tier_map or []),
        endpoint=endpoint,
        model=model,
        api_key=api_key,
        max_in_flight=max_inflight,
        timeout_s=timeout,
        tier_slos=slos_from_options(file, slo or []),
        rows=requests,
        closed_loop=closed_loop,
        block_tokens=block_tokens,
    )
    report = uvloop.run(run_replay(settings, Console(stderr=True)))
    show(report, f"{trace} at {url}", json)


def show(report: Report, title: str, json: Path | None) -> None:
    """Print the table and its summary, and write JSON if requested."""
    console = console_for_tables(stderr=json == STANDARD_OUTPUT)
    console.print(table(report, title))
    console.print(summary_line(report))
    for line in prefix_lines(report.tally):
        console.print(line)
    console.print(lateness(report.tally), style="dim")
    for reason, times in report.tally.reasons.most_common():
        console.print(f"failed: {times} × {reason}", style="red", markup=False)
    if json is not None:
        write_json(report, json)


def write_json(report: Report, path: Path) -> None:
    """Write the result as JSON to a file or standard output. Raises Failure."""
    data = orjson.dumps(report.as_json(), option=orjson.OPT_INDENT_2) + b"\n"
    if path == STANDARD_OUTPUT:
        sys.stdout.buffer.write(data)
        return
    try:
        path.write_bytes(data)
    except OSError as error:
        raise Failure(f"--json {path}: {error.strerror}") from None


def check_destinations(flags: dict[str, Path | None]) -> None:
    """Check before a long run that every given file can be written after it. Raises Failure."""
    for name, path in flags.items():
        if path is None or path == STANDARD_OUTPUT:
            continue
        if path.is_dir():
            raise Failure(f"{name} {path}: is a directory", bad_input=True)
        if not path.parent.is_dir():
            raise Failure(f"{name} {path}: the directory {path.parent} does not exist", bad_input=True)
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise Failure(f"{name} {path}: cannot be written", bad_input=True)


def check_positive(flags: dict[str, float | None]) -> None:
    """Check that every given flag is above 0. Raises Failure."""
    for name, value in flags.items():
        if value is not None and not 0 < value < float("inf"):
            raise Failure(f"{name} {value:g}: must be above 0", bad_input=True)


def parse_tier_map(pairs: list[str]) -> dict[str, str]:
    """Return the pool's tier name by the trace's, from --tier-map. Raises Failure."""
    for pair in pairs:
        if "=" not in pair:
            raise Failure(
                f'--tier-map: "{pair}" is not TRACE=POOL; write for example code=coder', bad_input=True
            )
    return dict(pair.split("=", 1) for pair in pairs)
