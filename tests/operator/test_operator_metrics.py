"""How many pools there are of each condition, as the operator's metrics count them."""

from typing import Any

from penstock_operator.metrics import OperatorMetrics
from prometheus_client import CollectorRegistry


def pool(**conditions: str) -> dict[str, Any]:
    return {
        "status": {"conditions": [{"type": name, "status": status} for name, status in conditions.items()]}
    }


def test_pools_are_counted_by_condition_and_a_changed_one_once() -> None:
    registry = CollectorRegistry()
    metrics = OperatorMetrics(registry)

    def counted(condition: str, status: str) -> float | None:
        labels = {"condition": condition, "status": status}
        return registry.get_sample_value("penstock_operator_pools", labels)

    metrics.count_pools([pool(Ready="True"), pool(Ready="True", Degraded="False"), pool(Ready="False"), {}])
    assert (counted("Ready", "True"), counted("Ready", "False"), counted("Degraded", "False")) == (2, 1, 1)
    metrics.count_pools([pool(Ready="False")])
    assert (counted("Ready", "True"), counted("Ready", "False"), counted("Degraded", "False")) == (
        None,
        1,
        None,
    )
