"""Ingress: the host under which clients outside the cluster reach a pool."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from penstock_pool.cel import CelRule, FieldErrorReason, checked_by
from penstock_pool.scalars import Host, LabelName, Name, ObjectName, wrong_at
from penstock_pool.spec import Spec

Annotation = Annotated[str, Field(max_length=4096)]
"""The value of an annotation."""


class Gateway(Spec):
    """The Gateway that an HTTPRoute attaches to."""

    name: ObjectName = Field(description="Its name.", examples=["public"])
    namespace: Name | None = Field(
        default=None, description="Its namespace; absent: the pool's.", examples=["gateways"]
    )


class Ingress(Spec):
    """A host that routes to the pool's routers. If two pools have the same host, the older pool keeps it."""

    model_config = checked_by(
        CelRule(
            "self.kind != 'HTTPRoute' || has(self.gateway)",
            "missing; kind: HTTPRoute needs the Gateway that it attaches to",
            field_path="gateway",
            reason=FieldErrorReason.MISSING,
        ),
        CelRule(
            "self.kind == 'HTTPRoute' || !has(self.gateway)",
            "would not be used; write kind: HTTPRoute, or remove it",
            field_path="gateway",
            reason=FieldErrorReason.UNUSED,
        ),
        CelRule(
            "self.kind == 'Ingress' || !has(self.className)",
            "would not be used; write kind: Ingress, or remove it",
            field_path="className",
            reason=FieldErrorReason.UNUSED,
        ),
        CelRule(
            "self.kind == 'Ingress' || !has(self.tlsSecret)",
            "would not be used; the Gateway has its own, or write kind: Ingress",
            field_path="tlsSecret",
            reason=FieldErrorReason.UNUSED,
        ),
    )

    host: Host = Field(description="The host name.", examples=["llama3.example.com"])
    kind: Literal["Ingress", "HTTPRoute"] = Field(
        default="Ingress",
        description="`Ingress`, or an `HTTPRoute` of the Gateway API.",
        examples=["HTTPRoute"],
    )
    class_name: ObjectName | None = Field(
        default=None,
        description="IngressClass; absent: the cluster's default. With `kind: Ingress`.",
        examples=["traefik"],
    )
    tls_secret: ObjectName | None = Field(
        default=None,
        description="Secret of type kubernetes.io/tls for the host; absent: plain HTTP. With "
        "`kind: Ingress`; a Gateway has its own.",
        examples=["llama3-tls"],
    )
    gateway: Gateway | None = Field(
        default=None, description="The Gateway that it attaches to. With `kind: HTTPRoute`."
    )
    annotations: Annotated[dict[LabelName, Annotation], Field(max_length=64)] = Field(
        default_factory=dict,
        description="Annotations of the object, for its controller.",
        examples=[{"cert-manager.io/cluster-issuer": "letsencrypt"}],
    )

    @model_validator(mode="after")
    def _fields_match_kind(self) -> Self:
        if self.kind == "HTTPRoute" and self.gateway is None:
            raise wrong_at("gateway", "missing; kind: HTTPRoute needs the Gateway that it attaches to")
        if self.kind == "Ingress" and self.gateway is not None:
            raise wrong_at("gateway", "would not be used; write kind: HTTPRoute, or remove it")
        if self.kind == "HTTPRoute" and self.class_name is not None:
            raise wrong_at("className", "would not be used; write kind: Ingress, or remove it")
        if self.kind == "HTTPRoute" and self.tls_secret is not None:
            raise wrong_at("tlsSecret", "would not be used; the Gateway has its own, or write kind: Ingress")
        return self
