"""KEDA's Prometheus scaler, and the HorizontalPodAutoscaler that it makes, as far as they decide.

KEDA's own package is built only with the clients of all its scalers, so its protocol is followed here. The
query over HTTP and the reading of its answer are `ExecutePromQuery` of `pkg/scalers/prometheus_scaler.go` in
github.com/kedacore/keda/v2 v2.21.0. How values become replicas is `GetExternalPerPodMetricReplicas` of
Kubernetes' `pkg/controller/podautoscaler/replica_calculator.go`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx2

TOLERANCE = 0.1
"""Kubernetes' default: a ratio this close to 1 changes nothing."""


class ScalerError(Exception):
    """The scaler has no value. No replica is removed then."""


@dataclass(frozen=True, slots=True)
class Keda:
    """A scaler that queries a Prometheus at a fixed time, in UTC."""

    prometheus: str
    at: datetime

    def replicas(self, scaled_object: Mapping[str, Any], replicas: int) -> int:
        """Return the desired number of replicas, given the present number."""
        spec = scaled_object["spec"]
        values = list(self._values(spec))
        known = [value for value, _ in values if value is not None]
        least, most = int(spec["minReplicaCount"]), int(spec["maxReplicaCount"])
        if least == 0 and not any(value > 0 for value in known):
            return 0 if len(known) == len(values) else replicas
        if replicas == 0:
            return 1  # KEDA itself goes from 0 to 1; the HPA goes on from there
        requested = (_proposal(value, each, replicas) for value, each in values if value is not None)
        wanted = max(requested, default=replicas)
        if len(known) < len(values):
            wanted = max(wanted, replicas)
        return min(max(wanted, least, 1), most)

    def _values(self, spec: Mapping[str, Any]) -> Iterator[tuple[float | None, float]]:
        for trigger in spec["triggers"]:
            assert (trigger["type"], trigger["metricType"]) == ("prometheus", "AverageValue")
            try:
                value = self.value(trigger["metadata"])
            except ScalerError:
                value = None
            yield value, float(trigger["metadata"]["threshold"])

    def value(self, metadata: Mapping[str, Any]) -> float:
        """Return a trigger's value. Raises ScalerError."""
        parameters = {"query": metadata["query"], "time": f"{self.at:%Y-%m-%dT%H:%M:%SZ}"}
        answer = httpx2.get(f"{self.prometheus}/api/v1/query", params=parameters, timeout=30)
        if not answer.is_success:
            raise ScalerError(f"prometheus query api returned error: {answer.text}")
        result = answer.json()["data"]["result"]
        if len(result) > 1:
            raise ScalerError("prometheus query returned multiple elements")
        lost_is_zero = metadata.get("ignoreNullValues", "true") == "true"
        value = float(result[0]["value"][1]) if result else math.nan
        if math.isfinite(value):
            return value
        if lost_is_zero:
            return 0.0
        raise ScalerError("prometheus metrics target may be lost, the result is empty")


def _proposal(value: float, threshold: float, replicas: int) -> int:
    """In thousandths, as both pass them on."""
    usage, target = int(value * 1000), int(threshold * 1000)
    if abs(usage / (target * replicas) - 1.0) <= TOLERANCE:
        return replicas
    return math.ceil(usage / target)
