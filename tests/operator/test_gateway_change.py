"""The order in which a running pool changes its gateway, stage by stage."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from penstock_operator.manifests.manifest import Manifest, PoolOwner
from penstock_operator.objects.pool_objects import desired
from penstock_operator.objects.render_context import GatewayStage, RenderFacts
from penstock_operator.reconcile.gateway_change import gateway_stage
from penstock_operator.settings import OperatorSettings
from penstock_pool import Pool

Workloads = Callable[..., list[Manifest]]
ROUTERS, OPENED = GatewayStage("router", "router"), GatewayStage("router", "envoy")
ENVOYS, POOLS = GatewayStage("envoy", "envoy"), GatewayStage("inferencePool", "inferencePool")
OPENED_FOR_GATEWAYS = GatewayStage("router", "inferencePool")


@pytest.fixture
def workloads(make_pool: Callable[..., Pool], owner: PoolOwner, settings: OperatorSettings) -> Workloads:
    """The StatefulSet and the Deployment of a stage. old: pods of each that are of an older template."""

    def observed(stage: GatewayStage, old_replicas: int = 0, old_fronts: int = 0) -> list[Manifest]:
        facts = RenderFacts(3, None, gateway=stage)
        made = desired(make_pool(), owner, replace(settings, tls=False), facts)
        old = {"StatefulSet": old_replicas, "Deployment": old_fronts}
        return [with_status(each, old[each["kind"]]) for each in made if each["kind"] in old]

    return observed


def with_status(workload: Manifest, old: int, **status: Any) -> Manifest:
    reported = {"observedGeneration": 2, "replicas": 3, "updatedReplicas": 3 - old, **status}
    return {**workload, "metadata": {**workload["metadata"], "generation": 2}, "status": reported}


@pytest.mark.parametrize(
    ("wanted", "stage"), [("router", ROUTERS), ("envoy", ENVOYS), ("inferencePool", POOLS)]
)
def test_a_new_pool_starts_with_the_gateway_of_its_spec(wanted: Any, stage: GatewayStage) -> None:
    assert gateway_stage(wanted, ()) == stage


@pytest.mark.parametrize("stage", [ROUTERS, ENVOYS, POOLS])
def test_a_pool_keeps_its_gateway_during_rollouts(workloads: Workloads, stage: GatewayStage) -> None:
    assert gateway_stage(stage.front, workloads(stage)) == stage
    assert gateway_stage(stage.front, workloads(stage, old_replicas=1, old_fronts=1)) == stage


def test_envoys_are_added_after_all_replicas_accept_http(workloads: Workloads) -> None:
    assert gateway_stage("envoy", workloads(ROUTERS)) == OPENED
    assert gateway_stage("envoy", workloads(OPENED, old_replicas=1)) == OPENED
    assert gateway_stage("envoy", workloads(OPENED)) == ENVOYS


def test_replicas_close_their_port_after_the_last_envoy_has_ended(workloads: Workloads) -> None:
    assert gateway_stage("router", workloads(ENVOYS)) == OPENED
    assert gateway_stage("router", workloads(OPENED, old_fronts=1)) == OPENED
    assert gateway_stage("router", workloads(OPENED)) == ROUTERS


def test_routers_serve_between_envoys_and_an_inference_pool(workloads: Workloads) -> None:
    """Envoys reach sidecars over TLS, Gateways in the clear."""
    assert gateway_stage("inferencePool", workloads(ENVOYS)) == OPENED
    assert gateway_stage("inferencePool", workloads(OPENED, old_fronts=1)) == OPENED
    assert gateway_stage("inferencePool", workloads(OPENED)) == OPENED_FOR_GATEWAYS
    assert (
        gateway_stage("inferencePool", workloads(OPENED_FOR_GATEWAYS, old_replicas=1)) == OPENED_FOR_GATEWAYS
    )
    assert gateway_stage("inferencePool", workloads(OPENED_FOR_GATEWAYS)) == POOLS


def test_a_status_of_an_older_generation_does_not_count(workloads: Workloads) -> None:
    replicas, fronts = workloads(OPENED)
    assert gateway_stage("envoy", [with_status(replicas, 0, observedGeneration=1), fronts]) == OPENED
    assert gateway_stage("router", [replicas, with_status(fronts, 0, observedGeneration=1)]) == OPENED


def test_a_pool_scaled_to_zero_changes_immediately(workloads: Workloads) -> None:
    replicas, fronts = workloads(OPENED)
    assert gateway_stage("envoy", [with_status(replicas, 0, replicas=0, updatedReplicas=0), fronts]) == ENVOYS
