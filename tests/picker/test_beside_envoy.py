"""The picker and its Envoy: changing endpoints, and a drain before the picker stops."""

import asyncio
import re
import runpy
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import orjson
import pytest
from gateway.envoy import Gateway, ext_authz, gateway
from gateway.picking import chat, ext_authz_address, picker_of
from gateway.replica import HttpReplica
from patience import answered, eventually
from penstock_picker.admin_port import admin_app
from penstock_picker.endpoints_file import EndpointsFile
from penstock_picker.envoy_drain import drain_envoy
from penstock_picker.first_endpoints import main as first_endpoints
from penstock_picker.picker import Picker
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_runtime.envoy.endpoints import write_endpoints
from penstock_runtime.serving import address_of, listen, serving
from structlog.testing import capture_logs

BODY = orjson.dumps(chat())


def test_envoy_starts_with_no_endpoints_or_with_its_previous_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "endpoints.json"
    assert first_endpoints([str(file)]) == 0
    assert ports(file) == set()
    write_endpoints(file, ["10.0.0.1:7100"])
    assert first_endpoints([str(file)]) == 0
    assert ports(file) == {7100}
    assert first_endpoints([]) == 2
    assert first_endpoints([str(tmp_path / "none" / "endpoints.json")]) == 1
    assert "none/endpoints.json: No such file or directory" in capsys.readouterr().err


def test_the_endpoints_file_is_created_by_its_own_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "endpoints.json"
    for arguments, code in (([str(file)], 0), ([], 2)):
        monkeypatch.setattr(sys, "argv", ["first_endpoints", *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(first_endpoints.__code__.co_filename, run_name="__main__")
        assert ended.value.code == code
    assert ports(file) == set()


class Known:
    """A set of replicas as a picker knows it."""

    def __init__(self) -> None:
        self.known, self.links, self.endpoints = False, ["r0"], dict[str, str]()

    def http_endpoints(self) -> dict[str, str]:
        return self.endpoints


@contextmanager
def kept(file: EndpointsFile, replica_set: object) -> Iterator[None]:
    keeping = asyncio.get_running_loop().create_task(file.maintain(replica_set))  # type: ignore[arg-type]
    try:
        yield
    finally:
        keeping.cancel()


def names_in(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


def ports(path: Path) -> set[int]:
    (assigned,) = orjson.loads(path.read_bytes())["resources"]
    hosts = [
        each["endpoint"]["address"]["socket_address"] for each in assigned["endpoints"][0]["lb_endpoints"]
    ]
    return {host["port_value"] for host in hosts}


async def test_a_restarted_picker_keeps_the_endpoints_file_of_its_predecessor(tmp_path: Path) -> None:
    path, known = tmp_path / "endpoints.json", Known()
    write_endpoints(path, ["10.0.0.1:7100"])
    file = EndpointsFile(path)
    with kept(file, known):
        known.known = True  # and no replica has reported its port yet
        for _ in range(3):
            await asyncio.sleep(0)
        assert (file.written, ports(path)) == (None, {7100})
        known.endpoints = {"r0": "10.0.0.1:7101", "r1": "10.0.0.2:7102"}
        await eventually(lambda: ports(path) == {7101, 7102})
        known.links, known.endpoints = [], {}
        await eventually(lambda: ports(path) == set())
        assert names_in(tmp_path) == ["endpoints.json"]


async def test_a_file_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    folder, known = tmp_path / "later", Known()
    known.endpoints = {"r0": "10.0.0.1:7100"}
    file = EndpointsFile(folder / "endpoints.json")
    with kept(file, known):
        for _ in range(3):
            await asyncio.sleep(0)
        assert file.written is None
        folder.mkdir()
        await eventually(lambda: file.written is not None)
        assert ports(folder / "endpoints.json") == {7100}


async def test_a_failed_write_is_logged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, known = tmp_path / "later", Known()
    monkeypatch.setattr("penstock_picker.endpoints_file.CHECK_S", 0.0)
    file = EndpointsFile(folder / "endpoints.json")
    with capture_logs() as logs, kept(file, known):
        for times in (1, 2):
            known.endpoints = {"r0": f"10.0.0.{times}:7100"}
            for _ in range(5):
                await asyncio.sleep(0)
            assert [line["event"] for line in logs].count("endpoints not written") == times
            folder.mkdir()
            await eventually(lambda: file.written == frozenset(known.endpoints.values()))
            for each in folder.iterdir():
                each.unlink()
            folder.rmdir()


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[tuple[Gateway, Picker, HttpReplica]]:
    """One replica behind Envoy, which knows none."""
    r0 = HttpReplica("r0")
    async with (
        picker_of((r0,)) as picker,
        ext_authz_address(picker) as address,
        gateway(tmp_path, ext_authz(address), []) as envoy,
    ):
        yield envoy, picker, r0


async def test_envoy_receives_changed_endpoints_without_a_restart(
    one: tuple[Gateway, Picker, HttpReplica], tmp_path: Path
) -> None:
    envoy, picker, r0 = one
    assert (await envoy.chat(BODY)).status_code == 503
    file = EndpointsFile(Path(envoy.settings.endpoints_file))
    replica_set: ReplicaSet = picker._replica_set
    listener = listen("127.0.0.1", 0)
    async with (
        serving(admin_app(picker, replica_set, "test", file), listener, 0.0),
        httpx2.AsyncClient(base_url=f"http://{address_of(listener)}") as pages,
    ):
        assert (await pages.get("/ready")).status_code == 503  # Envoy does not know the replica
        with kept(file, replica_set):
            await eventually(lambda: file.written == frozenset({r0.endpoint}))
            assert (await pages.get("/ready")).status_code == 200
            await serves(envoy)


async def test_a_drain_ends_with_the_last_request(one: tuple[Gateway, Picker, HttpReplica]) -> None:
    envoy, _, r0 = one
    write_endpoints(Path(envoy.settings.endpoints_file), [r0.endpoint])
    await serves(envoy)
    r0.streams = True
    request = envoy.http.build_request("POST", "/v1/chat/completions", content=BODY)
    stream = await envoy.http.send(request, stream=True)
    draining = asyncio.create_task(drain_envoy(Path(envoy.settings.admin_socket), 0.0, 60.0))
    await refused(envoy)
    assert not draining.done()
    r0.held.set()
    assert (await stream.aread()).endswith(b"[DONE]\n\n")
    await draining


async def test_a_drain_does_not_outlast_its_time(one: tuple[Gateway, Picker, HttpReplica]) -> None:
    envoy, _, r0 = one
    write_endpoints(Path(envoy.settings.endpoints_file), [r0.endpoint])
    await serves(envoy)
    r0.streams = True
    request = envoy.http.build_request("POST", "/v1/chat/completions", content=BODY)
    stream = await envoy.http.send(request, stream=True)
    await drain_envoy(Path(envoy.settings.admin_socket), 0.0, 0.0)
    await stream.aclose()


async def test_an_endpoint_that_is_taken_out_finishes_its_requests(
    one: tuple[Gateway, Picker, HttpReplica],
) -> None:
    envoy, _, r0 = one
    file = Path(envoy.settings.endpoints_file)
    write_endpoints(file, [r0.endpoint])
    await serves(envoy)
    r0.streams = True
    request = envoy.http.build_request("POST", "/v1/chat/completions", content=BODY)
    stream = await envoy.http.send(request, stream=True)
    r0.streams = False
    write_endpoints(file, [])
    await answers(envoy, 503)
    r0.held.set()
    assert (await stream.aread()).endswith(b"[DONE]\n\n")


@pytest.mark.parametrize("nonsense", [b"", b"{", b'{"resources": [{}]}', b'{"resources": 7}'])
async def test_with_an_unreadable_file_envoy_keeps_its_endpoints(
    nonsense: bytes, one: tuple[Gateway, Picker, HttpReplica]
) -> None:
    envoy, _, r0 = one
    file = Path(envoy.settings.endpoints_file)
    write_endpoints(file, [r0.endpoint])
    await serves(envoy)
    beside = file.with_name("nonsense")
    beside.write_bytes(nonsense)
    beside.replace(file)
    await refuses_a_file(envoy)
    assert (await envoy.chat(BODY)).status_code == 200
    write_endpoints(file, [])
    await answers(envoy, 503)


async def refuses_a_file(envoy: Gateway) -> None:
    """Wait until Envoy has counted a file that it does not take."""
    counts = re.compile(r'^envoy_cluster_update_(?:rejected|failure){.*="replicas"} (\d+)$', re.M)

    async def counted() -> int:
        return sum(map(int, counts.findall((await envoy.pages.get("/stats/prometheus")).text)))

    await answered(counted)


async def serves(envoy: Gateway) -> None:
    """Wait until Envoy has read the file of endpoints, which it does not report."""
    await answers(envoy, 200)


async def answers(envoy: Gateway, status: int) -> None:
    """Wait until requests are answered with this status."""

    async def answer() -> bool:
        return (await envoy.chat(BODY)).status_code == status

    await answered(answer, f"an answer with status {status}")


async def refused(envoy: Gateway) -> None:
    """Wait until Envoy takes no more connections."""
    async with asyncio.timeout(30):
        while True:
            try:
                async with httpx2.AsyncClient(base_url=str(envoy.http.base_url)) as fresh:
                    await fresh.get("/v1/nothing")
            except httpx2.TransportError:
                return
            await asyncio.sleep(0.01)


async def test_an_ended_envoy_needs_no_drain(tmp_path: Path) -> None:
    await drain_envoy(tmp_path / "none.sock", 60.0, 60.0)
