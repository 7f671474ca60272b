"""Admission of SLOs-Serve: which newcomers can be taken so that every request taken keeps its SLOs.

The engine serves prefills by deadline beside decodes that keep their pace (`batch_formation`). Admission
carries that out as a fluid: from `start_s`, when the engine is free, prefills are done one after the
other in the order of their deadlines, each at the rate that the decodes leave which run by then
(`decode_load`). A prefill that the fluid finishes at C brings its first token out by C + T, at the end of
the batch that contains C; so it is in time if C + T ≤ its deadline. `admission_program` chooses the best
set of newcomers for which all are.

Why this holds in the engine. Let W be what the fluid has done, in prefills by deadline. At every end of a
batch the engine has done at least W, by induction over batches:
  (a) A batch of L ≥ T seconds is filled with prefills by deadline, and by `decode_load` any such batch
      does at least what the fluid does in L. Batches are longer than T only where every token due can
      wait for them.
  (b) A prefill that would finish in a batch after its deadline shortens that batch to its deadline, d. As
      C ≤ d − T, the prefill still finishes in it; and if the batch were then shorter than T it would have
      begun after C, when the prefill was done already.
  (c) Finishing early is safe. Its decode then starts early and slows what comes behind, which the paper's
      recursion does not see: there the decode starts at the deadline. Here the rate of everything behind
      it has the decode in it from C on, and at C the engine is no further back than the fluid, however it
      got there.
  (d) Decodes that share a batch only every few periods are served oldest first, in equal shares, so what
      they take until any batch end is no more than their shares.
Decodes keep their pace because every batch ends before any of them is due, and afterwards each is due a
whole pace later. Blocks suffice because all decodes go one token a batch, as `kv_peak` counts; only when
all peaks fit at once may decodes wait for one another. Newcomers of later calls go through the same test
with all of this forced.

What the fluid refuses the engine may still do exactly: if every prefill there is fits into the next
batch, before every deadline, then it is that batch. So a prompt that an idle replica can serve in time is
served.

Best effort has no claim on anything, except one job: the oldest, once it has waited too long
(`best_effort`). It stands before all deadlines here, so that newcomers fit around it.
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from penstock_core.admission_program import Path, solve, walk, without
from penstock_core.admission_refusal import Refusals
from penstock_core.admission_situation import Situation, situation
from penstock_core.batch_formation import accepted
from penstock_core.batch_time import with_prefills
from penstock_core.decode_load import Pacing
from penstock_core.replica_view import ReplicaView
from penstock_core.request import Job, deadline_order
from penstock_core.time_model import BatchWork, chunk_work
from penstock_core.verdict import Admitted, BestEffort, Reason, Rejected, Verdict

MOST_NEWCOMERS = 32
"""Decided together; more are decided in groups of this many, by deadline. Bounds the program's states."""


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
    claims = accepted(view, protected)
    for first in range(0, len(candidates), MOST_NEWCOMERS):
        group = candidates[first : first + MOST_NEWCOMERS]
        answers = _decide_group(situation(view, claims, group, pacing))
        verdicts |= {job.request.id: answer for job, answer in zip(group, answers, strict=True)}
        claims += [job for job, answer in zip(group, answers, strict=True) if isinstance(answer, Admitted)]
    return [verdicts[job.request.id] for job in new]


def fits_around(view: ReplicaView, protected: Job, pacing: Pacing) -> bool:
    """Whether everything accepted is still in time if this best-effort job goes first."""
    now = situation(view, accepted(view, protected), [], pacing)
    program, period_s = now.program, float(now.program.at.period_s[0])
    if not program.allowed[0] or bool((now.base > view.kv.total_blocks).any()):
        return False
    ends_s = zip(program.items, without(program), strict=True)
    return all(done_s + period_s <= item.due_s for item, done_s in ends_s if item.due_s != -inf)


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


def _decide_group(now: Situation) -> list[Verdict]:
    taken = solve(now.program)
    path = walk(now.program, taken, without(now.program))
    assert path is not None, "the program's answer is one of its own sets"
    answers: dict[int, Verdict] = {i: _admitted(now, i, path) for i in taken}
    if len(taken) < len(now.new):
        answers |= _beyond_the_fluid(now, taken, path)
    return [answers[i] for i in range(len(now.new))]


def _admitted(now: Situation, i: int, path: Path) -> Admitted:
    last_batch_s = float(now.program.at.period_s[0])
    ttft_s = path.done_s[i] + last_batch_s - now.view.now_s
    due_in_s = now.new[i].due_s - now.view.now_s
    return Admitted(min(ttft_s, due_in_s), _pace_s(now, now.new[i], path.state))


def _pace_s(now: Situation, job: Job, state: int) -> float:
    """At most its own pace, and no longer than the longest batch beside these decodes."""
    period_s = float(now.program.at.period_s[state])
    return period_s if job.pace_s is None else max(min(job.pace_s, period_s), 0.0)


class _OneBatch(NamedTuple):
    """Everything taken so far in the next batch, and when it would have to be over."""

    work: BatchWork
    due_s: float

    def beside(self, jobs: Sequence[Job]) -> "_OneBatch":
        return _OneBatch(with_prefills(self.work, jobs), min([self.due_s, *(job.due_s for job in jobs)]))

    def end_s(self, now: Situation) -> float:
        """When it ends; infinite if that is too late, or where it has too many tokens."""
        end_s = now.free_s + now.view.model.seconds(self.work)
        return end_s if end_s <= self.due_s and self.work.tokens <= now.view.limits.batch_tokens else inf


def _beyond_the_fluid(now: Situation, taken: frozenset[int], path: Path) -> dict[int, Verdict]:
    """Verdicts on those whom the program left out; whom the next batch can hold is taken all the same."""
    answers: dict[int, Verdict] = {}
    batch = _OneBatch(now.next_batch, now.next_due_s).beside([now.new[i] for i in taken])
    full = batch.end_s(now) == inf
    refusals = Refusals(now, path, taken)
    for i, job in enumerate(now.new):
        if i in taken:
            continue
        reason = refusals.reason(i)
        if reason is Reason.PREFILL_BUDGET and not full:
            more = batch.beside([job])
            end_s = more.end_s(now)
            if end_s < inf:
                batch = more
                refusals.take(i)
                answers[i] = Admitted(end_s - now.view.now_s, _pace_s(now, job, refusals.state))
                continue
        answers[i] = Rejected(reason, refusals.earliest_s(i, reason))
    return answers
