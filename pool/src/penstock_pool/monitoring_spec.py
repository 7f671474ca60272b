"""Monitoring: how a cluster's Prometheus finds a pool."""

from typing import Annotated

from pydantic import Field

from penstock_pool.scalars import Flag, LabelName, LabelValue
from penstock_pool.spec import Spec


class Monitoring(Spec):
    """Objects for the Prometheus operator."""

    service_monitor: Flag = Field(
        default=False,
        description="Whether to create a ServiceMonitor for routers and replicas.",
        examples=[True],
    )
    labels: Annotated[dict[LabelName, LabelValue], Field(max_length=64)] = Field(
        default_factory=dict,
        description="Labels of the ServiceMonitor, so that a Prometheus selects it.",
        examples=[{"release": "prometheus"}],
    )
