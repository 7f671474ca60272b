"""Replicas that come, go and move while requests are under way."""

import asyncio
from collections.abc import AsyncIterator
from random import Random

from penstock_proto import replica_pb2 as wire
from penstock_router.backoff import Backoff
from penstock_router.discovery import ReplicaSet
from penstock_router.exchange import Exchange
from penstock_router.replica_link import LinkState
from penstock_router.rotation import Rotation
from penstock_router.session_writer import Attempt, Submission
from scripted.house import make_link, until
from scripted.replica import ScriptedReplica, is_silent


class Announced:
    """A source of replica sets that a test speaks through."""

    def __init__(self) -> None:
        self._sets: asyncio.Queue[ReplicaSet] = asyncio.Queue()

    def say(self, *replicas: ScriptedReplica) -> None:
        self._sets.put_nowait({replica.name: replica.address for replica in replicas})

    async def __aiter__(self) -> AsyncIterator[ReplicaSet]:
        while True:
            yield await self._sets.get()


def ask(rotation: Rotation, name: str) -> Exchange:
    submission = Submission("id", wire.ENDPOINT_CHAT_COMPLETIONS, b"{}", "chat", 0.0)
    return rotation[name].submit(Attempt(submission, 1, False), None, lambda: None)


async def test_the_set_is_followed() -> None:
    r0, r1, announced, rotation = (
        ScriptedReplica("r0"),
        ScriptedReplica("r1"),
        Announced(),
        Rotation(make_link),
    )
    await r0.start()
    await r1.start()
    following = asyncio.create_task(rotation.follow(aiter(announced)))
    announced.say(r0)
    await until(lambda: rotation.ready)
    announced.say(r0, r1)
    await until(lambda: len(rotation.loads()) == 2)
    announced.say(r1)
    await until(lambda: [link.name for link in rotation.links] == ["r1"])
    following.cancel()
    await asyncio.wait([following])
    assert rotation.links == []
    await r0.die()
    await r1.die()


async def test_a_replica_that_leaves_finishes_what_it_carries() -> None:
    r0, announced, rotation = ScriptedReplica("r0", is_silent), Announced(), Rotation(make_link)
    await r0.start()
    following = asyncio.create_task(rotation.follow(aiter(announced)))
    announced.say(r0)
    await until(lambda: rotation.ready)
    exchange = ask(rotation, "r0")
    await until(lambda: len(r0.parts) == 1)
    announced.say()
    await until(lambda: rotation.links == [])
    r0.parts[0].admit()
    r0.parts[0].output(b"kept")
    r0.parts[0].finish()
    await until(lambda: exchange.end is not None)
    assert exchange.take().data == b"kept"
    await until(lambda: r0.open_sessions == 0)
    following.cancel()
    await asyncio.wait([following])
    await r0.die()


async def test_a_request_for_a_replica_without_a_session_is_lost_at_once() -> None:
    link = make_link("r0", "127.0.0.1:1")
    submission = Submission("id", wire.ENDPOINT_COMPLETIONS, b"{}", "chat", 0.0)
    exchange = link.submit(Attempt(submission, 1, False), None, lambda: None)
    assert link.state is LinkState.CONNECTING
    assert exchange.end is not None


def test_waits_grow_to_a_cap_and_begin_anew() -> None:
    backoff = Backoff(Random(7), first_s=1.0, longest_s=4.0)
    waits_s = [backoff.wait_s() for _ in range(5)]
    ceilings_s = [1.0, 2.0, 4.0, 4.0, 4.0]
    assert all(top / 2 <= wait <= top for wait, top in zip(waits_s, ceilings_s, strict=True))
    backoff.reset()
    assert backoff.wait_s() <= 1.0


async def test_a_request_taken_back_before_it_was_sent_is_never_sent() -> None:
    replica, rotation = ScriptedReplica("r0", is_silent), Rotation(make_link)
    announced = Announced()
    await replica.start()
    following = asyncio.create_task(rotation.follow(aiter(announced)))
    announced.say(replica)
    await until(lambda: rotation.ready)
    taken_back = ask(rotation, "r0")
    kept = ask(rotation, "r0")
    rotation["r0"].abandon(taken_back)
    await until(lambda: len(replica.parts) == 1)
    assert replica.parts[0].submit.id == kept.id
    following.cancel()
    await asyncio.wait([following])
    await replica.die()
