"""The page of metrics names every metric that the processes have, and no other."""

import re
from pathlib import Path

from penstock_operator.metrics import OperatorMetrics
from penstock_picker.metrics import Metrics as PickerMetrics
from penstock_router.observability.metrics import Metrics as RouterMetrics
from penstock_routing.demand import Demand
from penstock_routing.replicas.replica_link import ReplicaLink
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_routing.request.byte_budget import ByteBudget
from penstock_sidecar.http.metrics import HttpMetrics
from penstock_sidecar.metrics import Metrics as ReplicaMetrics
from prometheus_client import CollectorRegistry

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "metrics.md").read_text()


def names(registry: CollectorRegistry) -> set[str]:
    counters = {"counter": "_total"}
    return {family.name + counters.get(family.type, "") for family in registry.collect()}


def no_link(*_: object) -> ReplicaLink:
    raise AssertionError("there is no replica to link to")


def test_the_page_names_every_metric_and_no_other() -> None:
    replica, operator = CollectorRegistry(), CollectorRegistry()
    ReplicaMetrics(replica)
    HttpMetrics((), Demand(()), ByteBudget(1), replica)
    OperatorMetrics(operator)
    router = RouterMetrics({}, ReplicaSet(no_link))
    picker = PickerMetrics({}, ReplicaSet(no_link))
    there = names(replica) | names(router.registry) | names(picker.registry) | names(operator)
    rows = [line for line in PAGE.splitlines() if line.startswith("| `penstock_")]
    named = {name for row in rows for name in re.findall(r"`(penstock_\w+)`", row.split("|")[1])}
    assert named == there
