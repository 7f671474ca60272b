"""Tiers: the SLOs of a pool's applications."""

from typing import Annotated, Any, Literal, Self

from penstock_core.domain.slo import Judge, Slo, Tier
from pydantic import ConfigDict, Discriminator, Field, Tag, WithJsonSchema, model_validator

from penstock_pool.cel import CelRule, FieldErrorReason, checked_by, documents
from penstock_pool.durations import LONGEST_TEXT
from penstock_pool.scalars import DURATION, Duration, Flag, Name, Number, wrong_at
from penstock_pool.spec import Spec


class Slowdown(Spec):
    """A TTFT target that grows with the prompt."""

    slowdown: Annotated[Number, Field(ge=1)] = Field(
        description="Multiple of the prompt's prefill time on an idle replica; at least 1.", examples=[5]
    )


def _ttft_kind(given: Any) -> str:
    return "<slowdown>" if isinstance(given, dict | Slowdown) else "<duration>"


_TTFT_EXAMPLES: list[Any] = ["800ms", "1.5s", {"slowdown": 5}]
_NO_OTHER_TYPE = {"minimum": 1, "maximum": 0, "minItems": 1, "maxItems": 0, "not": {"enum": [True, False]}}
"""Matches no number, list or boolean, because Kubernetes has no keyword for that."""

Ttft = Annotated[
    Annotated[Duration, Tag("<duration>")] | Annotated[Slowdown, Tag("<slowdown>")],
    Discriminator(_ttft_kind),
    WithJsonSchema(
        {
            "x-kubernetes-preserve-unknown-fields": True,  # no type: text, or a mapping
            "pattern": DURATION,
            "maxLength": LONGEST_TEXT,
            "allOf": [{"pattern": "[1-9]"}],  # above zero
            "properties": {"slowdown": Slowdown.model_json_schema()["properties"]["slowdown"]},
            "required": ["slowdown"],
            "maxProperties": 1,
            "anyOf": [
                {"enum": _TTFT_EXAMPLES},
                _NO_OTHER_TYPE,
            ],  # for values of other types, the error lists examples
        }
    ),
]
"""A duration or a mapping. Kubernetes has no unions, so each keyword applies to values of its own type:
`pattern` to text, `required` to mappings. CEL cannot access a field that has two types.
"""


def _not_after_last_token(field: str) -> CelRule:
    both = f"has(self.{field}) && has(self.e2e)"
    durations = f"self.{field}.matches('{DURATION}') && self.e2e.matches('{DURATION}')"
    return CelRule(
        f"!({both} && {durations}) || duration(self.{field}) <= duration(self.e2e)",
        f"is shorter than {field}; the last token is not due before the others",
        field_path="e2e",
    )


class SloSpec(Spec):
    """Targets; at least one."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [{"required": [target]} for target in ("ttft", "tpot", "answerTpot", "e2e")],
            **documents(*(_not_after_last_token(pace) for pace in ("tpot", "answerTpot"))),
        }
    )

    ttft: Ttft | None = Field(
        default=None,
        description="Time to first token, from when the router has read the request: a duration, or "
        "`slowdown: 5` for five times the prompt's prefill time on an idle replica.",
        examples=["800ms", {"slowdown": 5}],
    )
    tpot_s: Duration | None = Field(
        default=None,
        description="Time per output token after the first, as `judge` measures it.",
        examples=["50ms"],
    )
    answer_tpot_s: Duration | None = Field(
        default=None,
        description="For models that think first: TPOT of the answer proper, after the last token of "
        "thinking; `tpot` then applies to the thinking.",
        examples=["100ms"],
    )
    e2e_s: Duration | None = Field(default=None, description="Time to the last token.", examples=["30s"])
    judge: Literal["mean", "window", "max"] = Field(
        default="mean",
        description="How the time per output token is measured: `mean` over the answer, the slowest `window` "
        "of ten tokens, or the `max` gap.",
        examples=["window"],
    )

    @model_validator(mode="after")
    def _has_a_target(self) -> Self:
        targets = (self.ttft, self.tpot_s, self.answer_tpot_s, self.e2e_s)
        if all(target is None for target in targets):
            raise wrong_at("", "has no target; write at least one of ttft, tpot, answerTpot, e2e")
        return self

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.e2e_s is None:
            return self
        sooner = {"ttft": self.ttft, "tpot": self.tpot_s, "answerTpot": self.answer_tpot_s}
        later = [name for name, due_s in sooner.items() if isinstance(due_s, float) and due_s > self.e2e_s]
        if later:
            raise wrong_at("e2e", f"is shorter than {later[0]}; the last token is not due before the others")
        return self

    def to_core(self) -> Slo:
        """Return the core's SLO."""
        judge = Judge(self.judge)
        if isinstance(self.ttft, Slowdown):
            return Slo(None, self.ttft.slowdown, self.tpot_s, self.e2e_s, judge, self.answer_tpot_s)
        return Slo(self.ttft, None, self.tpot_s, self.e2e_s, judge, self.answer_tpot_s)


class TierSpec(Spec):
    """A class of requests with one SLO."""

    model_config = checked_by(
        CelRule(
            "!self.bestEffort || !has(self.slo)",
            "best effort has no SLO; remove slo, or bestEffort: true",
            field_path="slo",
            reason=FieldErrorReason.UNUSED,
        ),
        CelRule(
            "self.bestEffort || has(self.slo)",
            "missing; write targets, or bestEffort: true",
            field_path="slo",
            reason=FieldErrorReason.MISSING,
        ),
    )

    name: Name = Field(description="Unique in the pool; clients name it in requests.", examples=["chat"])
    slo: SloSpec | None = Field(default=None, description="Latency targets; absent for best effort.")
    value: Annotated[Number, Field(gt=0)] = Field(
        default=1.0, description="Value of an admitted request relative to other tiers'.", examples=[1]
    )
    best_effort: Flag = Field(
        default=False,
        description="Without an SLO: served with the capacity that other tiers leave.",
        examples=[True],
    )
    allow_request_targets: Flag = Field(
        default=False,
        description="Whether requests may set their own targets, with X-SLO-TTFT-MS and X-SLO-TPOT-MS.",
        examples=[True],
    )

    @model_validator(mode="after")
    def _slo_or_best_effort(self) -> Self:
        if self.best_effort and self.slo is not None:
            raise wrong_at("slo", "best effort has no SLO; remove slo, or bestEffort: true")
        if not self.best_effort and self.slo is None:
            raise wrong_at("slo", "missing; write targets, or bestEffort: true")
        return self

    def to_core(self) -> Tier:
        """Return the core's tier."""
        slo = Slo() if self.slo is None else self.slo.to_core()
        return Tier(self.name, slo, self.value, self.best_effort, self.allow_request_targets)
