"""What other routers have just sent to a replica, and how long it counts."""

import asyncio
from collections.abc import Callable
from random import Random

import pytest
from patience import eventually
from penstock_core.domain.slo import Tier
from penstock_core.routing.replica_load import estimated_tokens
from penstock_proto import replica_pb2 as wire
from penstock_routing.connections.backoff import Backoff
from penstock_routing.connections.replica_channel import connect_by
from penstock_routing.discovery.endpoints import Fixed
from penstock_routing.replicas.peer_placements import LONGEST_S, MOST, SETTLED_S, PeerLoad, PeerPlacements
from penstock_routing.replicas.replica_link import ReplicaLink
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_routing.replicas.session_writer import Attempt
from penstock_routing.replicas.shared_placements import read_placements
from penstock_routing.request.generation_request import GenerationRequest
from scripted.replica import ScriptedReplica, is_silent
from scripted.router import make_link

NO_LOAD = PeerLoad(0, 0)


def placed_at(*at_s: float) -> PeerPlacements:
    """One request of ten tokens at each of these moments."""
    peers = PeerPlacements()
    for moment_s in at_s:
        peers.add(PeerLoad(1, 10), moment_s)
    return peers


def test_placements_are_added() -> None:
    assert placed_at(1.0, 1.001).not_in_snapshot(snapshot_s=0.9, now_s=1.002) == PeerLoad(2, 20)


def test_a_snapshot_that_includes_placements_removes_them() -> None:
    peers = placed_at(1.0, 1.02)
    assert peers.not_in_snapshot(snapshot_s=1.0 + SETTLED_S, now_s=1.03) == PeerLoad(1, 10)
    assert peers.not_in_snapshot(snapshot_s=1.02 + SETTLED_S, now_s=1.04) == NO_LOAD


def test_a_snapshot_sent_before_placements_arrived_keeps_them() -> None:
    assert placed_at(1.0).not_in_snapshot(snapshot_s=1.0 + SETTLED_S / 2, now_s=1.01) == PeerLoad(1, 10)


def test_placements_that_no_snapshot_confirms_are_forgotten() -> None:
    peers = placed_at(1.0)
    assert peers.not_in_snapshot(snapshot_s=0.0, now_s=1.0 + LONGEST_S / 2) == PeerLoad(1, 10)
    assert peers.not_in_snapshot(snapshot_s=0.0, now_s=1.0 + LONGEST_S) == NO_LOAD


def test_received_placements_are_bounded() -> None:
    peers = placed_at(*[1.0] * (MOST + 50))
    assert peers.not_in_snapshot(snapshot_s=0.0, now_s=1.0) == PeerLoad(MOST, 10 * MOST)


async def test_orders_count_placements_as_load() -> None:
    link = make_link("r0", "127.0.0.1:1")
    link.peers.add(PeerLoad(2, 300), 1e9)  # in the far future, so that nothing has settled it
    assert (link.load.sent, link.load.sent_tokens) == (2, 300)


async def test_a_placement_at_an_unknown_replica_is_ignored() -> None:
    ReplicaSet(make_link).placed_by_peer("r9", PeerLoad(1, 1))


async def test_placements_of_this_router_are_published() -> None:
    reported: list[tuple[str, int]] = []
    replica = ScriptedReplica("r0", is_silent)

    def linked(name: str, address: str, changed: Callable[[], None]) -> ReplicaLink:
        connect, backoff = connect_by(None), Backoff(Random(1))
        return ReplicaLink(
            name, address, connect, backoff, changed=changed, placed=lambda *placed: reported.append(placed)
        )

    replica_set = ReplicaSet(linked)
    await replica.start()
    following = asyncio.create_task(replica_set.follow(Fixed({"r0": replica.address})))
    await eventually(lambda: replica_set.ready)
    request = GenerationRequest("id", wire.ENDPOINT_CHAT_COMPLETIONS, b"x" * 400, Tier("chat"), 0.0)
    replica_set["r0"].submit(Attempt(request, 1, False), None, lambda: None)
    assert reported == [("r0", estimated_tokens(400))]
    following.cancel()
    await asyncio.wait([following])
    await replica.die()


def test_unknown_fields_of_a_later_versions_message_are_ignored() -> None:
    message = b'{"router": "ab", "placed": {"r0": [2, 30, 7], "r1": [0, 0]}, "since": 5}'
    assert read_placements(message) == ("ab", [("r0", PeerLoad(2, 30)), ("r1", PeerLoad(0, 0))])


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"nonsense",
        b"[]",
        b"{}",
        b'{"router": "ab"}',
        b'{"placed": {}}',
        b'{"router": "ab", "placed": [1]}',
        b'{"router": "ab", "placed": {"r0": 1}}',
        b'{"router": "ab", "placed": {"r0": [1]}}',
        b'{"router": "ab", "placed": {"r0": [1, -5]}}',
        b'{"router": "ab", "placed": {"r0": [1, 1e300]}}',
        b'{"router": "ab", "placed": {"r0": [1, 4611686018427387904]}}',
        b'{"router": "ab", "placed": {"r0": ["1", "5"]}}',
        b" " * (2**20 + 1),
    ],
)
def test_an_invalid_message_of_a_peer_raises_an_error_that_is_contained(message: bytes) -> None:
    with pytest.raises((ValueError, TypeError, LookupError, AttributeError)):
        read_placements(message)
