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
from dataclasses import dataclass
from math import ceil, inf, isfinite
from typing import NamedTuple

import numpy as np

from penstock_core import kv_peak
from penstock_core.admission_program import Item, Path, Program, item_s, solve, walk, without
from penstock_core.batch_formation import accepted, deadline_order
from penstock_core.batch_time import with_all
from penstock_core.decode_load import Load, Pacing, rates, work_s
from penstock_core.kv_peak import Ints, as_ints
from penstock_core.pace_classes import class_of, kept_paces_s, states
from penstock_core.replica_view import ReplicaView
from penstock_core.request import Job
from penstock_core.time_model import BatchWork, TimeModel, chunk_work
from penstock_core.verdict import Admitted, BestEffort, Reason, Rejected, Verdict

MOST_NEWCOMERS = 32
"""Decided together; more are decided in groups of this many, by deadline. Bounds the program's states."""


@dataclass(frozen=True, slots=True)
class Situation:
    """One call's claims and newcomers, as the program and the verdicts need them.

    program: what is to be decided, for the newcomers `new`. ends: the last steps of its buckets.
    base: blocks that claims hold in each bucket.
    next_batch: everything there is to do for claims, in one batch. next_due_s: when it would have to be over.
    """

    view: ReplicaView
    new: Sequence[Job]
    program: Program
    ends: Ints
    base: Ints
    next_batch: BatchWork
    next_due_s: float


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
    if job.best_effort:
        return (
            view.kv.blocks_for(job.request.prompt_tokens + job.generated_tokens + 1) <= view.kv.total_blocks
        )
    peak_tokens = job.request.prompt_tokens + job.generated_tokens + job.output_tokens_left - 1
    if view.kv.blocks_for(peak_tokens) > view.kv.total_blocks:
        return False
    if job.pace_s is not None and view.model.seconds(BatchWork(1, peak_tokens)) > job.pace_s:
        return False
    done, alone_s = 0, 0.0
    while done < job.pending_tokens:
        chunk = min(view.limits.batch_tokens, job.pending_tokens - done)
        alone_s += view.model.seconds(BatchWork(chunk, 0, chunk_work(chunk, done)))
        done += chunk
    return alone_s <= job.due_s - job.request.arrival_s


def situation(
    view: ReplicaView,
    claims: Sequence[Job],
    new: Sequence[Job],
    pacing: Pacing,
) -> Situation:
    """Everything that decides these newcomers (by deadline, none best effort), beside these claims."""
    decodes: list[Job] = []
    prefills: list[Job] = []
    for job in claims:
        (decodes if job.decoding else prefills).append(job)
    prefills.sort(key=deadline_order)
    everyone = [*decodes, *prefills, *new]
    present = len(decodes) + len(prefills)
    start_s = max(view.now_s, view.busy_until_s)
    paces_s = _paces_s(everyone, view.model)
    demand = _demand(view, everyone, len(decodes), min(paces_s, default=inf), pacing)
    base = demand.blocks[:present].sum(axis=0)
    kept = kept_paces_s(paces_s) or (inf,)
    classes = class_of(paces_s, kept)
    load = Load(
        context_tokens=int(demand.blocks.sum(axis=0).max()) * view.kv.block_tokens,
        longest_prompt_tokens=max(
            (j.pending_tokens + j.computed_tokens for j in [*prefills, *new]), default=0
        ),
        batch_tokens=view.limits.batch_tokens,
    )
    counts = [np.bincount(part, minlength=len(kept)) for part in (classes[:present], classes[present:])]
    space = states(kept, counts[0].tolist(), counts[1].tolist(), demand.all_peaks_fit)
    at = rates(view.model, pacing, load, space.decode_tokens, space.tightest_pace_s)
    slack_s = _slack_s(view, decodes, float(space.tightest_pace_s[0]))
    next_due_s = min(start_s + slack_s, *(job.due_s for job in prefills), inf)
    if slack_s < at.period_s[0]:
        start_s += max(slack_s, view.model.seconds(BatchWork(len(decodes), load.context_tokens)))
    program = Program(
        start_s,
        _items(prefills, new, classes[present:], space.strides, view.model),
        at,
        at.fits & (space.newcomers <= view.limits.running - present),
        [job.request.value for job in new],
        demand.blocks[present:],
        np.maximum(view.kv.total_blocks - base, 0),
    )
    return Situation(view, new, program, demand.ends, base, with_all(decodes, prefills), next_due_s)


class Demand(NamedTuple):
    """Blocks of every job in every bucket, the last steps of the buckets, whether all peaks fit at once."""

    blocks: Ints
    ends: Ints
    all_peaks_fit: bool


def _paces_s(jobs: Sequence[Job], model: TimeModel) -> list[float]:
    """Infinite where no pace was promised, or one that not even a batch of one token keeps."""
    least_s = model.seconds(BatchWork(1))
    return [job.pace_s if job.pace_s is not None and job.pace_s >= least_s else inf for job in jobs]


def _demand(
    view: ReplicaView, jobs: Sequence[Job], decodes: int, tightest_s: float, pacing: Pacing
) -> Demand:
    """What jobs demand of the KV cache. The first `decodes` of them decode already."""
    start_s = max(view.now_s, view.busy_until_s)
    waiting = jobs[decodes:]
    # A batch beside which prefill waits is full: of time, or of tokens.
    full_of_tokens = sum(job.pending_tokens for job in waiting) / max(view.limits.batch_tokens - decodes, 1)
    shortest_s = min(tightest_s, pacing.floor_s)
    delays = [0] * decodes
    for job in waiting:
        batches = (job.due_s - start_s) / shortest_s + full_of_tokens + 2
        delays.append(max(ceil(batches), 0) if isfinite(batches) else kv_peak.FOREVER_STEPS)
    # Transposing reads hundreds of jobs several times faster than one attribute at a time.
    requests, _, generated, output, *_ = zip(*jobs, strict=True) if jobs else ((), (), (), ())
    done = as_ints(generated)
    now = as_ints([request.prompt_tokens for request in requests]) + done
    left = np.maximum(as_ints(output) - done, 1)
    delay, size = as_ints(delays), view.kv.block_tokens
    ends = kv_peak.ends_of_buckets(left - 1 + delay if jobs else as_ints([0]))
    peak_blocks = int((-(-(now + left - 1) // size)).sum())
    blocks = kv_peak.usage(now, left, delay, ends, size)
    return Demand(blocks, ends, peak_blocks <= view.kv.total_blocks)


def _slack_s(view: ReplicaView, decodes: Sequence[Job], tightest_pace_s: float) -> float:
    """How long the next batch may be. After the one under way every decode has a whole period left."""
    if view.busy_until_s > view.now_s:
        return tightest_pace_s
    return min((job.due_s for job in decodes), default=inf) - view.now_s


def _items(
    prefills: Sequence[Job], new: Sequence[Job], classes: Ints, strides: Sequence[int], model: TimeModel
) -> list[Item]:
    """Every prefill by deadline, forced and optional."""
    keyed = [
        (deadline_order(job), Item(job.due_s, job.pending_tokens, _lines_s(job, model))) for job in prefills
    ]
    for i, job in enumerate(new):
        stride = strides[int(classes[i])]
        item = Item(job.due_s, job.pending_tokens, _lines_s(job, model), i, stride)
        keyed.append((deadline_order(job), item))
    return [item for _, item in sorted(keyed, key=lambda pair: pair[0])]


def _lines_s(job: Job, model: TimeModel) -> tuple[float, ...]:
    return work_s(model, job.pending_tokens, chunk_work(job.pending_tokens, job.computed_tokens))


def _decide_group(now: Situation) -> list[Verdict]:
    program = now.program
    taken = solve(program)
    path = walk(program, taken, without(program))
    assert path is not None, "the program's answer is one of its own sets"
    answers: dict[int, Verdict] = {i: _admitted(now, i, path) for i in taken}
    optional = {item.newcomer: item for item in program.items if item.newcomer is not None}
    state, used = path.state, program.claims[sorted(taken)].sum(axis=0)
    batch = _with(now.next_batch, [now.new[i] for i in taken])
    due_s = min([now.next_due_s, *(now.new[i].due_s for i in taken)])
    for i in range(len(now.new)):
        if i in answers:
            continue
        item, job = optional[i], now.new[i]
        reason = _reason(now, i, state + item.stride, used)
        whole = _with(batch, [job])
        end_s = max(now.view.now_s, now.view.busy_until_s) + now.view.model.seconds(whole)
        in_one = end_s <= min(due_s, item.due_s) and whole.tokens <= now.view.limits.batch_tokens
        if reason is Reason.PREFILL_BUDGET and in_one:
            state, used, batch, due_s = (
                state + item.stride,
                used + program.claims[i],
                whole,
                min(due_s, item.due_s),
            )
            answers[i] = Admitted(end_s - now.view.now_s, _pace_s(now, job, state))
        else:
            answers[i] = Rejected(reason, _earliest_s(now, i, reason, path, used))
    return [answers[i] for i in range(len(now.new))]


def _with(batch: BatchWork, prefills: Sequence[Job]) -> BatchWork:
    """The batch with all that is left of these prompts in it too."""
    tokens = sum([job.pending_tokens for job in prefills])
    attention = sum([chunk_work(job.pending_tokens, job.computed_tokens) for job in prefills])
    return BatchWork(batch.tokens + tokens, batch.context_tokens, batch.prefill_work + attention)


def _admitted(now: Situation, i: int, path: Path) -> Admitted:
    last_batch_s = float(now.program.at.period_s[0])
    ttft_s = path.done_s[i] + last_batch_s - now.view.now_s
    due_in_s = now.new[i].due_s - now.view.now_s
    return Admitted(min(ttft_s, due_in_s), _pace_s(now, now.new[i], path.state))


def _pace_s(now: Situation, job: Job, state: int) -> float:
    """At most its own pace, and no longer than the longest batch beside these decodes."""
    period_s = float(now.program.at.period_s[state])
    return period_s if job.pace_s is None else max(min(job.pace_s, period_s), 0.0)


def _reason(now: Situation, i: int, state: int, used: Ints) -> Reason:
    """Which test this newcomer fails, beside those that were taken; `state` has it in."""
    if bool((used + now.program.claims[i] > now.program.room).any()):
        return Reason.KV_MEMORY
    if not now.program.allowed[state]:
        return Reason.DECODE_BUDGET
    return Reason.PREFILL_BUDGET


def _earliest_s(now: Situation, i: int, reason: Reason, path: Path, used: Ints) -> float:
    """From now until a request like this one could be taken, if nobody else comes."""
    period_s = float(now.program.at.period_s[path.state])
    if reason is Reason.PREFILL_BUDGET:
        item = next(item for item in now.program.items if item.newcomer == i)
        behind_s = path.end_s - now.view.now_s + item_s(now.program.at, item, path.state) + period_s
        if isfinite(behind_s):
            return max(behind_s - (now.new[i].due_s - now.new[i].request.arrival_s), period_s)
    if reason is Reason.KV_MEMORY:
        peak = now.program.claims[i].max()
        crowded = np.flatnonzero(now.base + used + peak > now.view.kv.total_blocks)
        return _end_s(now, int(crowded[-1]))
    return _end_s(now, 0)


def _end_s(now: Situation, bucket: int) -> float:
    """From now until the requests that end with this bucket have ended, as far as that is known."""
    known = now.ends[now.ends < kv_peak.FOREVER_STEPS]
    steps = int(known[min(bucket, len(known) - 1)]) + 1 if len(known) else 1
    return max(now.view.busy_until_s - now.view.now_s, 0.0) + steps * float(now.program.at.period_s[0])
