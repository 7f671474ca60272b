"""Work for a client that disconnects."""

import asyncio

import pytest
from http_by_hand import request_in_hand
from loop_time import turns
from penstock_routing.response.client_scope import ClientScope
from penstock_runtime.http_request import ClientGone


async def test_work_for_a_client_that_disconnects_is_cancelled() -> None:
    http = request_in_hand()
    with pytest.raises(ClientGone):
        async with ClientScope(http):
            http.lost()
            await asyncio.get_running_loop().create_future()


async def test_no_work_begins_for_a_client_that_has_disconnected() -> None:
    http = request_in_hand()
    http.lost()
    with pytest.raises(ClientGone):
        async with ClientScope(http):
            await asyncio.get_running_loop().create_future()


async def test_a_client_may_disconnect_after_its_answer() -> None:
    http = request_in_hand()
    async with ClientScope(http) as client:
        client.answered()
        http.lost()
        await turns()
