"""The gateway of a pool: what stands between its clients and its replicas, and what cannot be combined."""

from typing import Literal

from penstock_pool.cel import CelRule, Why

GatewayName = Literal["router", "envoy", "inferencePool"]

NOT_SCALED = "only routers report the demand; write gateway: router, or remove it"
NO_INGRESS = "an Ingress cannot lead to an InferencePool; write kind: HTTPRoute, or remove it"
NO_CERTIFICATE = "would not be used: the Gateway has its own certificate; remove it"

GATEWAY_RULES = (
    CelRule(
        "!has(self.autoscaling) || self.gateway == 'router'",
        NOT_SCALED,
        at="autoscaling",
        why=Why.UNUSED,
    ),
    CelRule(
        "self.gateway != 'inferencePool' || !has(self.ingress) || self.ingress.kind == 'HTTPRoute'",
        NO_INGRESS,
        at="ingress.kind",
    ),
    CelRule(
        "self.gateway != 'inferencePool' || !has(self.router) || !has(self.router.tls)",
        NO_CERTIFICATE,
        at="router.tls",
        why=Why.UNUSED,
    ),
)
"""Rules over the whole `spec`."""
