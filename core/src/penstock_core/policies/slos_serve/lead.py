"""Lead of first tokens: time between planned token and deadline, so that slow steps do not make it late."""

from collections.abc import Sequence

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.policies.slos_serve.batch_plan import BatchPlan
from penstock_core.timing.step_tail import LATE_FIRST_TOKENS, spare_steps


def has_lead(
    view: ReplicaView, plan: BatchPlan, prompts: Sequence[Job], new: Sequence[Job], *, own: bool
) -> bool:
    """Return whether candidates and prompts behind them have time for slow steps before their first tokens.

    own: whether the candidates themselves need it. A slow step may take as long as the longest batch.
    """
    model, start_s = view.model, max(view.now_s, view.busy_until_s)
    candidates, in_progress = {job.request.id for job in new}, start_s > view.now_s
    first = min([place for place, job in enumerate(prompts) if job.request.id in candidates], default=0)
    for place in range(first, len(prompts)):
        job, at_s, batches = prompts[place], plan.first_token_s[place], plan.batches[place]
        spare = spare_steps(model.slow_chance, batches + in_progress, LATE_FIRST_TOKENS)
        lead_s = spare * model.slow_excess * min(plan.rule.longest_s, at_s - start_s)
        asked = own or job.request.id not in candidates
        if asked and at_s <= job.due_s < at_s + lead_s:
            return False
    return True
