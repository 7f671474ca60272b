"""What the sidecar tells the engine of a request, inside the request.

vLLM hands a body's `vllm_xargs` (scalars only) to its scheduler, so this is how SLOs reach the plug-in, and
the simulated engine reads the same fields. Budgets are what is left of them when the sidecar sends the
request; the engine counts them from the moment it has read it.
"""

from collections.abc import Mapping

from penstock_core.domain.request import Job, Request, new_job
from penstock_core.domain.slo import Judge, Targets

Scalar = str | int | float | bool


def measured_model_file(telemetry: str) -> str:
    """Where a sidecar leaves the time model that it has measured: beside its telemetry socket."""
    return f"{telemetry}.time-model.json"


def sequence_ids(request_id: str, sequences: int) -> tuple[str, ...]:
    """Return the ids of one request's answers: each is a job of its own, at the sidecar as in the engine."""
    return (request_id, *(f"{request_id}~{number}" for number in range(1, sequences)))


def to_fields(job: Job, now_s: float) -> dict[str, Scalar]:
    """The `vllm_xargs` of an accepted job that has not started yet."""
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
    return fields | {f"penstock_{name}_s": value for name, value in budgets.items() if value is not None}


def from_fields(
    fields: Mapping[str, Scalar],
    *,
    engine_id: str,
    prompt_tokens: int,
    max_output_tokens: int,
    now_s: float,
) -> Job:
    """The job as the engine plans it. A request that came without fields is best effort in tier `direct`.

    Raises ValueError where a field's value is none it can have.
    """
    targets = Targets(
        _seconds(fields, "penstock_ttft_s"),
        _seconds(fields, "penstock_tpot_s"),
        _seconds(fields, "penstock_e2e_s"),
        Judge(str(fields.get("penstock_judge", Judge.MEAN.value))),
        _seconds(fields, "penstock_answer_tpot_s"),
    )
    request = Request(
        id=str(fields.get("penstock_id", engine_id)),
        tier=str(fields.get("penstock_tier", "direct")),
        arrival_s=now_s - float(fields.get("penstock_spent_s", 0.0)),
        prompt_tokens=prompt_tokens,
        max_output_tokens=max_output_tokens,
        targets=targets,
        value=float(fields.get("penstock_value", 1.0)),
    )
    output_tokens = int(fields.get("penstock_output_tokens", max_output_tokens))
    sure_tokens = int(fields.get("penstock_sure_tokens", 0))
    best_effort = bool(fields.get("penstock_best_effort", True))
    return new_job(
        request, min(output_tokens, max_output_tokens), best_effort, min(sure_tokens, max_output_tokens)
    )


def _seconds(fields: Mapping[str, Scalar], name: str) -> float | None:
    value = fields.get(name)
    return None if value is None else float(value)
