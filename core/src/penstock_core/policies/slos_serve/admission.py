"""Admission of SLOs-Serve: which newcomers can be taken so that every request taken keeps its SLOs.

A set of requests can be served if there is a course on which every promise is kept (`batch_plan`), and if its
blocks suffice at the set's future peak (`kv_forecast`). The engine forms its batches by the same courses, so
with an exact time model and known lengths an admitted request never misses; why is said there.

Which of several newcomers to take is the paper's dynamic program over prefill deadlines and pace classes
(`dynamic_program`). It sees batches as a fluid, which is quick and errs to the safe side. Its set is taken
if a course confirms it; whom it left out is then tried with courses, the cheapest first.

A replica whose memory fills up no longer takes whoever fits. A long request now may cost several short ones
a moment later, so the more of the peak is promised the cheaper a newcomer has to be, against those that are
there and for its value: the exponential price of online admission (Awerbuch, Azar and Plotkin, FOCS 1993).

Best effort has no claim on anything, except one job: the oldest, once it has waited too long
(`best_effort`). It stands before all deadlines here, so that newcomers fit around it.
"""

from collections.abc import Sequence

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, deadline_order
from penstock_core.domain.verdict import Admitted, BestEffort, Reason, Rejected, Verdict
from penstock_core.forecast.decode_load import Pacing
from penstock_core.policies.slos_serve.batch_formation import accepted
from penstock_core.policies.slos_serve.batching_rules import Way
from penstock_core.policies.slos_serve.dynamic_program import solve
from penstock_core.policies.slos_serve.feasibility import Fit, Misfit, Promised, fit
from penstock_core.policies.slos_serve.program_inputs import program_of
from penstock_core.timing.time_model import BatchWork, chunk_work

MOST_NEWCOMERS = 32
"""Decided together; more are decided in groups of this many, by deadline. Bounds the program's states."""

MOST_TRIED = 4
"""Newcomers tried by courses of their own, of those whom the program left out."""


def decide(
    view: ReplicaView, new: Sequence[Job], pacing: Pacing, protected: Job | None = None
) -> list[Verdict]:
    """One verdict for each newcomer. `protected` is the best-effort job that they must fit around."""
    verdicts: dict[str, Verdict] = {}
    candidates: list[Job] = []
    for job in new:
        if not possible_alone(job, view):
            verdicts[job.request.id] = Rejected(Reason.NEVER)
        elif job.best_effort:
            verdicts[job.request.id] = BestEffort()
        else:
            candidates.append(job)
    candidates.sort(key=deadline_order)
    promised = Promised.of(accepted(view, protected))
    for first in range(0, len(candidates), MOST_NEWCOMERS):
        group = candidates[first : first + MOST_NEWCOMERS]
        verdicts |= _decide_group(view, promised, group, pacing)
        promised = promised.beside([job for job in group if isinstance(verdicts[job.request.id], Admitted)])
    return [verdicts[job.request.id] for job in new]


def way_around(view: ReplicaView, protected: Job) -> Way | None:
    """The way by which everything accepted is still in time if this best-effort job goes first, if any is."""
    answer = fit(view, Promised.of(accepted(view, protected)), [])
    return answer.way if isinstance(answer, Fit) else None


def possible_alone(job: Job, view: ReplicaView) -> bool:
    """Whether an idle replica could keep this job's SLOs, had it come there at once.

    Of best effort, which has none, whether it could hold it.
    """
    kv, model = view.kv, view.model
    size_tokens = job.request.prompt_tokens + job.generated_tokens
    if job.best_effort:
        return kv.blocks_for(size_tokens + 1) <= kv.total_blocks
    peak_tokens = size_tokens + job.output_tokens_left - 1
    if kv.blocks_for(peak_tokens) > kv.total_blocks:
        return False
    if job.pace_s is not None and model.seconds(BatchWork(1, peak_tokens)) > job.pace_s:
        return False
    pending, done, alone_s = job.pending_tokens, 0, 0.0
    while done < pending:
        chunk = min(view.limits.batch_tokens, pending - done)
        alone_s += model.seconds(BatchWork(chunk, 0, chunk_work(chunk, done)))
        done += chunk
    return alone_s <= job.due_s - job.request.arrival_s


def _decide_group(
    view: ReplicaView, promised: Promised, group: Sequence[Job], pacing: Pacing
) -> dict[str, Verdict]:
    """Verdicts for newcomers in order of deadline, by id."""
    everyone = fit(view, promised, group)
    if isinstance(everyone, Fit):
        return _admitted(view, group, everyone)
    if len(group) == 1:
        return {group[0].request.id: _rejected(everyone)}
    taken, last = _confirmed(view, promised, _proposed(view, promised, group, pacing))
    left_out = [job for job in group if job not in taken]
    refused: dict[str, Verdict] = {}
    for tried, job in enumerate(sorted(left_out, key=_cost)):
        answer = fit(view, promised, [*taken, job]) if tried < MOST_TRIED else everyone
        if isinstance(answer, Fit):
            taken, last = [*taken, job], answer
        else:
            refused[job.request.id] = _rejected(answer)
    return refused | (_admitted(view, taken, last) if last else {})


def _proposed(view: ReplicaView, promised: Promised, group: Sequence[Job], pacing: Pacing) -> list[Job]:
    """The set that the program takes, as a fluid."""
    taken = solve(program_of(view, promised.jobs, group, pacing))
    return [group[i] for i in sorted(taken)]


def _confirmed(view: ReplicaView, promised: Promised, proposed: list[Job]) -> tuple[list[Job], Fit | None]:
    """The proposed set without the costliest, as many as it takes until a course keeps its promises."""
    while proposed:
        answer = fit(view, promised, proposed)
        if isinstance(answer, Fit):
            return proposed, answer
        proposed = sorted(sorted(proposed, key=_cost)[: len(proposed) // 2], key=deadline_order)
    return [], None


def _cost(job: Job) -> float:
    """Tokens to compute, for its value."""
    return (job.pending_tokens + job.output_tokens_left) / job.request.value


def _admitted(view: ReplicaView, jobs: Sequence[Job], answer: Fit) -> dict[str, Verdict]:
    return {
        job.request.id: Admitted(
            min(answer.first_token_s[job.request.id], job.due_s) - view.now_s,
            min(answer.step_s, job.pace_s or answer.step_s),
        )
        for job in jobs
    }


def _rejected(answer: Fit | Misfit) -> Rejected:
    assert isinstance(answer, Misfit), "whoever fits is taken"
    return Rejected(answer.reason, answer.earliest_s)
