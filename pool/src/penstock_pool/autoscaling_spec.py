"""Autoscaling: bounds, targets and speed of the number of replicas in a cluster."""

from typing import Annotated, Literal, Self

from penstock_core.autoscaling.terms import Scaling
from pydantic import Field, model_validator

from penstock_pool.cel import CelRule, FieldErrorReason, checked_by
from penstock_pool.scalars import Count, Duration, Number, Replicas, Url, Window, wrong_at
from penstock_pool.spec import Spec

DEFAULT_ATTAINMENT = 0.99
NOT_BY_HPA = "would not be used: by: hpa reads only averages over replicas; write by: penstock, or remove it"


class ScaleUp(Spec):
    """Adding replicas."""

    stabilization_window_s: Window = Field(
        default=15.0,
        description="Scale up only after demand has required it for this long.",
        examples=["15s"],
    )
    max_step: Count | None = Field(
        default=None, description="Most replicas added at once; absent: no limit.", examples=[2]
    )


class ScaleDown(Spec):
    """Removing replicas."""

    stabilization_window_s: Window = Field(
        default=300.0,
        description="Remove replicas only after fewer would have met the demand for this long.",
        examples=["5m"],
    )
    max_step: Count | None = Field(
        default=None,
        description="Most replicas removed at once; absent: no limit.",
        examples=[1],
    )


class Autoscaling(Spec):
    """Bounds on the number of replicas, and the autoscaler."""

    model_config = checked_by(
        CelRule(
            "self.minReplicas <= self.maxReplicas",
            "is above maxReplicas; at most that",
            field_path="minReplicas",
        ),
        CelRule(
            "self.by != 'keda' || has(self.prometheusUrl)",
            "missing; by: keda needs the URL of a Prometheus",
            field_path="prometheusUrl",
            reason=FieldErrorReason.MISSING,
        ),
        CelRule(
            "self.by == 'keda' || !has(self.prometheusUrl)",
            "would not be used; write by: keda, or remove it",
            field_path="prometheusUrl",
            reason=FieldErrorReason.UNUSED,
        ),
        CelRule(
            "self.by != 'hpa' || self.minReplicas > 0",
            "0 is not possible with by: hpa; write by: penstock, by: keda, or 1",
            field_path="minReplicas",
        ),
        CelRule(
            "self.by != 'hpa' || !has(self.targetAttainment)",
            NOT_BY_HPA,
            field_path="targetAttainment",
            reason=FieldErrorReason.UNUSED,
        ),
    )

    min_replicas: Replicas = Field(
        default=1,
        description="Fewest replicas. 0: none while there are no requests; the first request starts one.",
        examples=[1],
    )
    max_replicas: Annotated[Replicas, Field(ge=1)] = Field(description="Most replicas.", examples=[8])
    target_attainment: Annotated[Number, Field(gt=0, le=1)] | None = Field(
        default=None,
        description="Share of each tier's requests whose SLOs should be met, above 0 and at most 1; below it "
        "replicas are added. Absent: 0.99. Not with `by: hpa`.",
        examples=[0.99],
    )
    scale_up: ScaleUp = Field(default=ScaleUp(), description="How fast replicas are added.")
    scale_down: ScaleDown = Field(default=ScaleDown(), description="How fast replicas are removed.")
    idle_timeout_s: Duration = Field(
        default=600.0,
        description="With minReplicas 0: the last replica is removed after this long without requests.",
        examples=["10m"],
    )
    wake_timeout_s: Duration = Field(
        default=120.0,
        description="Longest time a router holds a request while no replica is up; then it is answered 503.",
        examples=["2m"],
    )
    by: Literal["penstock", "hpa", "keda"] = Field(
        default="penstock",
        description="The autoscaler: `penstock`, by admission's figures; or a HorizontalPodAutoscaler "
        "(`hpa`) or a ScaledObject (`keda`), which the operator makes, on Penstock's metrics.",
        examples=["penstock"],
    )
    prometheus_url: Url | None = Field(
        default=None,
        description="URL of the Prometheus that KEDA queries; with `by: keda`.",
        examples=["http://prometheus.monitoring:9090"],
    )

    @property
    def target_attainment_or_default(self) -> float:
        """Return `targetAttainment`, or its default."""
        return DEFAULT_ATTAINMENT if self.target_attainment is None else self.target_attainment

    def scaling(self) -> Scaling:
        """Return the limits of every decision, whichever autoscaler takes it."""
        return Scaling(
            min_replicas=self.min_replicas,
            max_replicas=self.max_replicas,
            target_attainment=self.target_attainment_or_default,
            scale_up_window_s=self.scale_up.stabilization_window_s,
            scale_down_window_s=self.scale_down.stabilization_window_s,
            idle_timeout_s=self.idle_timeout_s,
        )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise wrong_at(
                "minReplicas", f"{self.min_replicas} is above maxReplicas {self.max_replicas}; at most that"
            )
        return self

    @model_validator(mode="after")
    def _keda_needs_prometheus(self) -> Self:
        if self.by == "keda" and self.prometheus_url is None:
            raise wrong_at("prometheusUrl", "missing; by: keda needs the URL of a Prometheus")
        if self.by != "keda" and self.prometheus_url is not None:
            raise wrong_at("prometheusUrl", "would not be used; write by: keda, or remove it")
        return self

    @model_validator(mode="after")
    def _hpa_needs_one_replica(self) -> Self:
        if self.by == "hpa" and self.min_replicas == 0:
            raise wrong_at(
                "minReplicas", "0 is not possible with by: hpa; write by: penstock, by: keda, or 1"
            )
        return self

    @model_validator(mode="after")
    def _hpa_has_no_attainment(self) -> Self:
        if self.by == "hpa" and self.target_attainment is not None:
            raise wrong_at("targetAttainment", NOT_BY_HPA)
        return self
