"""`penstock demo`: the same trace on the same engines with both policies, and one table of the two."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from penstock_cli.local.layout import Layout, LocalPoolOptions
from penstock_cli.local.log_sinks import FileSink
from penstock_cli.main import app, run
from penstock_cli.replay.outcome import RequestEnding, RequestOutcome
from penstock_cli.replay.report import Report
from penstock_cli.replay.run import ReplaySettings
from penstock_cli.replay.tally import ReplayTally
from penstock_pool import load_pool
from rich.console import Console

ROOT = Path(__file__).resolve().parents[2]
POOL, TRACE = ROOT / "examples" / "demo-pool.yaml", ROOT / "examples" / "azure-excerpt.csv.gz"
ADMITTED, LATE = RequestEnding.ADMITTED, RequestEnding.BEST_EFFORT

Requests = list[tuple[str, RequestEnding, bool]]
OURS: Requests = [
    ("chat", ADMITTED, True),
    ("chat", ADMITTED, True),
    ("coder", ADMITTED, True),
    ("coder", LATE, False),
    ("batch", LATE, True),
    ("chat", RequestEnding.REJECTED, False),
]
THEIRS: Requests = [(tier, ADMITTED, tier == "chat") for tier, *_ in OURS]


def report(requests: Requests, reason: str = "", late_s: float = 0.001) -> Report:
    tally = ReplayTally(frozenset({"batch"}))
    for number, (tier, ending, met) in enumerate(requests):
        tally.add(RequestOutcome(str(number), tier, 0.0, 1, 1, ending, met=met, reason=reason), late_s)
    return Report(None, 2, span_s=3.0, tally=tally)


@dataclass
class Pools:
    """The pools that were started and the requests that were sent."""

    reports: dict[str, Report]
    started: list[tuple[str, str, LocalPoolOptions, float]] = field(default_factory=list)
    sent: list[tuple[ReplaySettings, str]] = field(default_factory=list)

    @asynccontextmanager
    async def local_pool(
        self, options: LocalPoolOptions, sink: FileSink, drain_s: float, on_progress: Callable[..., None]
    ) -> AsyncIterator[Layout]:
        spec = load_pool(options.pool_file).spec
        self.started.append((spec.scheduling.policy, spec.routing_order, options, drain_s))
        on_progress(1, 2)
        sink.line("router", "up")
        yield Layout((), "http://127.0.0.1:1", "http://127.0.0.1:2", (), (), ())

    async def replay(self, settings: ReplaySettings, console: Console, title: str) -> Report:
        assert console.stderr
        self.sent.append((settings, title))
        return self.reports[title]


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> Pools:
    pools = Pools({"slos-serve": report(OURS), "vllm": report(THEIRS)})
    monkeypatch.setattr("penstock_cli.commands.demo.local_pool", pools.local_pool)
    monkeypatch.setattr("penstock_cli.commands.demo.replay", pools.replay)
    return pools


def penstock(*flags: str) -> int:
    return run(lambda: app(["demo", "-f", str(POOL), "--trace", str(TRACE), *flags]))


def test_the_same_trace_is_sent_to_two_pools_that_differ_in_policy_and_order(pools: Pools) -> None:
    assert penstock("--seed", "7") == 0
    orders = [(policy, order) for policy, order, *_ in pools.started]
    assert orders == [("slos-serve", load_pool(POOL).spec.routing_order), ("vllm", "round-robin")]
    for _, _, options, drain_s in pools.started:
        assert (options.replicas, options.host, options.port, options.seed) == (2, "127.0.0.1", 0, 7)
        assert drain_s == 5.0
    assert [title for _, title in pools.sent] == ["slos-serve", "vllm"]
    for settings, _ in pools.sent:
        assert (settings.trace, settings.url, settings.seed) == (TRACE, "http://127.0.0.1:1", 7)
        assert settings.tier_slos is not None
        assert settings.tier_slos.slos.keys() == load_pool(POOL).tiers().keys()


def test_both_pools_are_shown_by_tier_worst_first_and_then_in_total(
    pools: Pools, capfd: pytest.CaptureFixture[str]
) -> None:
    assert penstock() == 0
    shown = capfd.readouterr()
    lines = [line.split() for line in shown.out.splitlines()]
    rows = [line[:5] for line in lines if line[1:2] in (["slos-serve"], ["vllm"])]
    assert rows == [
        ["coder", "slos-serve", "2", "50.0", "0.0"],
        ["coder", "vllm", "2", "0.0", "0.0"],
        ["chat", "slos-serve", "3", "66.7", "0.0"],
        ["chat", "vllm", "3", "100.0", "0.0"],
        ["batch", "slos-serve", "1", "–", "–"],
        ["batch", "vllm", "1", "–", "–"],
    ]
    together = [line for line in shown.out.splitlines() if line.startswith("all with targets")]
    assert [line.split()[3:6] for line in together] == [["slos-serve", "5", "60.0"], ["vllm", "5", "60.0"]]
    heads = next(line for line in shown.out.splitlines() if line.startswith("tier"))
    chat = next(line for line in shown.out.splitlines() if line.startswith("chat"))
    assert chat.index("slos-serve") == heads.index("policy")
    assert chat[: heads.index("requests") + len("requests")].endswith(" 3")
    assert "on 2 simulated replicas, a minute of Azure's traffic" in shown.out
    assert shown.out.startswith("\n")
    assert " ".join(shown.out.partition("At 2.0")[2].split()) == (
        "requests/s the same engines meet 60.0 % of SLOs with Penstock, which served 1 requests best effort "
        "and rejected 1, and 60.0 % first come, first served. "
        "slos-serve: This client sent p50 1.0, p99 1.0, at most 1.0 ms late: fine. "
        "vllm: This client sent p50 1.0, p99 1.0, at most 1.0 ms late: fine."
    )
    assert shown.err.splitlines() == ["slos-serve: starting 2 replicas", "vllm: starting 2 replicas"]


def test_requests_that_failed_make_the_demo_fail(pools: Pools, capfd: pytest.CaptureFixture[str]) -> None:
    failed: Requests = [(tier, RequestEnding.FAILED, False) for tier, *_ in OURS]
    pools.reports["vllm"] = report(failed, reason="500")
    assert penstock() == 1
    assert capfd.readouterr().err.splitlines()[-2:] == [
        "requests failed:",
        "vllm: 6 × 500",
    ]


@pytest.mark.parametrize(("flag", "missing"), [("-f", "none.yaml"), ("--trace", "none.csv")])
def test_a_missing_file_is_reported_before_a_process_starts(
    pools: Pools, capfd: pytest.CaptureFixture[str], flag: str, missing: str
) -> None:
    assert penstock(flag, missing) == 1
    assert capfd.readouterr().err == (
        f"{missing}: no such file; run this in the project's folder, or give --file and --trace\n"
    )
    assert pools.started == []
