"""Routers of other versions: unknown fields are ignored, and missing ones have defaults."""

from typing import Any

import pytest
from penstock_proto import replica_pb2 as wire

from tests.sidecar.conftest import DONE, TOKEN, Engine, Rig, Router, submit

LATER_FIELD = b"\xfa\x7f\x05later"  # field 2047, of five bytes


def later(frame: wire.RouterFrame) -> wire.RouterFrame:
    """The frame as a later version might send it: with unknown fields, at both levels."""
    one = wire.Submit.FromString(frame.submits[0].SerializeToString() + LATER_FIELD)
    sent = wire.RouterFrame(submits=[one], cancels=frame.cancels).SerializeToString() + LATER_FIELD
    return wire.RouterFrame.FromString(sent)


async def test_fields_of_a_later_router_are_ignored(engine: Engine, router: Router) -> None:
    await router.send(later(wire.RouterFrame(submits=[submit(1)], cancels=[99])))
    exchange = await engine.asked()
    await exchange.begin()
    await exchange.send(TOKEN + DONE)
    await exchange.end()
    assert (await router.ended(1)).HasField("finished")


async def test_a_request_of_the_first_version_has_neither_hop_nor_time_spent(
    engine: Engine, router: Router
) -> None:
    body = submit(1).body
    early = wire.Submit(id=1, endpoint=wire.ENDPOINT_COMPLETIONS, body=body, tier="chat")
    await router.send(wire.RouterFrame(submits=[early]))
    exchange = await engine.asked()
    await exchange.begin()
    await exchange.send(TOKEN + DONE)
    await exchange.end()
    assert (await router.ended(1)).HasField("finished")


@pytest.mark.parametrize(
    "odd",
    [{"endpoint": 99}, {"endpoint": 0}, {"tier": "of-a-newer-pool"}, {"request_id": ""}, {"hop": 2**32 - 1}],
)
async def test_an_unknown_field_from_a_router_concerns_only_its_request(
    engine: Engine, rig: Rig, router: Router, odd: dict[str, Any]
) -> None:
    await router.submit(1)
    stream = await engine.asked()
    await stream.begin()
    await router.submit(2, **odd)
    await router.first(2)
    await stream.send(TOKEN + DONE)
    await stream.end()
    assert (await router.ended(1)).HasField("finished")
    assert router.data(1).endswith(b"data: [DONE]\n\n")


async def test_an_empty_frame_is_ignored(engine: Engine, router: Router) -> None:
    await router.send(wire.RouterFrame())
    await router.submit(1)
    exchange = await engine.asked()
    await exchange.begin()
    await exchange.send(TOKEN + DONE)
    await exchange.end()
    assert (await router.ended(1)).HasField("finished")
