"""The command `penstock up`: the pool that its flags configure, and its output."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from penstock_cli.local.certificate import CertificateFiles
from penstock_cli.local.layout import GatewayKind, Layout, LocalPoolOptions
from penstock_cli.local.log_sinks import ConsoleSink
from penstock_cli.local.vllm_engine import VllmEngine
from penstock_cli.main import app, run
from penstock_pool import Pool

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo-pool.yaml"


@dataclass
class Pools:
    """The processes that were started, each stopped as soon as it runs."""

    started: list[tuple[LocalPoolOptions, float, Pool]] = field(default_factory=list)
    stopped: int = 0

    @asynccontextmanager
    async def local_pool(
        self,
        options: LocalPoolOptions,
        sink: ConsoleSink,
        drain_s: float,
        on_progress: Callable[[int, int], None],
        pool: Pool,
    ) -> AsyncIterator[Layout]:
        self.started.append((options, drain_s, pool))
        on_progress(1, 5)
        sink.line("sidecar-r0", "one line")
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
        try:
            yield Layout((), "http://127.0.0.1:8080", "http://127.0.0.1:9080", (), (), ())
        finally:
            self.stopped += 1


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> Pools:
    pools = Pools()
    monkeypatch.setattr("penstock_cli.commands.up.local_pool", pools.local_pool)
    return pools


def penstock(*flags: object, file: Path = DEMO) -> int:
    return run(lambda: app(["up", "-f", str(file), *map(str, flags)]))


def options(pools: Pools) -> LocalPoolOptions:
    ((options, *_),) = pools.started
    return options


def test_without_flags_the_file_is_run_unchanged(pools: Pools) -> None:
    assert penstock() == 0
    assert options(pools) == LocalPoolOptions(
        DEMO, 2, "127.0.0.1", 8080, engines=(), truth="measured", seed=0, admin_port=None
    )
    assert pools.stopped == 1


def test_every_flag_reaches_the_pool(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = CertificateFiles(Path("tls.crt"), Path("tls.key"))
    monkeypatch.setattr("penstock_cli.commands.up.certificate_files", CertificateFiles)
    flags = "--port 1234 --admin-port 2345 --host 0.0.0.0 --replicas 5 --truth exact --seed 7 --policy vllm"
    flags += " --gateway envoy"
    assert penstock(*flags.split(), "--tls-cert", pair.cert, "--tls-key", pair.key) == 0
    found = options(pools)
    assert found.pool_file.name == DEMO.name and found.pool_file != DEMO
    assert found == LocalPoolOptions(
        found.pool_file,
        5,
        "0.0.0.0",
        1234,
        truth="exact",
        seed=7,
        admin_port=2345,
        certificate=pair,
        gateway=GatewayKind.ENVOY,
    )
    assert pools.started[0][2].spec.scheduling.policy == "vllm"


def test_each_running_engine_is_a_replica(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_cli.commands.up.check_engines", lambda *_: None)
    assert penstock("--engine", "http://a:1/v1/, http://b:2/,https://c:3") == 0
    found = options(pools)
    assert found.engines == ("http://a:1", "http://b:2", "https://c:3")
    assert (found.replicas, found.vllm) == (3, None)


def test_vllm_is_started_on_request(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = VllmEngine(Path("python"), "model")
    monkeypatch.setattr("penstock_cli.commands.up.vllm_engine", lambda *_: engine)
    assert penstock("--engine", "vllm") == 0
    assert options(pools).vllm == engine
    assert pools.started[0][2].spec.engine.type == "vllm"


def test_a_pool_drains_for_the_longer_of_its_drain_timeouts(pools: Pools, tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    for router, sidecar in (("40s", "30s"), ("20s", "40s")):
        text = DEMO.read_text().replace(
            "scheduling: {", f"router: {{drainTimeout: {router}}}\n  scheduling: {{drainTimeout: {sidecar}, "
        )
        path.write_text(text)
        assert penstock(file=path) == 0
    assert [drain_s for _, drain_s, _ in pools.started] == [40.0, 40.0]


def test_up_prints_each_process_its_addresses_and_its_end(
    pools: Pools, capfd: pytest.CaptureFixture[str]
) -> None:
    assert penstock("--replicas", 11) == 0
    lines = [line.rstrip() for line in capfd.readouterr().err.splitlines()]
    assert lines[0] == "sidecar-r0  | one line"
    shown = "\n".join(lines)
    assert "on 11 replicas" in shown
    assert "serving at http://127.0.0.1:8080/v1 — Ctrl-C stops it" in lines
    assert "metrics and the pool's state at http://127.0.0.1:9080" in lines
    assert any(line.startswith("coder") for line in lines)
    assert lines[-1] == "stopping: the router first, engines last"


@pytest.mark.parametrize(
    ("flag", "least", "most"), [("--port", 0, 65535), ("--admin-port", 0, 65535), ("--replicas", 1, 64)]
)
def test_a_flag_accepts_values_within_its_bounds(pools: Pools, flag: str, least: int, most: int) -> None:
    assert [penstock(flag, value) for value in (least - 1, least, most, most + 1)] == [2, 0, 0, 2]
    assert len(pools.started) == 2


@pytest.mark.parametrize(("replicas", "prefix"), [(10, "sidecar-r0 |"), (11, "sidecar-r0  |")])
def test_log_lines_are_aligned_with_those_of_the_last_replica(
    pools: Pools, capfd: pytest.CaptureFixture[str], replicas: int, prefix: str
) -> None:
    assert penstock("--replicas", replicas) == 0
    assert capfd.readouterr().err.startswith(f"{prefix} one line\n")


def test_the_number_of_ready_parts_is_shown_until_all_are_ready(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr("rich.status.Status.update", lambda status, text: shown.append(text))
    monkeypatch.setattr("rich.status.Status.stop", lambda status: shown.append("stopped"))

    def table(pool: Pool) -> str:
        shown.append("table")
        return ""

    monkeypatch.setattr("penstock_cli.commands.up.tiers_table", table)
    assert penstock() == 0
    assert shown[:3] == ["starting: 1 of 5 components are ready", "stopped", "table"]
