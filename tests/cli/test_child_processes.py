"""A pool's processes: restarted when they die, stopped on request, killed when they ignore it."""

import asyncio
import json
import os
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from loop_time import skip
from penstock_cli.failure import Failure
from penstock_cli.local import child_process, local_pool
from penstock_cli.local.child_process import LONGEST_LINE_BYTES, ChildProcess
from penstock_cli.local.effective_pool import Overrides, effective_pool
from penstock_cli.local.layout import (
    ADMIN_STEP,
    LOOPBACK,
    Layout,
    LocalPoolOptions,
    ProcessSpec,
    Role,
    plan_layout,
)
from penstock_cli.local.local_pool import until_ready
from penstock_cli.local.ports import check_free, free_ports, is_free
from penstock_cli.local.vllm_engine import VllmEngine
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.time_model import to_json
from penstock_pool import load_pool
from penstock_pool.time_models import FORMAT

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo-pool.yaml"
APPLICATIONS = "  applications:\n  - {name: ide, tier: coder, keys: {file: keys.txt}}\n"
PATIENCE_S = 30.0
PRINT_PID = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + PRINT_PID


class RecordedLog:
    """A log sink that can be waited on."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[str] = asyncio.Queue()
        self.notes: asyncio.Queue[str] = asyncio.Queue()

    def line(self, name: str, text: str) -> None:
        self.lines.put_nowait(text)

    def note(self, name: str, text: str) -> None:
        self.notes.put_nowait(f"{name}: {text}")

    async def next_line(self) -> str:
        return await asyncio.wait_for(self.lines.get(), PATIENCE_S)

    async def next_note(self) -> str:
        return await asyncio.wait_for(self.notes.get(), PATIENCE_S)


PYTHON = (sys.executable, "-I", "-S", "-c")
"""Starts with the standard library alone: no file of the environment can add a line to its output."""


def child(code: str, received: RecordedLog) -> ChildProcess:
    return ChildProcess(ProcessSpec("sidecar-r0", Role.SIDECAR, (*PYTHON, code)), received)


def is_running(pid: int) -> bool:
    """Whether it runs. A process that has ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def test_a_process_leads_its_own_group_in_the_session_of_its_parent() -> None:
    """Linux schedules sessions as units, so light processes wait long beside an engine in another session."""
    received = RecordedLog()
    one = child(PRINT_PID, received)
    pid = int(await received.next_line())
    assert (os.getpgid(pid), os.getsid(pid)) == (pid, os.getsid(0))
    await one.stop(PATIENCE_S)


async def test_a_killed_process_is_restarted() -> None:
    received = RecordedLog()
    one = child(PRINT_PID, received)
    first = int(await received.next_line())
    os.kill(first, signal.SIGKILL)
    reported = await received.next_note()
    assert reported.startswith("sidecar-r0: ended (signal 9; ")
    assert reported.endswith("restarting in 0.2 s")
    second = int(await received.next_line())
    assert second != first
    await one.stop(PATIENCE_S)
    assert not is_running(second)
    assert one.exits == 1


async def test_the_restart_delay_grows_with_repeated_failures() -> None:
    received = RecordedLog()
    one = child("raise SystemExit(3)", received)
    notes = [await received.next_note() for _ in range(3)]
    assert [note.rpartition(" in ")[2] for note in notes] == ["0.2 s", "0.4 s", "0.8 s"]
    assert "exit code 3" in notes[0]
    await one.stop(PATIENCE_S)  # while it pauses


async def test_a_process_stays_down_for_the_restart_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_cli.local.child_process.FIRST_PAUSE_S", 3600.0)
    received, starts, start = RecordedLog(), list[object](), asyncio.create_subprocess_exec

    async def noted(*argv: str, **options: Any) -> asyncio.subprocess.Process:
        starts.append(argv)
        return await start(*argv, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    one = child("raise SystemExit(3)", received)
    assert (await received.next_note()).endswith("restarting in 3600 s")
    await skip(3599.0)
    assert len(starts) == 1
    await skip(1.5)
    assert len(starts) == 2
    await received.next_note()
    await one.stop(PATIENCE_S)
    assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing of it is left"


async def test_the_restart_delay_is_bounded_and_reset_after_a_stable_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child_process, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(child_process, "LONGEST_PAUSE_S", 0.03)
    for settled_s, pauses in ((3600.0, ["0.01 s", "0.02 s", "0.03 s", "0.03 s"]), (0.0, ["0.01 s"] * 4)):
        monkeypatch.setattr(child_process, "SETTLED_S", settled_s)
        received = RecordedLog()
        one = child("", received)
        notes = [await received.next_note() for _ in range(4)]
        assert [note.rpartition(" in ")[2] for note in notes] == pauses
        await one.stop(PATIENCE_S)


LEAVES = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("up", flush=True)
signal.sigwait({signal.SIGTERM})
print(sys.argv[1])
"""


async def test_a_role_is_stopped_once_those_before_it_have_ended() -> None:
    received = RecordedLog()
    children = [
        ChildProcess(ProcessSpec(role.value, role, (*PYTHON, LEAVES, role.value)), received)
        for role in reversed(Role)
    ]
    for _ in children:
        assert await received.next_line() == "up"
    await local_pool.stop(children, PATIENCE_S)
    assert [received.lines.get_nowait() for _ in children] == [role.value for role in Role]
    assert received.notes.empty(), "none ended by itself, none was killed"


async def test_a_pool_that_stops_has_its_drain_timeout_and_a_grace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One process ignores SIGTERM, so that its end is seen when it is killed."""
    deaf = ProcessSpec("engine-r0", Role.ENGINE, (*PYTHON, DEAF))
    layout = Layout((deaf,), "", "", (), (), (), files={tmp_path / "settings": b"text"})
    monkeypatch.setattr(local_pool, "plan_layout", lambda *_: layout)
    monkeypatch.setattr(local_pool, "STOP_GRACE_S", 0.1)
    received = RecordedLog()
    options = LocalPoolOptions(DEMO, replicas=1, host=LOOPBACK, port=0)
    async with local_pool.local_pool(options, received, 0.2, lambda *_: None) as found:
        assert found is layout
        assert (tmp_path / "settings").read_bytes() == b"text"
        await received.next_line()
    assert await received.next_note() == "engine-r0: did not stop within 0.3 s; killing it"


async def test_a_process_that_ignores_the_signal_is_killed() -> None:
    received = RecordedLog()
    one = child(DEAF, received)
    pid = int(await received.next_line())
    await one.stop(0.1)
    assert await received.next_note() == "sidecar-r0: did not stop within 0.1 s; killing it"
    assert not is_running(pid)


async def test_children_of_a_killed_process_end() -> None:
    received = RecordedLog()
    one = child(
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {PRINT_PID!r}]); {PRINT_PID}",
        received,
    )
    pids = {int(await received.next_line()), int(await received.next_line())}
    assert one.last_pid in pids
    os.kill(one.last_pid, signal.SIGKILL)
    assert "restarting" in await received.next_note()
    async with asyncio.timeout(PATIENCE_S):
        while any(map(is_running, pids)):  # noqa: ASYNC110  # no event signals the end of another's child
            await asyncio.sleep(0.01)
    await one.stop(PATIENCE_S)


async def test_a_long_line_is_forwarded_without_blocking() -> None:
    received = RecordedLog()
    one = child(f"print('x' * {3 * LONGEST_LINE_BYTES}); print('after', flush=True); " + PRINT_PID, received)
    seen = ""
    while not seen.endswith("after"):
        seen += await received.next_line()
    assert seen.count("x") == 3 * LONGEST_LINE_BYTES
    await one.stop(PATIENCE_S)


def test_a_layout_names_every_process_and_no_port_twice() -> None:
    options = LocalPoolOptions(DEMO, replicas=3, host=LOOPBACK, port=0, seed=7, truth="exact")
    layout = plan_layout(options, Path("/run/sockets"))
    assert [process.name for process in layout.processes] == [
        "engine-r0",
        "engine-r1",
        "engine-r2",
        "sidecar-r0",
        "sidecar-r1",
        "sidecar-r2",
        "router",
    ]
    addresses = [
        layout.url,
        layout.admin_url,
        *layout.engines,
        *(url.removesuffix("/metrics") for url in layout.metrics),
    ]
    assert len(set(addresses)) == 8
    engine, sidecar = layout.processes[1].argv, layout.processes[4].argv
    assert engine[engine.index("--seed") + 1] == "8"
    assert engine[engine.index("--truth") + 1] == "exact"
    for argv in (engine, sidecar):
        assert argv[argv.index("--telemetry") + 1] == "/run/sockets/r1.sock"
    assert sidecar[sidecar.index("--engine") + 1] == layout.engines[1]
    assert layout.processes[-1].argv.count("--replica") == 3


def laid_out(port: int = 0, admin_port: int | None = None) -> Layout:
    return plan_layout(
        LocalPoolOptions(DEMO, 1, "0.0.0.0", port=port, admin_port=admin_port), Path("/run/sockets")
    )


def test_the_admin_port_is_on_loopback_wherever_the_router_listens() -> None:
    (port,) = free_ports(1, LOOPBACK)
    layout = laid_out(admin_port=port)
    assert layout.admin_url == f"http://{LOOPBACK}:{port}"
    router = layout.processes[-1].argv
    assert router[router.index("--host") + 1] == "0.0.0.0"
    assert router[router.index("--admin-host") + 1] == LOOPBACK
    assert router[router.index("--admin-port") + 1] == str(port)


def test_by_default_the_admin_port_is_1000_above_the_routers() -> None:
    port = next(port for port in free_ports(50, LOOPBACK) if is_free(LOOPBACK, port + ADMIN_STEP))
    assert laid_out(port).admin_url == f"http://{LOOPBACK}:{port + ADMIN_STEP}"


def test_a_usual_admin_port_that_is_taken_is_replaced_by_a_free_one() -> None:
    port = next(port for port in free_ports(50, LOOPBACK) if is_free(LOOPBACK, port + ADMIN_STEP))
    with socket.create_server((LOOPBACK, port + ADMIN_STEP)):
        assert laid_out(port).admin_url != f"http://{LOOPBACK}:{port + ADMIN_STEP}"


def test_a_requested_admin_port_has_to_be_free() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Failure, match=f"port {port} on .* is taken; choose another with --admin-port"):
            laid_out(admin_port=port)


def test_external_engines_are_not_started() -> None:
    layout = plan_layout(
        LocalPoolOptions(DEMO, 1, LOOPBACK, port=0, engines=("http://gpu:8000",)), Path("/run/sockets")
    )
    assert [process.name for process in layout.processes] == ["sidecar-r0", "router"]
    assert "--telemetry" not in layout.processes[0].argv
    assert layout.engines == ("http://gpu:8000",)


def test_free_ports_are_free() -> None:
    ports = free_ports(5, LOOPBACK)
    assert len(set(ports)) == 5
    for port in ports:
        check_free(LOOPBACK, port, "--port")
    with pytest.raises(Failure, match=r"cannot listen on 192\.0\.2\.1 port 80"):
        check_free("192.0.2.1", 80, "--port")


def test_overrides_reach_every_process_in_one_file(tmp_path: Path) -> None:
    source = tmp_path / "pools" / "pool.yaml"
    source.parent.mkdir()
    source.write_text(DEMO.read_text() + APPLICATIONS)
    changed, pool = effective_pool(source, Overrides(policy="vllm"), tmp_path)
    assert changed == tmp_path / "pool.yaml"
    assert pool.spec.scheduling.policy == "vllm"
    assert pool.spec.routing.max_hops == 2  # the rest is as it was
    assert pool.spec.applications[0].keys.file == str(source.parent / "keys.txt")


def test_files_that_a_pool_names_are_found_from_its_changed_copy(tmp_path: Path) -> None:
    source = tmp_path / "pools" / "pool.yaml"
    source.parent.mkdir()
    model = {"format": FORMAT, "model": "m", "time_model": to_json(time_model("llama-3-8b-a100"))}
    (source.parent / "m.json").write_text(json.dumps(model))
    (source.parent / "keys").write_text("sk-" + "a" * 40 + "\n")
    keys = [{"file": "keys"}, {"secret": "keys"}]
    document = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ServingPool",
        "metadata": {"name": "p"},
        "spec": {
            "model": {"name": "m"},
            "engine": {"type": "vllm", "timeModel": "m.json"},
            "tiers": [{"name": "chat", "bestEffort": True}],
            "applications": [
                {"name": f"a{number}", "tier": "chat", "keys": of} for number, of in enumerate(keys)
            ],
        },
    }
    source.write_text(json.dumps(document))
    overrides = Overrides(engine_type="openai", order="round-robin", backup="reject")
    changed, pool = effective_pool(source, overrides, tmp_path)
    assert pool.spec.engine.time_model == str(source.parent / "m.json")
    assert [application.keys.file for application in pool.spec.applications] == [
        str(source.parent / "keys"),
        None,
    ]
    assert (pool.spec.engine.type, pool.spec.routing.order, pool.spec.routing.backup) == (
        *("openai", "round-robin", "reject"),
    )
    assert changed.parent == tmp_path


def test_without_overrides_the_users_own_file_is_read(tmp_path: Path) -> None:
    assert effective_pool(DEMO, Overrides(), tmp_path)[0] == DEMO
    assert list(tmp_path.iterdir()) == []


def test_vllm_is_started_with_the_plug_in_and_the_pools_policy() -> None:
    pool = load_pool(DEMO)
    options = LocalPoolOptions(
        DEMO, 1, LOOPBACK, port=0, vllm=VllmEngine(Path("/opt/vllm/bin/python"), "/models/tiny")
    )
    layout = plan_layout(options, Path("/run/sockets"), pool)
    engine = layout.processes[0]
    assert engine.argv[:3] == ("/opt/vllm/bin/python", "-X", "penstock-engine")
    flags = dict(zip(engine.argv[5::2], engine.argv[6::2], strict=True))
    assert flags["--model"] == "/models/tiny"
    assert flags["--served-model-name"] == pool.spec.model.name
    assert flags["--scheduler-cls"] == "penstock_vllm.scheduler.PenstockScheduler"
    assert layout.engines == (f"http://{LOOPBACK}:{flags['--port']}",)
    assert engine.environment["PENSTOCK_POLICY"] == "slos-serve"
    sidecar = layout.processes[1].argv
    assert sidecar[sidecar.index("--telemetry") + 1] == engine.environment["PENSTOCK_TELEMETRY"]
    assert (
        layout.start_s
        > plan_layout(LocalPoolOptions(DEMO, 1, LOOPBACK, port=0), Path("/run/sockets")).start_s
    )


async def why(code: str) -> str:
    """Return the log's message about a process that ends."""
    received = RecordedLog()
    one = child(code, received)
    output = await received.next_note()
    await one.stop(PATIENCE_S)
    return output.removeprefix("sidecar-r0: ended (").partition("); restarting in")[0]


async def test_the_cause_of_an_end_is_known_while_the_next_process_runs(tmp_path: Path) -> None:
    received, before = RecordedLog(), tmp_path / "before"
    first = f"import pathlib; before = pathlib.Path({str(before)!r})"
    fails = "if not before.exists(): before.touch(); raise OSError('gone')"
    one = child(f"{first}\n{fails}\n{PRINT_PID}", received)
    await received.next_note()
    while not (await received.next_line()).isdigit():
        pass
    assert one.exit_reason == "exit code 1: OSError: gone"
    await one.stop(PATIENCE_S)


async def test_the_log_of_the_ended_process_is_quoted() -> None:
    assert await why("raise OSError(98, 'Address already in use')") == (
        "exit code 1: OSError: [Errno 98] Address already in use"
    )


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.kill(os.getpid(), 9)",
        # vLLM's server, when the process that works for it was killed
        "raise RuntimeError(\"See root cause above. Failed core proc(s): {'EngineCore_DP0': -9}\")",
    ],
)
async def test_a_killed_process_may_have_run_out_of_memory(code: str) -> None:
    assert (await why(code)).endswith("run fewer replicas, or give engines less memory")


async def test_a_pool_that_is_never_ready_names_the_part_that_is_not(tmp_path: Path) -> None:
    pool = load_pool(DEMO)
    options = LocalPoolOptions(DEMO, replicas=1, host=LOOPBACK, port=0, engines=("http://127.0.0.1:9",))
    layout = replace(plan_layout(options, tmp_path, pool), start_s=0.2)
    with pytest.raises(
        Failure, match=r"not ready after 0\.2 s: http://127\.0\.0\.1:9/health does not answer"
    ):
        await until_ready(layout, [], lambda ready, parts: None)


async def test_a_pool_is_ready_when_every_part_answers_200(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_pool, "POLL_S", 0.001)
    requested: list[str] = []

    async def part(request: web.Request) -> web.Response:
        requested.append(request.path)
        return web.Response(
            status=503 if request.path == "/ready" and requested.count("/ready") == 1 else 200
        )

    app = web.Application()
    app.router.add_get("/{part}", part)
    async with TestServer(app) as server:
        url = str(server.make_url("")).rstrip("/")
        options = LocalPoolOptions(DEMO, replicas=1, host=LOOPBACK, port=0)
        layout = plan_layout(options, tmp_path, load_pool(DEMO))
        layout = replace(layout, engines=(url,), metrics=(f"{url}/metrics",), ready=(f"{url}/ready",))
        reported: list[tuple[int, int]] = []
        await until_ready(layout, [], lambda *progress: reported.append(progress))
    assert reported == [(2, 3), (3, 3)]
    assert sorted(requested) == ["/health", "/health", "/metrics", "/metrics", "/ready", "/ready"]


async def test_parts_that_are_not_ready_are_checked_again_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_pool, "POLL_S", 3600.0)
    requested: list[str] = []

    async def unready(request: web.Request) -> web.Response:
        requested.append(request.path)
        return web.Response(status=503)

    app = web.Application()
    app.router.add_get("/{part}", unready)
    async with TestServer(app) as server:
        url = str(server.make_url("")).rstrip("/")
        layout = Layout((), url, url, (), (), (f"{url}/ready",), start_s=0.5)
        with pytest.raises(Failure, match=r"the pool is not ready after 0\.5 s"):
            await until_ready(layout, [], lambda *_: None)
    assert requested == ["/ready"]
