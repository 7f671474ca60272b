"""Replicas that come, go and move while requests are under way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from random import Random

import pytest
from patience import eventually
from penstock_core.domain.slo import Tier
from penstock_core.routing.outlier_detection import CONSECUTIVE
from penstock_proto import replica_pb2 as wire
from penstock_routing.connections.backoff import Backoff
from penstock_routing.discovery.endpoints import Condition, Endpoint, Endpoints
from penstock_routing.replicas.link_state import LinkState
from penstock_routing.replicas.peer_placements import PeerLoad
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_routing.replicas.session_writer import Attempt
from penstock_routing.replicas.upstream_request import Lost, UpstreamRequest
from penstock_routing.request.generation_request import GenerationRequest
from penstock_runtime.clock import monotonic
from scripted.replica import ScriptedReplica, is_silent
from scripted.router import make_link


class Announced:
    """A source of replica sets that a test speaks through."""

    connected = True
    malformed = 0

    def __init__(self) -> None:
        self._sets: asyncio.Queue[Endpoints] = asyncio.Queue()

    def announce(self, *replicas: ScriptedReplica, **conditions: Condition) -> None:
        """Announce these replicas, in service by default."""
        in_service = Condition.IN_SERVICE
        self._sets.put_nowait(
            {one.name: Endpoint(one.address, conditions.get(one.name, in_service)) for one in replicas}
        )

    async def sets(self) -> AsyncIterator[Endpoints]:
        while True:
            yield await self._sets.get()


def ask(replica_set: ReplicaSet, name: str) -> UpstreamRequest:
    request = GenerationRequest("id", wire.ENDPOINT_CHAT_COMPLETIONS, b"{}", Tier("chat"), 0.0)
    return replica_set[name].submit(Attempt(request, 1, False), None, lambda: None)


async def test_the_set_follows_its_source() -> None:
    r0, r1, announced, replica_set = (
        ScriptedReplica("r0"),
        ScriptedReplica("r1"),
        Announced(),
        ReplicaSet(make_link),
    )
    await r0.start()
    await r1.start()
    following = asyncio.create_task(replica_set.follow(announced))
    announced.announce(r0)
    await eventually(lambda: replica_set.ready)
    announced.announce(r0, r1)
    await eventually(lambda: len(replica_set.loads()) == 2)
    announced.announce(r1)
    await eventually(lambda: [link.name for link in replica_set.links] == ["r1"])
    following.cancel()
    await asyncio.wait([following])
    assert replica_set.links == []
    await r0.die()
    await r1.die()


async def test_a_replica_that_leaves_the_pool_finishes_its_requests() -> None:
    r0, announced, replica_set = ScriptedReplica("r0", is_silent), Announced(), ReplicaSet(make_link)
    await r0.start()
    following = asyncio.create_task(replica_set.follow(announced))
    announced.announce(r0)
    await eventually(lambda: replica_set.ready)
    upstream = ask(replica_set, "r0")
    await eventually(lambda: len(r0.parts) == 1)
    announced.announce()
    await eventually(lambda: replica_set.links == [])
    r0.parts[0].admit()
    r0.parts[0].output(b"kept")
    r0.parts[0].finish()
    await eventually(lambda: upstream.end is not None)
    assert upstream.take().data == b"kept"
    await eventually(lambda: r0.open_sessions == 0)
    following.cancel()
    await asyncio.wait([following])
    await r0.die()


async def test_a_request_for_a_replica_without_a_session_is_lost_immediately() -> None:
    link = make_link("r0", "127.0.0.1:1")
    request = GenerationRequest("id", wire.ENDPOINT_COMPLETIONS, b"{}", Tier("chat"), 0.0)
    upstream = link.submit(Attempt(request, 1, False), None, lambda: None)
    assert link.state is LinkState.CONNECTING
    assert upstream.end == Lost("r0", "no connection", reached=False)


def test_waits_grow_to_a_cap_and_are_reset() -> None:
    backoff = Backoff(Random(7), first_s=1.0, longest_s=4.0)
    waits_s = [backoff.wait_s() for _ in range(5)]
    ceilings_s = [1.0, 2.0, 4.0, 4.0, 4.0]
    assert all(top / 2 <= wait <= top for wait, top in zip(waits_s, ceilings_s, strict=True))
    backoff.reset()
    assert backoff.wait_s() <= 1.0


async def test_a_request_cancelled_before_it_was_sent_is_never_sent() -> None:
    replica, replica_set = ScriptedReplica("r0", is_silent), ReplicaSet(make_link)
    announced = Announced()
    await replica.start()
    following = asyncio.create_task(replica_set.follow(announced))
    announced.announce(replica)
    await eventually(lambda: replica_set.ready)
    taken_back = ask(replica_set, "r0")
    kept = ask(replica_set, "r0")
    replica_set["r0"].abandon(taken_back)
    await eventually(lambda: len(replica.parts) == 1)
    assert replica.parts[0].submit.id == kept.id
    following.cancel()
    await asyncio.wait([following])
    await replica.die()


@asynccontextmanager
async def followed(announced: Announced, *replicas: ScriptedReplica) -> AsyncIterator[ReplicaSet]:
    """A replica set that follows the announcements, starting with these replicas in service."""
    replica_set = ReplicaSet(make_link)
    for replica in replicas:
        await replica.start()
    following = asyncio.create_task(replica_set.follow(announced))
    announced.announce(*replicas)
    await eventually(lambda: len(replica_set.loads()) == len(replicas))
    yield replica_set
    following.cancel()
    await asyncio.wait([following])
    for replica in replicas:
        await replica.die()


@pytest.mark.parametrize(
    ("condition", "state"),
    [(Condition.NOT_READY, LinkState.NOT_READY), (Condition.TERMINATING, LinkState.TERMINATING)],
)
async def test_a_replica_out_of_service_gets_no_new_requests_and_finishes_its_own(
    condition: Condition, state: LinkState
) -> None:
    r0, r1, announced = ScriptedReplica("r0", is_silent), ScriptedReplica("r1"), Announced()
    async with followed(announced, r0, r1) as replica_set:
        upstream = ask(replica_set, "r0")
        await eventually(lambda: len(r0.parts) == 1)
        announced.announce(r0, r1, r0=condition)
        await eventually(lambda: replica_set["r0"].state is state)
        assert [load.name for load in replica_set.loads()] == ["r1"]
        r0.parts[0].admit()
        r0.parts[0].output(b"kept")
        r0.parts[0].finish()
        await eventually(lambda: upstream.end is not None)
        assert upstream.take().data == b"kept"
        assert r0.sessions == r0.open_sessions == 1


async def test_a_replica_that_becomes_ready_again_is_chosen_again_over_the_link_it_had() -> None:
    r0, announced = ScriptedReplica("r0"), Announced()
    async with followed(announced, r0) as replica_set:
        announced.announce(r0, r0=Condition.NOT_READY)
        await eventually(lambda: not replica_set.ready)
        announced.announce(r0)
        await eventually(lambda: replica_set.ready)
        assert r0.sessions == 1


async def test_a_replica_s_own_status_is_kept_where_it_is_more_precise_than_its_owner_s() -> None:
    """A replica's own condition is the better reason: a condition of its endpoint does not hide it."""
    r0, r1, announced = ScriptedReplica("r0"), ScriptedReplica("r1"), Announced()
    async with followed(announced, r0) as replica_set:
        r0.send_snapshot(draining=True)
        announced.announce(r0, r1, r0=Condition.TERMINATING)
        await eventually(lambda: "r1" in [link.name for link in replica_set.links])
        await eventually(lambda: replica_set["r0"].state is LinkState.DRAINING)


async def test_no_connection_is_made_to_a_replica_that_is_leaving() -> None:
    r0, r1, announced = ScriptedReplica("r0"), ScriptedReplica("r1"), Announced()
    await r1.start()
    async with followed(announced, r0) as replica_set:
        announced.announce(r0, r1, r1=Condition.TERMINATING)
        announced.announce(r0, r0=Condition.NOT_READY)
        await eventually(lambda: not replica_set.ready)
        assert [link.name for link in replica_set.links] == ["r0"]
        assert r1.sessions == 0
    await r1.die()


async def test_the_same_name_at_another_address_is_another_replica() -> None:
    old, new, announced = ScriptedReplica("r0", is_silent), ScriptedReplica("r0"), Announced()
    await new.start()
    async with followed(announced, old) as replica_set:
        carried = ask(replica_set, "r0")
        await eventually(lambda: len(old.parts) == 1)
        announced.announce(new)
        await eventually(lambda: replica_set.ready and replica_set["r0"].address == new.address)
        assert carried.end is None
        old.parts[0].admit()
        old.parts[0].finish()
        await eventually(lambda: carried.end is not None)
        await eventually(lambda: old.open_sessions == 0)
    await new.die()


def test_the_retry_budget_is_filled_by_requests_and_spent_by_replays() -> None:
    replica_set = ReplicaSet(make_link)
    first = replica_set.replays_left
    spent = 0
    while replica_set.take_replay():
        spent += 1
        assert replica_set.replays_left == first - spent
    assert spent == int(first)
    assert not replica_set.take_replay()
    for _ in range(1000):
        replica_set.arrived()
    assert replica_set.replays_left > 1
    assert replica_set.take_replay()


def test_a_set_without_a_source_has_no_replicas() -> None:
    replica_set = ReplicaSet(make_link)
    assert (replica_set.connected, replica_set.malformed, replica_set.known) == (False, 0, False)
    assert replica_set.loads() == []
    assert replica_set.links == []


async def test_an_ejected_replica_is_passed_over_unless_too_many_are() -> None:
    replicas, announced = [ScriptedReplica(f"r{number}") for number in range(3)], Announced()
    async with followed(announced, *replicas) as replica_set:
        for name, left in (("r0", ["r1", "r2"]), ("r1", ["r0", "r1", "r2"])):
            for _ in range(CONSECUTIVE):
                replica_set[name].ejection.failed()
            assert sorted(load.name for load in replica_set.loads()) == left


async def test_placements_of_other_routers_count_as_load_of_their_replicas() -> None:
    r0, announced = ScriptedReplica("r0"), Announced()
    async with followed(announced, r0) as replica_set:
        replica_set.placed_by_peer("r0", PeerLoad(2, 300))
        assert [(load.sent, load.sent_tokens) for load in replica_set.loads()] == [(2, 300)]


async def test_a_replica_that_starts_not_ready_receives_no_requests() -> None:
    r0, r1, announced = ScriptedReplica("r0"), ScriptedReplica("r1"), Announced()
    await r1.start()
    async with followed(announced, r0) as replica_set:
        announced.announce(r0, r1, r1=Condition.NOT_READY)
        await eventually(lambda: "r1" in [link.name for link in replica_set.links])
        await eventually(lambda: replica_set["r1"].state is LinkState.NOT_READY)
        assert [load.name for load in replica_set.loads()] == ["r0"]
    await r1.die()


async def test_a_set_knows_when_a_replica_was_last_lost_until_all_are_back() -> None:
    r0, r1 = ScriptedReplica("r0"), ScriptedReplica("r1")
    async with followed(Announced(), r0, r1) as replica_set:
        assert replica_set.lost_s == -inf
        before_s = monotonic()
        await r0.die()
        await eventually(lambda: replica_set["r0"].state is LinkState.LOST)
        first_s = replica_set.lost_s
        await r1.die()
        await eventually(lambda: not replica_set.ready)
        assert before_s <= first_s <= replica_set.lost_s <= monotonic()
        await r1.start()
        await eventually(lambda: replica_set.ready)
        assert replica_set.lost_s == first_s
        await r0.start()
        await eventually(lambda: len(replica_set.loads()) == 2)
        assert replica_set.lost_s == -inf


async def test_a_lost_replica_that_returns_without_its_engine_is_still_missing() -> None:
    replica = ScriptedReplica("r0")
    async with followed(Announced(), replica) as replica_set:
        replica.snapshot = wire.Snapshot(engine_ready=False)
        await replica.die()
        await replica.start()
        await eventually(lambda: replica_set["r0"].state is LinkState.ENGINE_DOWN)
        assert replica_set.lost_s > -inf


async def test_a_replica_that_drains_before_its_session_ends_is_not_lost() -> None:
    replica = ScriptedReplica("r0")
    async with followed(Announced(), replica) as replica_set:
        replica.send_snapshot(draining=True)
        await eventually(lambda: replica_set["r0"].state is LinkState.DRAINING)
        await replica.die()
        await eventually(lambda: replica_set["r0"].state is LinkState.LOST)
        assert replica_set.lost_s == -inf


async def test_a_lost_replica_that_leaves_the_set_is_forgotten() -> None:
    replica, announced = ScriptedReplica("r0"), Announced()
    async with followed(announced, replica) as replica_set:
        await replica.die()
        await eventually(lambda: replica_set["r0"].state is LinkState.LOST)
        announced.announce()
        await eventually(lambda: not replica_set.links)
        assert replica_set.lost_s == -inf
