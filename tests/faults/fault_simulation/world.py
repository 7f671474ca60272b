"""The processes of one run, and their observed state."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any

from fault_simulation.endpoints import Cluster, EndpointWatch
from fault_simulation.gateway import GatewayProcess, start_gateway
from fault_simulation.hosts import Host
from fault_simulation.invariants import Front, orphans_of
from fault_simulation.network import Network
from fault_simulation.processes import (
    EngineProcess,
    PickerProcess,
    RouterProcess,
    SidecarProcess,
    address_of,
    sidecar_of,
    start_engine,
    start_picker,
    start_router,
    start_sidecar,
)
from fault_simulation.redis_peer import RedisProcess, start_redis
from fault_simulation.scenario import Scenario
from penstock_routing.discovery.endpoints import Condition
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_sidecar.service.grpc_server import STOP_GRACE_S
from penstock_sidecar.sidecar import stop_serving

RECOVERY_S = 15.0
"""Time after its last fault until a replica, router or picker counts as healthy."""

LATE_S = 0.3
"""Longest time until routers know changed endpoints."""


@dataclass(slots=True)
class Spell:
    """A time in which a router or picker is not well. lost: its connections are gone."""

    front: str
    begin_s: float
    end_s: float
    lost: bool


@dataclass(slots=True)
class World:
    """The hosts of one run.

    replicas: in service or meant to be, by name. fronts: routers, or the picker, by name.
    crashes: what no process has handled. unordered: output that came before a verdict.
    differing: what a plug-in's ledger, or a sidecar's mirror, had otherwise than the engine.
    ready_since_s: since when each front has had each replica in service, by their names.
    known: replicas that each front has had in service since it started.
    unwell_until_s: until when each replica is not counted as well. spells: of fronts.
    """

    random: Random
    scenario: Scenario
    network: Network
    clients: Host
    cluster: Cluster = field(default_factory=Cluster)
    replicas: list[str] = field(default_factory=list)
    engines: dict[str, EngineProcess] = field(default_factory=dict)
    sidecars: dict[str, SidecarProcess] = field(default_factory=dict)
    fronts: dict[str, Front] = field(default_factory=dict)
    gateway: GatewayProcess | None = None
    redis: RedisProcess | None = None
    crashes: list[str] = field(default_factory=list)
    unordered: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    ready_since_s: dict[str, dict[str, float]] = field(default_factory=dict)
    known: dict[str, set[str]] = field(default_factory=dict)
    unwell_until_s: dict[str, float] = field(default_factory=dict)
    spells: list[Spell] = field(default_factory=list)
    moves: Counter[str] = field(default_factory=Counter)
    _named: int = 0

    def start(self) -> list[str]:
        """Start all processes. Return the addresses that clients ask."""
        scenario = self.scenario
        self.network.faults["other version"] += sum(map(abs, scenario.skew))
        if scenario.shares:
            self.start_redis()
        for _ in range(scenario.replicas):
            self.add_replica()
        if scenario.gateway:
            self.start_front("picker")
            host, ext_proc = self._host("gateway"), self.random.random() < 0.5
            self.gateway = start_gateway(self.network, host, self._picker, ext_proc=ext_proc)
            return [address_of(host)]
        names = [f"router{number}" for number in range(scenario.routers)]
        for name in names:
            self.start_front(name)
        return [address_of(self.fronts[name].host) for name in names]

    # Replicas

    def add_replica(self) -> str:
        """Start another replica. Return its name."""
        replica = f"r{self._named}"
        self._named += 1
        self.replicas.append(replica)
        self.start_engine(replica)
        self.start_sidecar(replica)
        self.unwell(replica, 0.0)
        self.cluster.publish(replica, sidecar_of(replica))
        return replica

    async def retire(self, replica: str, drain_s: float) -> None:
        """Remove a replica, as a cluster does: its endpoint terminates, its sidecar drains, both end."""
        self.replicas.remove(replica)
        sidecar, engine = self.sidecars[replica], self.engines[replica]
        self.cluster.publish(replica, sidecar_of(replica), Condition.TERMINATING)
        if sidecar.host.alive:
            await asyncio.wait({sidecar.host.spawn(stop_serving(sidecar.replica, sidecar.http, drain_s))})
            await asyncio.sleep(STOP_GRACE_S)
        await sidecar.host.kill()
        await engine.host.kill()
        self.cluster.withdraw(replica)
        del self.sidecars[replica], self.engines[replica]

    def start_engine(self, replica: str) -> None:
        """Start a replica's engine, again where there was one, unless the replica is gone."""
        if replica in self.replicas:
            host, pool = self._beside(f"{replica}-engine", replica), self.scenario.engine_pool
            self.engines[replica] = start_engine(
                self.network,
                host,
                replica,
                pool,
                as_plugin=self.scenario.as_plugin,
                differs=lambda differing: self.differing.append(f"{host.name}: {differing}"),
            )

    def start_sidecar(self, replica: str) -> None:
        """Start a replica's sidecar, again where there was one, unless the replica is gone."""
        if replica in self.replicas:
            host, scenario = self._beside(f"{replica}-sidecar", replica), self.scenario
            self.sidecars[replica] = start_sidecar(
                self.network,
                host,
                replica,
                scenario.pool,
                outbox_bytes=scenario.outbox_bytes,
                differs=lambda differing: self.differing.append(f"{host.name}: {differing}"),
                skew=scenario.skew[0],
            )

    def hosts_of(self, replica: str) -> tuple[Host, Host]:
        """Return the hosts of a replica's sidecar and engine."""
        return self.sidecars[replica].host, self.engines[replica].host

    def unwell(self, replica: str, lasts_s: float) -> None:
        """Record that a fault has begun at a replica, and its duration."""
        until_s = asyncio.get_running_loop().time() + lasts_s + RECOVERY_S
        self.unwell_until_s[replica] = max(self.unwell_until_s.get(replica, 0.0), until_s)

    # Routers and pickers

    def start_front(self, name: str) -> None:
        """Start or restart a router or the picker."""
        host, scenario, random = self._host(name), self.scenario, Random(self.random.random())
        source = EndpointWatch(self.cluster, lambda: random.random() * LATE_S)

        def changed() -> None:
            self._links_changed(name, self.fronts[name].replica_set)

        if scenario.gateway:
            self.fronts[name] = start_picker(
                self.network, host, source, scenario.pool, random=random, changed=changed
            )
        else:
            self.fronts[name] = start_router(
                self.network,
                host,
                source,
                scenario.pool,
                random=random,
                watch=self._watch,
                changed=changed,
                skew=scenario.skew[1],
            )

    async def end_front(self, name: str) -> None:
        """Kill a router or picker, and keep its counts."""
        front = self.fronts[name]
        self.moves += moves_of(front)
        await front.host.kill()
        self.ready_since_s.pop(name, None)
        self.known.pop(name, None)

    @contextlib.contextmanager
    def front_unwell(self, name: str, *, lost: bool = False) -> Iterator[None]:
        """Note that a router or picker is not well inside the block. lost: its connections break."""
        loop = asyncio.get_running_loop()
        spell = Spell(name, loop.time(), inf, lost)
        self.spells.append(spell)
        yield
        spell.end_s = loop.time()

    def spells_of(self, address: str, begin_s: float, end_s: float, after_s: float = 1.0) -> list[Spell]:
        """Return the faults of a client's router, or the picker, during a time and shortly before it."""
        front = "picker" if self.gateway is not None else address.partition(":")[0]
        return [
            spell
            for spell in self.spells
            if spell.front == front and spell.begin_s <= end_s + 1.0 and begin_s <= spell.end_s + after_s
        ]

    def well(self, since_s: float) -> list[str]:
        """Return the replicas that are well, and that every front has had in service since then."""
        now_s = asyncio.get_running_loop().time()
        return [
            name
            for name in self.untouched()
            if all(self.ready_since_s.get(front, {}).get(name, now_s) <= since_s for front in self.fronts)
        ]

    def untouched(self) -> list[str]:
        """Return the replicas that no fault has touched for long. Routers may have lost them all the same."""
        now_s = asyncio.get_running_loop().time()
        return [name for name in self.replicas if self.unwell_until_s.get(name, 0.0) < now_s]

    def known_to(self, address: str) -> list[str]:
        """Return the untouched replicas that a client's router has had in service since it started."""
        known = self.known.get(address.partition(":")[0], set())
        return [name for name in self.untouched() if name in known]

    def start_redis(self) -> None:
        """Start or restart the Redis."""
        self.redis = start_redis(self.network, self._host("redis"))

    # Observed state

    def orphans(self) -> Iterator[str]:
        """Yield requests of replicas without recent faults that no router or sidecar before them has."""
        now_s = asyncio.get_running_loop().time()
        for name in self.replicas:
            if self.unwell_until_s.get(name, 0.0) < now_s:
                links = [
                    link
                    for front in self.fronts.values()
                    for link in front.replica_set.links
                    if link.name == name
                ]
                yield from orphans_of(links, self.sidecars[name], self.engines[name])

    def _beside(self, name: str, replica: str) -> Host:
        """Return a host on a replica's machine, whose clock its processes share."""
        others = [each[replica].host for each in (self.sidecars, self.engines) if replica in each]
        return Host(name, others[0].clock_offset_s) if others else self._host(name)

    def _host(self, name: str) -> Host:
        self.network.faults["clock offset"] += 1
        return Host(name, self.random.random() * 1e5)

    def _picker(self) -> PickerProcess:
        picker = self.fronts["picker"]
        assert isinstance(picker, PickerProcess)
        return picker

    def _links_changed(self, front: str, replica_set: ReplicaSet) -> None:
        now_s = asyncio.get_running_loop().time()
        since_s = self.ready_since_s.get(front, {})
        ready = [link.name for link in replica_set.links if link.state == "ready"]
        self.ready_since_s[front] = {name: since_s.get(name, now_s) for name in ready}
        self.known.setdefault(front, set()).update(ready)

    def _watch(self, method: str) -> Callable[[Any], None]:
        """Return what sees whether verdicts come before output, in one session."""
        accepted: set[int] = set()

        def see(message: Any) -> None:
            for event in message.events:
                kind = event.WhichOneof("kind")
                if kind in ("admitted", "best_effort"):
                    accepted.add(event.id)
                elif kind in ("output", "finished") and event.id not in accepted:
                    self.unordered.append(f"{kind} of {event.id} before its verdict")

        return see if method == "Session" else lambda message: None


def moves_of(front: Front) -> Counter[str]:
    """Return the moves of streams that a router has counted, by cause and outcome."""
    moves: Counter[str] = Counter()
    if isinstance(front, RouterProcess):
        for metric in front.app.metrics.moves.moves.collect():
            for sample in metric.samples:
                if sample.name.endswith("_total"):
                    moves[f"{sample.labels['cause']}, {sample.labels['outcome']}"] += int(sample.value)
    return +moves
