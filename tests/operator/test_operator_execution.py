"""Execution of decided actions, and reports of those that failed."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from histogram_buckets import documented, exported
from penstock_operator.cluster.api_client import ApiStatusError, ApiUnreachable
from penstock_operator.cluster.cache import Cache, PoolKey
from penstock_operator.manifests.manifest import Manifest, Ref
from penstock_operator.manifests.names import Component
from penstock_operator.metrics import OperatorMetrics
from penstock_operator.reconcile.actions import Action, ActionReason, Apply, Conflict, Delete, DroppedFields
from penstock_operator.reconcile.execution import execute
from penstock_operator.status.diagnosis import Cause, PoolProblem
from prometheus_client import CollectorRegistry

INVALID = ApiStatusError(422, "Invalid", "spec.ports: may not have two of one name")
FORBIDDEN = ApiStatusError(403, "Forbidden", "pods is forbidden")
QUOTA = ApiStatusError(403, "Forbidden", "exceeded quota: pods")
TERMINATING = ApiStatusError(403, "Forbidden", "being terminated", ("NamespaceTerminating",))


@dataclass
class Api:
    """An API that records its requests. refusing: errors in turn, by an object's name."""

    refusing: dict[str, list[Exception]] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)

    async def apply(self, manifest: Manifest) -> Manifest:
        return self._do("apply", manifest)

    async def overwrite(self, manifest: Manifest) -> Manifest:
        return self._do("overwrite", manifest)

    async def delete(self, ref: Ref, uid: str) -> None:
        self.requests.append(("delete", f"{ref.name} {uid}"))

    def _do(self, verb: str, manifest: Manifest) -> Manifest:
        name = manifest["metadata"]["name"]
        self.requests.append((verb, name))
        if refusals := self.refusing.get(name):
            raise refusals.pop(0)
        return {**manifest, "metadata": {**manifest["metadata"], "uid": name, "resourceVersion": "1"}}


def made(name: str, kind: str = "Service", **spec: Any) -> Manifest:
    labels = {"penstock.dev/pool": "chat", "app.kubernetes.io/component": "router"}
    metadata = {"name": name, "namespace": "team", "labels": labels}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec}


def missing(name: str, **rest: Any) -> Apply:
    return Apply(made(name, **rest), ActionReason.MISSING)


def drifted(name: str) -> Apply:
    return Apply(made(name), ActionReason.DRIFTED)


async def executed(api: Api, *actions: Action) -> tuple[tuple[PoolProblem, ...], Cache, OperatorMetrics]:
    cache, metrics = Cache(), OperatorMetrics(CollectorRegistry())
    as_api: Any = api
    return (await execute(actions, as_api, cache, metrics)).problems, cache, metrics


def ends(metrics: OperatorMetrics) -> set[tuple[str, str, str]]:
    """Return the kind, reason and end of all actions."""
    (family,) = metrics.actions.collect()
    return {
        (sample.labels["kind"], sample.labels["reason"], sample.labels["end"])
        for sample in family.samples
        if sample.name.endswith("_total")
    }


async def test_applied_objects_except_secrets_are_in_the_cache_at_once() -> None:
    api = Api()
    problems, cache, metrics = await executed(api, missing("chat"), missing("chat-ca", kind="Secret"))
    assert problems == ()
    assert [child["metadata"]["name"] for child in cache.children(PoolKey("team", "chat"))] == ["chat"]
    assert ends(metrics) == {("Service", "missing", "done"), ("Secret", "missing", "done")}


async def test_a_refused_action_does_not_stop_the_others() -> None:
    api = Api(refusing={"first": [FORBIDDEN], "second": [QUOTA]})
    problems, _, metrics = await executed(api, missing("first"), missing("second"), missing("third"))
    assert problems == (
        PoolProblem(Cause.API_REFUSED, 'Service "first": pods is forbidden', Component.ROUTER),
        PoolProblem(Cause.QUOTA_EXCEEDED, 'Service "second": exceeded quota: pods', Component.ROUTER),
    )
    assert api.requests == [("apply", "first"), ("apply", "second"), ("apply", "third")]
    assert ends(metrics) == {("Service", "missing", "done"), ("Service", "missing", "refused")}


async def test_in_a_namespace_that_is_being_deleted_no_further_action_is_tried() -> None:
    api = Api(refusing={"first": [TERMINATING]})
    problems, _, metrics = await executed(api, missing("first"), missing("second"))
    assert (problems, api.requests, ends(metrics)) == ((), [("apply", "first")], set())


async def test_an_unresponsive_api_server_ends_the_execution() -> None:
    api = Api(refusing={"first": [ApiUnreachable("no answer")]})
    with pytest.raises(ApiUnreachable):
        await executed(api, missing("first"), missing("second"))
    assert api.requests == [("apply", "first")]


async def test_a_field_that_excludes_a_foreign_addition_replaces_it() -> None:
    api = Api(refusing={"chat": [INVALID]})
    problems, _, _ = await executed(api, drifted("chat"))
    assert problems == ()
    assert api.requests == [("apply", "chat"), ("overwrite", "chat"), ("apply", "chat")]


@pytest.mark.parametrize(("action", "refusal"), [(drifted("chat"), FORBIDDEN), (missing("chat"), INVALID)])
async def test_other_conflicts_are_reported_and_not_overwritten(
    action: Apply, refusal: ApiStatusError
) -> None:
    api = Api(refusing={"chat": [refusal]})
    (problem,), _, _ = await executed(api, action)
    assert problem.message == f'Service "chat": {refusal}'
    assert api.requests == [("apply", "chat")]


async def test_orphans_are_deleted_and_conflicts_become_problems_of_the_pool() -> None:
    api, ref = Api(), Ref("v1", "Service", "team", "chat")
    problems, _, metrics = await executed(
        api,
        Delete(ref, "uid-7"),
        Conflict(ref, "belongs to another"),
        DroppedFields(made("chat"), ("spec.a", "spec.b")),
    )
    assert api.requests == [("delete", "chat uid-7")]
    taken, left_out = problems
    assert taken == PoolProblem(Cause.NAME_TAKEN, "belongs to another")
    assert (left_out.cause, left_out.component) == (Cause.API_REFUSED, Component.ROUTER)
    assert left_out.message.startswith('Service "chat": the API server does not keep spec.a, spec.b: ')
    assert ends(metrics) == {
        ("Service", "orphaned", "done"),
        ("Service", "not_ours", "refused"),
        ("Service", "left_out", "refused"),
    }


def test_histograms_have_the_buckets_that_the_docs_name() -> None:
    registry = CollectorRegistry()
    OperatorMetrics(registry)
    assert exported(registry) == documented("penstock_operator_")
