"""The gateway of a pool: what stands between its clients and its replicas, and what cannot be combined."""

from typing import Literal

from penstock_pool.cel import CelRule, Why

GatewayName = Literal["router", "envoy"]

NOT_SCALED = "only routers report the demand; write gateway: router, or remove it"

GATEWAY_RULES = (
    CelRule(
        "!has(self.autoscaling) || self.gateway == 'router'",
        NOT_SCALED,
        at="autoscaling",
        why=Why.UNUSED,
    ),
)
"""Rules over the whole `spec`."""
