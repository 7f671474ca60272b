"""A whole operator beside an API server in memory, in virtual time: start, workers, Lease, end."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from clusterless.memory_api import MemoryApi
from penstock_operator import controller
from penstock_operator.cluster.api_client import ApiStatusError, ApiUnreachable
from penstock_operator.cluster.cache import PoolKey
from penstock_operator.cluster.kinds import LEASE, POOL, WATCHED, ResourceKind
from penstock_operator.cluster.lease import LEASE_DURATION_S, RETRY_PERIOD_S, LeaseLost
from penstock_operator.controller import (
    LATE_KINDS_PERIOD_S,
    OWN,
    STALE_RESYNC_S,
    START_RETRY_S,
    Operator,
)
from penstock_operator.manifests.manifest import Manifest, Ref
from penstock_operator.options import OperatorOptions
from penstock_operator.reconcile import reconciler
from penstock_operator.reconcile.reconciler import HEALTHY_PERIOD_S
from penstock_operator.reconcile.workqueue import BASE_BACKOFF_S
from penstock_operator.settings import OperatorSettings
from penstock_pool.crd.definition import schema
from penstock_runtime.serving import StartError
from structlog.testing import capture_logs
from virtual_time import now_s, run

SETTINGS = OperatorSettings(
    "router:1", "picker:1", "envoy:1", "sidecar:1", "simulator:1", "vllm:1", "plugin:1", tls=False
)
OPTIONS = OperatorOptions(host="127.0.0.1", port=0, workers=2, resync_s=1000.0, identity="me")
LEASE_REF = Ref(LEASE.api_version, LEASE.kind, "penstock", "penstock-operator")
HOST = {"host": "llama.example.com"}


def pool(name: str = "chat", **spec: Any) -> Manifest:
    return {
        "apiVersion": POOL.api_version,
        "kind": POOL.kind,
        "metadata": {
            "name": name,
            "namespace": "team",
            "creationTimestamp": f"2026-01-01T00:00:{len(name):02}Z",
        },
        "spec": {
            "model": {"name": "llama"},
            "engine": {"type": "simulated", "timeModel": "llama-3-8b-a100"},
            "tiers": [{"name": "chat", "slo": {"ttft": "1s", "tpot": "100ms"}}],
            **spec,
        },
    }


@dataclass
class Server(MemoryApi):
    """Serves an operator's whole life. refusals: of lists, in turn. missing: kinds without a CRD."""

    refusals: list[Exception] = field(default_factory=list)
    missing: frozenset[str] = frozenset()
    lists: list[tuple[str, str | None, str]] = field(default_factory=list)
    fail_writes: Callable[[Ref], None] = lambda ref: None
    at_puts: list[set[str]] = field(default_factory=list)

    async def read(self, path: str) -> Manifest:
        kind = {"group": "penstock.dev", "kind": "ServingPool", "version": "v1alpha1"}
        ours = schema() | {"x-kubernetes-group-version-kind": [kind]}
        return {"components": {"schemas": {"pool": ours}}}

    async def list(
        self, kind: ResourceKind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> tuple[list[Manifest], int]:
        if not fields:
            self.lists.append((kind.kind, namespace, labels))
            if self.refusals:
                raise self.refusals.pop(0)
        if kind.kind in self.missing:
            raise ApiStatusError(404, "NotFound", "the server could not find the requested resource")
        return await super().list(kind, namespace, labels=labels, fields=fields)

    async def put(self, manifest: Manifest) -> Manifest:
        self.at_puts.append({task.get_name() for task in asyncio.all_tasks()})
        return self.store(manifest, "operator", manifest)

    create = put

    def names(self, kind: str) -> Sequence[str]:
        return [ref.name for ref in self.objects if ref.kind == kind]


class Client:
    """The operator's end of the server. fence: asked before each write."""

    def __init__(self, server: Server, fence: Callable[[], None] | None) -> None:
        self.server, self.fence, self.closed = server, fence, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.server, name)

    async def apply(self, manifest: Manifest, subresource: str | None = None) -> Manifest:
        if self.fence is not None:
            self.fence()
        self.server.fail_writes(Ref("", manifest["kind"], "", manifest["metadata"]["name"]))
        return await self.server.apply(manifest, subresource)

    async def close(self) -> None:
        self.closed = True


@asynccontextmanager
async def operating(server: Server, options: OperatorOptions = OPTIONS) -> AsyncIterator[Operator]:
    operator = made(server, options)
    try:
        await operator.start()
        yield operator
    finally:
        await operator.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}, "whatever ran has ended"
    assert all(client.closed for client in (operator.api, operator.lease_api))  # type: ignore[attr-defined]


def made(server: Server, options: OperatorOptions = OPTIONS) -> Operator:
    patched = pytest.MonkeyPatch()
    patched.setattr(controller, "api_server_access", lambda: server)
    patched.setattr(controller, "Api", lambda access, fence=None: Client(access, fence))
    with patched.context():
        try:
            return Operator(SETTINGS, options)
        finally:
            patched.undo()


def serving(*pools: Manifest, **settings: Any) -> Server:
    server = Server(**settings)
    for each in pools:
        server.store(each, "kubectl")
    return server


def reported(server: Server, name: str) -> Manifest:
    """A pool as a watch reports it."""
    return deepcopy(server.objects[Ref(POOL.api_version, POOL.kind, "team", name)])


def test_existing_and_new_pools_get_their_objects() -> None:
    async def story() -> None:
        server = serving(pool())
        async with operating(server) as operator:
            await asyncio.sleep(1)
            assert server.names("StatefulSet") == ["chat-replica"]
            server.store(pool("code"), "kubectl")
            operator.handle_event(reported(server, "code"), gone=False)
            await asyncio.sleep(1)
            assert server.names("StatefulSet") == ["chat-replica", "code-replica"]
            operator.handle_event(
                server.objects.pop(Ref(POOL.api_version, POOL.kind, "team", "code")), gone=True
            )
            await asyncio.sleep(2 * HEALTHY_PERIOD_S)
            assert [pool["metadata"]["name"] for pool in operator.cache.pools()] == ["chat"]

    run(story())


def test_only_the_operators_own_objects_are_listed_in_the_namespaces_that_it_serves() -> None:
    async def story() -> None:
        server = serving()
        async with operating(server, replace(OPTIONS, namespaces=("a", "b"))):
            pass
        assert server.lists == [
            (kind.kind, namespace, "" if kind is POOL else OWN)
            for kind in (POOL, *WATCHED)
            for namespace in ("a", "b")
        ]

    run(story())


def test_optional_kinds_that_are_not_installed_are_skipped() -> None:
    async def story(missing: str) -> None:
        server = serving(pool(), missing=frozenset({missing}))
        async with operating(server):
            await asyncio.sleep(1)
        assert server.names("StatefulSet") == ["chat-replica"]

    run(story("HTTPRoute"))
    with pytest.raises(StartError, match="the API server refuses: the server could not find"):
        run(story("Service"))


def refused_by_its_gateway(reason: str) -> Manifest:
    """The status of a route."""
    condition = {"type": "Accepted", "status": "False", "observedGeneration": 9, "reason": reason}
    return {"parents": [{"parentRef": {"name": "public"}, "conditions": [condition]}]}


def test_objects_of_a_kind_that_is_installed_later_are_noticed_within_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """kopf does not watch a kind that was not served yet when its definition appeared.

    Without events this pool is reconciled every 30 s, so one of the two changes would be noticed too late.
    """
    monkeypatch.setattr(reconciler, "MIN_RECHECK_S", HEALTHY_PERIOD_S)
    exposed: dict[str, Any] = {
        "ingress": {"host": "chat.example", "kind": "HTTPRoute", "gateway": {"name": "public"}}
    }
    ref = Ref("gateway.networking.k8s.io/v1", "HTTPRoute", "team", "chat")

    async def story() -> None:
        server = serving(pool(**exposed), missing=frozenset({"HTTPRoute"}))
        async with operating(server) as operator:
            await asyncio.sleep(1)
            server.missing = frozenset()
            server.refusals.append(ApiUnreachable("for a moment"))
            await asyncio.sleep(LATE_KINDS_PERIOD_S)
            assert counted(operator, "penstock_operator_errors_total", failure="resync") == 1
            lists = len(server.lists)
            for quiet_s, reason in ((200, "NoListener"), (210, "NoHost")):
                await asyncio.sleep(quiet_s)
                server.store(server.objects[ref] | {"status": refused_by_its_gateway(reason)}, "gateway")
                await asyncio.sleep(LATE_KINDS_PERIOD_S)
                assert reason in str(reported(server, "chat")["status"])
            assert {kind for kind, *_ in server.lists[lists:]} == {"HTTPRoute"}

    run(story())


@pytest.mark.parametrize(
    "retryable",
    [ApiUnreachable("no answer"), ApiStatusError(429, "", "busy"), ApiStatusError(500, "", "etcd")],
    ids=str,
)
def test_an_operator_waits_for_an_api_server_that_is_not_ready(retryable: Exception) -> None:
    async def story() -> float:
        server = serving(pool(), refusals=[retryable] * 3)
        async with operating(server) as operator:
            waited_s = now_s()
            assert operator.health.synced
            await asyncio.sleep(1)
        assert server.names("StatefulSet") == ["chat-replica"]
        return waited_s

    assert run(story()) == pytest.approx(3 * START_RETRY_S, abs=0.1)


def test_an_operator_that_may_not_read_pools_does_not_start() -> None:
    async def story() -> None:
        async with operating(serving(refusals=[ApiStatusError(403, "Forbidden", "pools is forbidden")])):
            raise AssertionError("started")

    with pytest.raises(StartError, match="the API server refuses: pools is forbidden"):
        run(story())


def test_events_lost_by_watches_are_found_by_a_full_list() -> None:
    async def story() -> None:
        server = serving(pool())
        async with operating(server, replace(OPTIONS, resync_s=50.0)) as operator:
            await asyncio.sleep(1)
            server.store(pool("code"), "kubectl")
            server.refusals.append(ApiUnreachable("for a moment"))
            await asyncio.sleep(90)
            assert server.names("StatefulSet") == ["chat-replica"], "the list failed"
            assert counted(operator, "penstock_operator_errors_total", failure="resync") == 1
            await asyncio.sleep(15)
            assert server.names("StatefulSet") == ["chat-replica", "code-replica"]

    run(story())


def test_an_operator_with_unreliable_watches_lists_more_often() -> None:
    async def story() -> None:
        server = serving(pool())
        async with operating(server, replace(OPTIONS, resync_s=60.0)) as operator:
            await asyncio.sleep(1)
            server.version -= 100
            await operator.resync()
            assert operator.cache.stale
            before = len(server.lists)
            await asyncio.sleep(60)
            assert len(server.lists) == before + 1 + len(WATCHED), "the long pause had begun before"
            await asyncio.sleep(3 * STALE_RESYNC_S + 1)
            assert len(server.lists) == before + 4 * (1 + len(WATCHED))

    run(story())


def test_pools_that_claim_one_host_are_reconciled_together() -> None:
    async def story() -> None:
        server = serving(pool("old", ingress=HOST), pool("younger", ingress=HOST))
        async with operating(server) as operator:
            await asyncio.sleep(1)
            assert server.names("Ingress") == ["old"]
            operator.handle_event(
                server.objects.pop(Ref(POOL.api_version, POOL.kind, "team", "old")), gone=True
            )
            await asyncio.sleep(1)
            assert "younger" in server.names("Ingress")

    run(story())


@pytest.mark.parametrize(
    ("failure", "counted_as"),
    [(ApiUnreachable("no answer"), "ApiUnreachable"), (ZeroDivisionError(), "bug")],
    ids=["unreachable", "bug"],
)
def test_a_failed_reconciliation_is_counted_and_retried(failure: Exception, counted_as: str) -> None:
    async def story() -> None:
        failures = [failure] * 3

        def fail(ref: Ref) -> None:
            if failures:
                raise failures.pop()

        server = serving(pool(), fail_writes=fail)
        async with operating(server) as operator:
            await asyncio.sleep(BASE_BACKOFF_S * (1 + 2 + 4) - 0.1)
            assert server.names("StatefulSet") == []
            await asyncio.sleep(0.2)
            assert server.names("StatefulSet") == ["chat-replica"]
            assert counted(operator, "penstock_operator_errors_total", failure=counted_as) == 3
            assert operator.health.failure() is None

    with capture_logs():  # a trace takes seconds to be written for people
        run(story())


def test_a_standby_leads_once_the_lease_expires_and_finally_releases_it() -> None:
    held = {
        "apiVersion": LEASE.api_version,
        "kind": LEASE.kind,
        "metadata": {"name": LEASE_REF.name, "namespace": LEASE_REF.namespace},
        "spec": {"holderIdentity": "you", "leaseDurationSeconds": 15},
    }

    async def story() -> None:
        server = serving(pool(), held)
        async with operating(server, replace(OPTIONS, lease=LEASE_REF)) as operator:
            assert operator.leadership is not None
            operator.leadership._clock_s = now_s
            await asyncio.sleep(LEASE_DURATION_S - 1)
            assert server.names("StatefulSet") == []
            assert counted(operator, "penstock_operator_leading") == 0
            with pytest.raises(LeaseLost):
                operator.leadership.check()
            await asyncio.sleep(RETRY_PERIOD_S)
            assert server.names("StatefulSet") == ["chat-replica"]
            assert counted(operator, "penstock_operator_leading") == 1
            assert server.objects[LEASE_REF]["spec"]["holderIdentity"] == "me"
        assert server.objects[LEASE_REF]["spec"]["holderIdentity"] == ""
        assert "worker 0" in server.at_puts[0]
        assert not {"worker 0", "worker 1", "resync"} & server.at_puts[-1], "it goes back when nothing acts"
        assert counted(operator, "penstock_operator_leading") == 0

    run(story())


def test_a_leader_that_lost_the_lease_continues_once_it_holds_it_again() -> None:
    async def story() -> None:
        server = serving(pool())
        async with operating(server, replace(OPTIONS, lease=LEASE_REF)) as operator:
            assert operator.leadership is not None
            await asyncio.sleep(1)
            operator.leadership._set_leader(False)
            assert operator.reconciler.pool_states == {}, "what it knew is of the past"
            server.store(pool("code"), "kubectl")
            operator.handle_event(reported(server, "code"), gone=False)
            await asyncio.sleep(RETRY_PERIOD_S / 2 - 1.5)
            assert server.names("StatefulSet") == ["chat-replica"]
            await asyncio.sleep(RETRY_PERIOD_S)
            assert server.names("StatefulSet") == ["chat-replica", "code-replica"]

    run(story())


def test_a_write_without_the_lease_is_not_a_failure_and_is_retried() -> None:
    async def story() -> None:
        lost = [LeaseLost("for a moment")]

        def fail(ref: Ref) -> None:
            if lost:
                raise lost.pop()

        server = serving(pool(), fail_writes=fail)
        async with operating(server) as operator:
            await asyncio.sleep(0.01)
            assert server.names("StatefulSet") == ["chat-replica"]
            assert counted(operator, "penstock_operator_errors_total", failure="LeaseLost") is None

    run(story())


def test_a_task_that_ends_by_an_exception_makes_the_operator_unhealthy() -> None:
    async def story() -> None:
        async with operating(serving(), replace(OPTIONS, workers=1)) as operator:
            operator.queue.take = failed_task  # type: ignore[method-assign,assignment]
            operator.queue.add(PoolKey("team", "none"))
            await asyncio.sleep(1)
            assert operator.health.failure() == "worker 0 ended"

    async def failed_task() -> None:
        raise ZeroDivisionError

    run(story())


def test_gauges_count_pools_by_condition_and_waiting_pools() -> None:
    async def story() -> None:
        server = serving(pool(), pool("code"))
        async with operating(server) as operator:
            await asyncio.sleep(1)
            operator._before_scrape()
            ready = dict(condition="Ready", status="False")
            assert counted(operator, "penstock_operator_pools", **ready) == 2
            assert counted(operator, "penstock_operator_queue_length") == 0
            operator.queue.add(PoolKey("team", "chat"))
            operator._before_scrape()
            assert counted(operator, "penstock_operator_queue_length") == 1
            assert counted(operator, "penstock_operator_leading") == 1
            assert (counted(operator, "penstock_operator_reconcile_seconds_count") or 0) >= 2

    run(story())


def counted(operator: Operator, name: str, **labels: str) -> float | None:
    found: float | None = operator.registry.get_sample_value(name, labels)
    return found
