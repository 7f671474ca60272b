"""A failed start is one clear line and an exit code; a late dependency is awaited."""

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from live.pool import LivePool
from live.pool_file import TIERS, write_pool
from live.process import Process
from patience import until

FLAGS = {
    "penstock-engine": ["--port", "0"],
    "penstock-sidecar": ["--name", "r0", "--listen", "127.0.0.1:0", "--engine", "http://127.0.0.1:9"],
    "penstock-router": ["--port", "0", "--replica", "r0=127.0.0.1:9"],
}
PROGRAMS = list(FLAGS)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that is in use."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def ended(folder: Path, command: list[str]) -> tuple[int, list[str]]:
    """Return the exit code and output lines of a process that ends."""
    process = Process(command[0], command, folder / "process.log")
    try:
        return process.exit_code(), process.printed_text.strip().splitlines()
    finally:
        process.kill()


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_taken_port_is_one_line(program: str, tmp_path: Path, taken: int) -> None:
    pool = write_pool(tmp_path / "pool.yaml")
    flags = [flag.replace("127.0.0.1:0", f"127.0.0.1:{taken}") for flag in FLAGS[program]]
    flags = [str(taken) if flag == "0" else flag for flag in flags]
    code, lines = ended(tmp_path, [program, "-f", str(pool), *flags])
    assert code == 1
    assert len(lines) == 1, lines
    assert f"127.0.0.1:{taken}" in lines[0]
    assert "port taken" in lines[0]


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_invalid_pool_file_is_one_line_per_error(program: str, tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool.yaml", tiers=[{**TIERS[0], "slo": {"tpot": "50"}}, TIERS[1]])
    code, lines = ended(tmp_path, [program, "-f", str(pool), *FLAGS[program]])
    assert code == 2
    assert len(lines) == 1, lines
    assert lines[0].endswith('pool.yaml: spec.tiers[0].slo.tpot: "50" has no unit; write 50ms or 0.05s')


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_missing_pool_file_is_one_line(program: str, tmp_path: Path) -> None:
    code, lines = ended(tmp_path, [program, "-f", str(tmp_path / "nothing.yaml"), *FLAGS[program]])
    assert code == 2
    assert len(lines) == 1, lines
    assert "nothing.yaml" in lines[0]


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_unknown_flag_is_an_error(program: str, tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool.yaml")
    code, lines = ended(tmp_path, [program, "-f", str(pool), *FLAGS[program], "--colour", "blue"])
    assert code == 2
    assert lines[-1].startswith(f"{program}: error:")
    assert "--colour" in lines[-1]


@pytest.mark.parametrize(
    ("program", "flag", "value"),
    [
        ("penstock-engine", "--port", "99999"),
        ("penstock-sidecar", "--listen", "nowhere"),
        ("penstock-sidecar", "--engine", "not a url"),
        ("penstock-router", "--port", "-1"),
        ("penstock-router", "--replica", "r0:127.0.0.1:9"),
    ],
)
def test_an_invalid_value_is_named(program: str, flag: str, value: str, tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool.yaml")
    code, lines = ended(tmp_path, [program, "-f", str(pool), *FLAGS[program], flag, value])
    assert code == 2, lines
    assert flag in lines[-1]
    assert value in lines[-1]
    assert "Traceback" not in "".join(lines)


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_starts_with_the_programs_usage(program: str, tmp_path: Path) -> None:
    code, lines = ended(tmp_path, [program, "--help"])
    assert code == 0
    assert lines[0].startswith(f"usage: {program}")


def test_a_replica_waits_for_a_late_engine(pool: LivePool) -> None:
    """The sidecar starts, reports that it has no engine, and serves once it has one."""
    pool.kill("engine", "r0")
    pool.kill("sidecar", "r0")
    pool.start("sidecar", "r0")
    assert pool.ready_replicas() == {"r1"}
    pool.start("engine", "r0")
    until(lambda: pool.ready_replicas() == {"r0", "r1"}, "r0 in service")
    with pool.client() as client:
        for _ in range(2):
            assert client.completions.create(model=pool.model, prompt="hello", max_tokens=1).choices


def test_a_router_without_replicas_is_live_but_not_ready(pool: LivePool) -> None:
    assert httpx2.get(f"{pool.url()}/ready").status_code == 200
    for name in pool.replicas:
        pool.kill("sidecar", name)
    until(lambda: httpx2.get(f"{pool.url()}/ready").status_code == 503, "not ready")
    assert httpx2.get(f"{pool.url()}/health").status_code == 200
