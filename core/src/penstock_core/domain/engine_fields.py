"""Fields by which the sidecar passes a request's SLO to the engine, inside the request.

vLLM passes a body's `vllm_xargs` (scalars only) to its scheduler, which is how the plug-in gets SLOs; the
simulated engine reads the same fields. Durations are what remains when the sidecar sends the request; the
engine counts them from when it has read the request.

A client that reaches an engine directly can write anything into these fields, so each is validated. Unknown
fields, such as those of a newer sidecar, are ignored.
"""

from collections.abc import Mapping

from penstock_core.domain.request import Job, Request, new_job
from penstock_core.domain.slo import Judge, Targets

Scalar = str | int | float | bool

LONGEST_STRING = 200
"""Most characters of an id or a tier's name."""

COUNTS_ON_CACHE = "penstock_counts_on_cache"
"""Field of a request that was admitted because of its cached prefix, which the engine then keeps."""

MOST = 1e9
"""Largest duration in seconds, and largest value. Their sums are exact to a microsecond."""


def measured_model_file(telemetry: str) -> str:
    """Return the path of the time model that a sidecar has measured, beside its telemetry socket."""
    return f"{telemetry}.time-model.json"


def ticket_key_file(telemetry: str) -> str:
    """Return the path of the key that a sidecar seals tickets with, beside its telemetry socket."""
    return f"{telemetry}.ticket-key"


def engine_calls_socket(telemetry: str) -> str:
    """Return the path on which an engine asks its sidecar about requests, beside the telemetry socket."""
    return f"{telemetry}.calls"


def sequence_ids(request_id: str, sequences: int) -> tuple[str, ...]:
    """Return the ids of one request's answers. Each is a separate job, at the sidecar as in the engine."""
    return tuple([sequence_id(request_id, number) for number in range(sequences)])


def sequence_id(request_id: str, number: int) -> str:
    """Return the id of one answer. The first answer has the request's id."""
    return f"{request_id}~{number}" if number else request_id


def to_fields(job: Job, now_s: float, *, counts_on_cache: bool = False) -> dict[str, Scalar]:
    """Return the `vllm_xargs` of an accepted job that has not started yet.

    counts_on_cache: as in its verdict, `Admitted.counts_on_cache`.
    """
    request, targets = job.request, job.request.targets
    spent_s = now_s - request.arrival_s
    fields: dict[str, Scalar] = {
        "penstock_id": request.id,
        "penstock_tier": request.tier,
        "penstock_spent_s": spent_s,
        "penstock_judge": targets.judge.value,
        "penstock_value": request.value,
        "penstock_output_tokens": job.output_tokens,
        "penstock_sure_tokens": job.sure_tokens,
        "penstock_best_effort": job.best_effort,
    }
    budgets = {
        "ttft": targets.ttft_s,
        "tpot": targets.tpot_s,
        "e2e": targets.e2e_s,
        "answer_tpot": targets.answer_tpot_s,
    }
    fields |= {f"penstock_{name}_s": value for name, value in budgets.items() if value is not None}
    return fields | {COUNTS_ON_CACHE: True} if counts_on_cache else fields


def counts_on_cache(fields: Mapping[str, Scalar]) -> bool:
    """Return whether a request was admitted because its prompt's prefix is cached; see `to_fields`."""
    return fields.get(COUNTS_ON_CACHE) is True


def from_fields(
    fields: Mapping[str, Scalar],
    *,
    engine_id: str,
    prompt_tokens: int,
    max_output_tokens: int,
    now_s: float,
) -> Job:
    """Return the job as the engine plans it. A request without fields is best effort in tier `direct`.

    Raises ValueError if a field's value is invalid.
    """
    targets = Targets(
        _budget_s(fields, "penstock_ttft_s"),
        _budget_s(fields, "penstock_tpot_s"),
        _budget_s(fields, "penstock_e2e_s"),
        Judge(_string(fields, "penstock_judge", Judge.MEAN.value)),
        _budget_s(fields, "penstock_answer_tpot_s"),
    )
    request = Request(
        id=_string(fields, "penstock_id", engine_id),
        tier=_string(fields, "penstock_tier", "direct"),
        arrival_s=now_s - _number(fields, "penstock_spent_s", 0.0),
        prompt_tokens=prompt_tokens,
        max_output_tokens=max_output_tokens,
        targets=targets,
        value=_positive(fields, "penstock_value", 1.0),
    )
    output_tokens = _count(fields, "penstock_output_tokens", max_output_tokens)
    sure_tokens = _count(fields, "penstock_sure_tokens", 0)
    best_effort = bool(fields.get("penstock_best_effort", True))
    return new_job(
        request, min(output_tokens, max_output_tokens), best_effort, min(sure_tokens, max_output_tokens)
    )


def _string(fields: Mapping[str, Scalar], name: str, default: str) -> str:
    if name not in fields:
        return default
    value = fields[name]
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_STRING or not value.isprintable():
        raise ValueError(f"{name} is not a string of at most {LONGEST_STRING} characters")
    return value


def _number(fields: Mapping[str, Scalar], name: str, default: float) -> float:
    try:
        number = float(fields.get(name, default))
    except (TypeError, OverflowError):
        raise ValueError(f"{name} is not a number, or too large") from None
    if not 0 <= number <= MOST:
        raise ValueError(f"{name} is {number}, not between 0 and {MOST:g}")
    return number


def _positive(fields: Mapping[str, Scalar], name: str, default: float) -> float:
    number = _number(fields, name, default)
    if not number:
        raise ValueError(f"{name} is 0")
    return number


def _count(fields: Mapping[str, Scalar], name: str, default: int) -> int:
    return int(_number(fields, name, default))


def _budget_s(fields: Mapping[str, Scalar], name: str) -> float | None:
    return None if fields.get(name) is None else _positive(fields, name, 0.0)
