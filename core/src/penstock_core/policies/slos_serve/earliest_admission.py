"""Estimate of the time at which a rejected candidate might fit, from the present requests alone."""

from collections.abc import Sequence
from math import inf

from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Reason
from penstock_core.policies.slos_serve.feasibility import Infeasible
from penstock_core.policies.slos_serve.workload import AdmittedSet
from penstock_core.timing.time_model import BatchWork


def earliest_s(admitted: AdmittedSet, tried: Sequence[Job], answer: Infeasible) -> float:
    """Return the seconds from now until the tried candidates might fit beside the admitted requests.

    answer: the reason why they do not fit now.
    """
    if answer.reason is Reason.KV_MEMORY:
        return answer.crowded_steps * answer.step_s
    if answer.reason is Reason.DECODE_BUDGET:
        return _until_one_ends_s(admitted.jobs or tried, answer.step_s)
    return _until_computed_s(admitted, tried, answer.step_s)


def _until_one_ends_s(jobs: Sequence[Job], step_s: float) -> float:
    return min([job.output_tokens_left for job in jobs]) * step_s


def _until_computed_s(admitted: AdmittedSet, tried: Sequence[Job], step_s: float) -> float:
    """Return the seconds until so many admitted prompts are computed that the candidates have enough time."""
    view = admitted.view
    tokens = sum([job.pending_tokens for job in (*admitted.prompts, *tried)])
    waited_s = max(view.busy_until_s - view.now_s, 0.0)
    slack_s = min([job.due_s - job.request.arrival_s for job in tried], default=inf)
    busy_s = waited_s + view.model.seconds(BatchWork(tokens + len(admitted.decodes)))
    return max(busy_s - slack_s, step_s)
