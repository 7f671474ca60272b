"""`penstock replay`: a recorded trace against a running server."""

import sys
from pathlib import Path
from typing import Annotated

import orjson
import typer
import uvloop
from rich.console import Console

from penstock_cli.failure import Failure
from penstock_cli.replay.judging import promises_from
from penstock_cli.replay.report import Report, console_for_tables, lateness, meaning, table
from penstock_cli.replay.run import Settings
from penstock_cli.replay.run import replay as run_replay
from penstock_cli.replay.wording import Endpoint

STANDARD_OUTPUT = Path("-")


TraceFile = Annotated[
    Path, typer.Option(help="CSV (ours or Azure's) or Mooncake JSONL, plain or gzip.", show_default=False)
]
Url = Annotated[str, typer.Option(help="The server, without /v1.", show_default=False)]
AdminUrl = Annotated[
    str | None,
    typer.Option(
        help="The admin port of the pool's router, which tells its tiers; on this machine it is found.",
        show_default=False,
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(help="Stretch the trace to this mean rate, requests/s.", show_default=False),
]
Duration = Annotated[float | None, typer.Option(help="Only the first so many seconds.", show_default=False)]
Seed = Annotated[int, typer.Option(help="Of the prompts' contents.")]
JsonFile = Annotated[
    Path | None,
    typer.Option(help="Write the result as JSON; - for standard output.", show_default=False),
]
RequestsFile = Annotated[
    Path | None, typer.Option(help="Write a CSV line for each request.", show_default=False)
]
TierName = Annotated[str, typer.Option(help="Tier of requests whose trace names none.", show_default=False)]
TierMap = Annotated[
    list[str] | None,
    typer.Option(metavar="TRACE=POOL", help="Rename a tier of the trace. Repeatable.", show_default=False),
]
EndpointName = Annotated[
    Endpoint, typer.Option(help="completions sends exact token counts, chat text of about that length.")
]
Model = Annotated[
    str | None, typer.Option(help="One of the server's; its first otherwise.", show_default=False)
]
ApiKey = Annotated[
    str | None, typer.Option(envvar="PENSTOCK_API_KEY", help="Sent as a bearer token.", show_default=False)
]
JudgeFile = Annotated[
    Path | None, typer.Option("-f", "--file", help="Judge by this pool file's tiers.", show_default=False)
]
SloTargets = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TIER:TARGETS",
        help="Judge a tier by targets like ttft=800ms,tpot=50ms,answer_tpot=90ms,e2e=30s,judge=window.",
        show_default=False,
    ),
]
MaxInflight = Annotated[int, typer.Option(min=1, help="Beyond it, requests count as failed.")]
Timeout = Annotated[float, typer.Option(help="Seconds for one whole request.")]


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
    endpoint: EndpointName = Endpoint.COMPLETIONS,
    model: Model = None,
    api_key: ApiKey = None,
    file: JudgeFile = None,
    slo: SloTargets = None,
    max_inflight: MaxInflight = 10_000,
    timeout: Timeout = 300.0,
) -> None:
    """Send a recorded trace in its own time, and judge each request by what its tier promises.

    Arrivals never wait for answers. A Penstock pool on this machine tells its tiers itself, one elsewhere at
    its --admin-url; for another server say what to judge by, with -f or --slo.

    Examples:

      penstock replay --trace examples/azure-excerpt.csv.gz --url http://127.0.0.1:8080

      penstock replay --trace AzureLLMInferenceTrace_code.csv --tier coder --rate 4 --url …

      penstock replay --trace t.csv --url http://vllm:8000 --slo chat:ttft=1s,tpot=100ms --json out.json
    """
    check_positive({"--rate": rate, "--duration": duration, "--timeout": timeout})
    settings = Settings(
        trace=trace,
        url=url.rstrip("/").removesuffix("/v1"),
        admin_url=None if admin_url is None else admin_url.rstrip("/"),
        rate_rps=rate,
        duration_s=duration,
        seed=seed,
        tier=tier,
        renamed=renamed(tier_map or []),
        endpoint=endpoint,
        model=model,
        api_key=api_key,
        max_in_flight=max_inflight,
        timeout_s=timeout,
        promises=promises_from(file, slo or []),
        rows=requests,
    )
    report = uvloop.run(run_replay(settings, Console(stderr=True)))
    show(report, f"{trace} at {url}", json)


def show(report: Report, title: str, json: Path | None) -> None:
    """The table, what it means, and the JSON where it was asked for."""
    console = console_for_tables(stderr=json == STANDARD_OUTPUT)
    console.print(table(report, title))
    console.print(meaning(report))
    console.print(lateness(report.tally), style="dim")
    for reason, times in report.tally.reasons.most_common():
        console.print(f"failed: {times} × {reason}", style="red", markup=False)
    if json is not None:
        write_json(report, json)


def write_json(report: Report, path: Path) -> None:
    """Write the result for programs. Raises Failure."""
    data = orjson.dumps(report.as_json(), option=orjson.OPT_INDENT_2) + b"\n"
    if path == STANDARD_OUTPUT:
        sys.stdout.buffer.write(data)
        return
    try:
        path.write_bytes(data)
    except OSError as error:
        raise Failure(f"--json {path}: {error.strerror}") from None


def check_positive(flags: dict[str, float | None]) -> None:
    """Raises Failure where a flag that was given is not above 0."""
    for name, value in flags.items():
        if value is not None and not 0 < value < float("inf"):
            raise Failure(f"{name} {value:g}: has to be above 0", bad_input=True)


def renamed(pairs: list[str]) -> dict[str, str]:
    """Tiers of the trace by the pool's names. Raises Failure."""
    for pair in pairs:
        if "=" not in pair:
            raise Failure(
                f'--tier-map: "{pair}" is no pair; write TRACE=POOL, for example code=coder', bad_input=True
            )
    return dict(pair.split("=", 1) for pair in pairs)
