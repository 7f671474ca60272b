"""The work for a client that goes away, with one request behind another on its connection."""

import asyncio

import pytest
from loop_time import turns
from penstock_router.http.client_scope import ClientScope
from penstock_runtime.asgi import ClientGone
from penstock_runtime.client_connection import ClientConnection


async def test_a_request_that_has_ended_leaves_the_next_one_of_its_connection_listened_to() -> None:
    """The next one may begin while the answered one still waits for its figures."""
    connection = ClientConnection(asyncio.Transport())
    answered = ClientScope(connection)
    await answered.__aenter__()
    answered.answered()
    with pytest.raises(ClientGone):
        async with ClientScope(connection):
            answered.answered()
            await answered.__aexit__(None, None, None)
            connection.lost()
            await turns()
