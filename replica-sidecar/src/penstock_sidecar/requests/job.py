"""Converts a submit and its body to the job that admission plans with."""

from dataclasses import replace
from math import isfinite

from penstock_core.domain.request import Job, Request, new_job
from penstock_core.domain.slo import Targets, Tier
from penstock_proto import replica_pb2 as wire
from penstock_routing.request.generation_request import slo_with
from penstock_runtime.openai_errors import ApiError

from penstock_sidecar.mirror.prefix_index import SharedPrefix
from penstock_sidecar.requests.client_body import ClientBody
from penstock_sidecar.requests.estimates import Estimates

LEAST_TARGET_S = 1e-3
"""Least target after delivery is subtracted: engines read positive ones. No iteration meets it."""

NO_BOUND_TOKENS = 8192
"""Planned length of an answer without a bound by the client or the engine."""


def job_of(
    submit: wire.Submit,
    body: ClientBody,
    tier: Tier,
    estimates: Estimates,
    prefix: SharedPrefix | None = None,
    *,
    key: str,
    context_tokens: int,
    now_s: float,
) -> Job:
    """Return the job, with the arrival time that the router reports. A slowdown refers to the fitted model.

    prefix: longest prefix that an earlier prompt shares. context_tokens: the model's context; 0 if unknown.
    """
    prompt_tokens = estimates.prompt_tokens(body, prefix)
    request = Request(
        id=key,
        tier=tier.name,
        arrival_s=now_s - submit.spent_s,
        prompt_tokens=prompt_tokens,
        max_output_tokens=_output_bound(body, prompt_tokens, context_tokens),
        targets=less_delivery(
            targets_of(submit, tier, estimates.fitted.prefill_seconds(prompt_tokens)), estimates.delivery_s
        ),
        value=tier.value,
    )
    best_effort = tier.best_effort or submit.backup
    return new_job(request, estimates.output_tokens(request, 0), best_effort, estimates.sure_tokens(request))


def check_times(submit: wire.Submit) -> None:
    """Raise ApiError (400) if a submit's times are negative or not finite, because plans would be invalid."""
    for name in ("spent_s", "ttft_s", "tpot_s"):
        seconds = getattr(submit, name)
        if not (isfinite(seconds) and seconds >= 0):
            raise ApiError(400, f"'{name}' is {seconds}, which is not a number of seconds", param=name)


def targets_of(submit: wire.Submit, tier: Tier, idle_prefill_s: float) -> Targets:
    """Return the tier's targets for this prompt, replaced by the request's own if it has any."""
    own = Targets(
        submit.ttft_s if submit.HasField("ttft_s") else None,
        submit.tpot_s if submit.HasField("tpot_s") else None,
    )
    return slo_with(tier.slo, own).targets(idle_prefill_s)


def less_delivery(targets: Targets, delivery_s: float) -> Targets:
    """Return the targets that the engine must meet. Transport delays all tokens alike, so TPOT stays."""
    ttft_s = None if targets.ttft_s is None else max(targets.ttft_s - delivery_s, LEAST_TARGET_S)
    e2e_s = None if targets.e2e_s is None else max(targets.e2e_s - delivery_s, LEAST_TARGET_S)
    return replace(targets, ttft_s=ttft_s, e2e_s=e2e_s)


def _output_bound(body: ClientBody, prompt_tokens: int, context_tokens: int) -> int:
    """Return the most tokens of one answer: the client's bound, within what the context leaves."""
    left = max(context_tokens - prompt_tokens, 1) if context_tokens else NO_BOUND_TOKENS
    return left if body.max_tokens is None else min(body.max_tokens, left)
