"""A picker that starts beside an Envoy that an earlier picker has drained."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from gateway.envoy import Gateway, ext_authz, gateway, restarted
from gateway.picking import chat, ext_authz_address, picker_of
from gateway.replica import HttpReplica
from patience import eventually
from penstock_picker.admin_port import admin_app
from penstock_picker.drained_envoy import DrainedEnvoy
from penstock_picker.envoy_drain import drain_envoy
from penstock_picker.picker import Picker
from penstock_runtime.serving import address_of, listen, serving


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[tuple[Gateway, Picker, HttpReplica]]:
    """One replica behind Envoy."""
    r0 = HttpReplica("r0")
    async with (
        picker_of((r0,)) as picker,
        ext_authz_address(picker) as address,
        gateway(tmp_path, ext_authz(address), [r0.endpoint]) as envoy,
    ):
        yield envoy, picker, r0


@contextmanager
def next_picker(socket: str | Path) -> Iterator[DrainedEnvoy]:
    """What a picker that starts now does about Envoy."""
    envoy = DrainedEnvoy(Path(socket), 60.0)
    restarting = asyncio.get_running_loop().create_task(envoy.restart())
    try:
        yield envoy
    finally:
        restarting.cancel()


async def test_a_drained_envoy_is_ended_after_its_last_request_and_unready_until_it_is_live(
    one: tuple[Gateway, Picker, HttpReplica],
) -> None:
    front, picker, r0 = one
    r0.streams = True
    request = front.http.build_request("POST", "/v1/chat/completions", json=chat())
    stream = await front.http.send(request, stream=True)
    await drain_envoy(Path(front.settings.admin_socket), 0.0, 0.0)
    listener = listen("127.0.0.1", 0)
    with next_picker(front.settings.admin_socket) as envoy:
        pages = admin_app(picker, picker._replica_set, "test", envoy=envoy)
        async with (
            serving(pages, listener, 0.0),
            httpx2.AsyncClient(base_url=f"http://{address_of(listener)}") as admin,
        ):
            await eventually(lambda: "drained" in (envoy.unready or ""))
            page = await admin.get("/ready")
            assert (page.status_code, page.json()["error"]["code"]) == (503, "envoy_not_ready")
            assert front.process.poll() is None
            r0.held.set()
            assert (await stream.aread()).endswith(b"[DONE]\n\n")
            assert await asyncio.to_thread(front.process.wait, 60) == 0
            assert envoy.unready is not None
            async with restarted(front) as again:
                await eventually(lambda: envoy.unready is None)
                assert (await admin.get("/ready")).status_code == 200
                assert (await again.http.get("/v1/models")).status_code == 200


async def test_an_envoy_that_serves_is_left_alone_even_if_it_is_drained_later(
    one: tuple[Gateway, Picker, HttpReplica],
) -> None:
    front, _, _ = one
    with next_picker(front.settings.admin_socket) as envoy:
        await eventually(lambda: envoy.unready is None)
        await drain_envoy(Path(front.settings.admin_socket), 0.0, 0.0)
        assert envoy.unready is None
        assert front.process.poll() is None


async def test_an_envoy_that_is_not_started_yet_does_not_make_a_picker_unready(tmp_path: Path) -> None:
    with next_picker(tmp_path / "none.sock") as envoy:
        assert envoy.unready is not None
        await eventually(lambda: envoy.unready is None)
