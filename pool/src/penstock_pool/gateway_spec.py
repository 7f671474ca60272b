"""The gateway of a pool, between its clients and its replicas, and fields that exclude one another."""

from typing import Literal

from penstock_pool.cel import CelRule, FieldErrorReason

GatewayName = Literal["router", "envoy", "inferencePool"]

NO_SCALE_TO_ZERO = "only routers hold requests while there is no replica; write gateway: router, or 1"
NO_INGRESS = "an Ingress cannot route to an InferencePool; write kind: HTTPRoute, or remove it"
NO_CERTIFICATE = "would not be used: the Gateway has its own certificate; remove it"

NO_TRACING = "would not be used: only Envoy sends spans; write gateway: envoy, or remove it"

GATEWAY_RULES = (
    CelRule(
        "self.gateway == 'envoy' || !has(self.router) || !has(self.router.tracing)",
        NO_TRACING,
        field_path="router.tracing",
        reason=FieldErrorReason.UNUSED,
    ),
    CelRule(
        "!has(self.autoscaling) || self.gateway == 'router' || self.autoscaling.minReplicas > 0",
        NO_SCALE_TO_ZERO,
        field_path="autoscaling.minReplicas",
    ),
    CelRule(
        "self.gateway != 'inferencePool' || !has(self.ingress) || self.ingress.kind == 'HTTPRoute'",
        NO_INGRESS,
        field_path="ingress.kind",
    ),
    CelRule(
        "self.gateway != 'inferencePool' || !has(self.router) || !has(self.router.tls)",
        NO_CERTIFICATE,
        field_path="router.tls",
        reason=FieldErrorReason.UNUSED,
    ),
)
"""Rules over the whole `spec`."""
