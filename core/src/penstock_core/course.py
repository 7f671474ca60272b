"""The course of a replica: its batches from now on, one by one, until every prompt there is computed.

Admission and the engine look at the same course. Admission accepts a newcomer only if in some `Mode` the
course with it keeps every promise; the engine then computes the first batch of such a course, so what was
foreseen is what happens [plans of several batches, SLOs-Serve, §3.2]. A batch is formed as the paper's
Algorithm 2 does it: decodes first, then prefills by deadline into what is left of the longest batch that
makes no token late.

How long that is. A pace is judged over windows, so a decode need not keep it token by token: it must reach
its next milestone, the window's end, in time. With r tokens to go until then, a batch may last until the
milestone less what the r - 1 other tokens take in batches that do nothing else. Where nobody knows that the
answer will last until the window's end (`Job.sure_tokens`), the milestone is the next token.

Acceptance is chance, so a course counts on one token a batch of every decode, whatever it drafts; what comes
beyond that makes milestones easier, for batches that then can be longer. The paper counts on the average. One
thing accepted drafts make harder: a window that they fill early ends early, and what it was ahead by is lost.
So a window that drafts is taken to stand where they can have left it at worst, but for the answer's own end:
counting on that to come early too would cost a quarter of what is admitted at predicted lengths. There a
promise can break in spite of its course; fewer than one in a thousand does.

Thinking that has a pace of its own may end with any token. Its last window is judged then, however short, so
no more of it surely comes; and the answer's pace counts from there, so the token after any of them is due
at that pace too, however far thinking was ahead.

Why promises hold. All is known: tokens of each batch, its duration, who decodes in it.
If the engine computes the first batch of a course that keeps every promise, the rest of that course is one
for the moment after it. Requests that end early or are aborted only leave room: a batch as long as before
computes more, so that by the end of every batch at least as much is done. And whoever joins was admitted
with such a course of its own.

One thing does not hold still: milestones count on batches of all that are there. When one leaves, those are
faster, so batches before them may last longer, and once in ten thousand requests the longer ones fit a
deadline worse. The engine then tries shorter ones (`modes.engines_way`). And when thinking ends, its dues are
later than foreseen, so others may wait in a batch than those that were to: of promises made to thinkers in
overload, fewer than one in a thousand breaks by that.
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from penstock_core.course_loop import (
    MAX,
    MEAN,
    WINDOW,
    Bounds,
    Engine,
    Prompts,
    Rows,
    Worst,
    carry_out,
    together_s,
)
from penstock_core.decode_load import Ints
from penstock_core.drafting import NO_DRAFTS, Drafting
from penstock_core.replica_view import ReplicaView
from penstock_core.request import Job
from penstock_core.slo import NO_ANCHOR, Judge
from penstock_core.time_model import BatchWork, TimeModel, chunk_work

LEISURE_S = 1e9
"""The pace of whoever was promised none, or one that by now not even a batch of one token keeps."""

_JUDGES = {Judge.MEAN: MEAN, Judge.WINDOW: WINDOW, Judge.MAX: MAX}


class Mode(NamedTuple):
    """What batches are allowed.

    longest_s: of a batch in which some prompt is computed, unless `STRETCH` allows more.
    drafting: of the decodes.
    skips: decodes that can wait may be left out of a batch, for the prompts in it.
    """

    longest_s: float
    drafting: Drafting = NO_DRAFTS
    skips: bool = False


class Course(NamedTuple):
    """What comes.

    keeps: whether every promise is kept that can be.
    limit_s: longest that the first batch may be. skipped: places of decodes that it leaves out.
    done_s: when each prompt's first token is out, in their order. batches: how many it takes until then.
    steady: whether they can then all decode together.
    """

    keeps: bool
    limit_s: float
    skipped: frozenset[int]
    done_s: Sequence[float]
    batches: Sequence[int]
    steady: bool


class Outset(NamedTuple):
    """Where courses start: when the engine is free, with accepted decodes and prompts (by deadline) alone.

    It is the same for every mode, and read from the jobs once.
    """

    engine: Engine
    rows: Rows
    prompts: Prompts
    tiers: Sequence[str]
    free_s: float

    @staticmethod
    def of(view: ReplicaView, decodes: Sequence[Job], prompts: Sequence[Job]) -> "Outset":
        """Of these jobs, at the end of the batch under way."""
        free_s = max(view.now_s, view.busy_until_s)
        jobs = [*decodes, *prompts]
        live = (np.arange(len(jobs)) < len(decodes)).astype(np.int64)
        began_s = np.array([(job.anchor or NO_ANCHOR).at_s for job in jobs], np.float64)
        under_way = live * (began_s < free_s) if view.busy_until_s > view.now_s else np.zeros_like(live)
        if view.resting:
            under_way *= np.array([job.request.id not in view.resting for job in jobs], np.int64)
        return Outset(
            _engine(view.model, view.limits.batch_tokens),
            _rows(jobs, live, under_way, view.model),
            _prompts(prompts, view.model, free_s),
            [job.request.tier for job in jobs],
            free_s,
        )


def course(outset: Outset, mode: Mode) -> Course:
    """The course in this mode."""
    drafts = np.zeros(len(outset.tiers))
    if mode.drafting:
        drafts[:] = [mode.drafting.get(tier, 0) for tier in outset.tiers]
    before = outset.rows
    rows = before._replace(
        live=before.live.copy(),
        due_s=before.due_s.copy(),
        gap_s=before.gap_s.copy(),
        again_s=before.again_s.copy(),
        since=before.since.copy(),
        sure=before.sure.copy(),
        left=before.left.copy(),
        context=before.context.copy(),
        drafts=drafts,
        worst=Worst(before.due_s.copy(), before.since.copy(), before.sure.copy(), before.since.copy()),
    )
    prompts = outset.prompts._replace(
        pending=outset.prompts.pending.copy(),
        computed=outset.prompts.computed.copy(),
        done_s=outset.prompts.done_s.copy(),
        batches=outset.prompts.batches.copy(),
    )
    bounds = Bounds(outset.free_s, mode.longest_s, int(mode.skips), together_s(outset.engine, rows))
    decoding = np.zeros_like(rows.live)
    keeps, limit_s, steady = carry_out(outset.engine, rows, prompts, bounds, decoding)
    skipped = np.flatnonzero(before.live > decoding) if mode.skips else ()
    return Course(
        bool(keeps),
        limit_s,
        frozenset(int(place) for place in skipped),
        prompts.done_s.tolist(),
        prompts.batches.tolist(),
        bool(steady),
    )


def _engine(model: TimeModel, batch_tokens: int) -> Engine:
    token_s, spec_step_s, fixed_s = np.array(
        [(term.token_s, term.spec_step_s, term.fixed_s) for term in model.terms], np.float64
    ).T.copy()
    return Engine(
        token_s,
        spec_step_s,
        fixed_s,
        model.context_token_s,
        model.prefill_work_s,
        model.overhead_s,
        model.scale,
        batch_tokens,
    )


def _rows(jobs: Sequence[Job], live: Ints, under_way: Ints, model: TimeModel) -> Rows:
    requests = [job.request for job in jobs]
    paces_s = np.array([LEISURE_S if job.pace_s is None else job.pace_s for job in jobs], np.float64)
    generated = np.array([job.generated_tokens for job in jobs], np.float64)
    nobody = np.zeros(len(jobs))
    return Rows(
        live=live,
        under_way=under_way,
        judge=np.array([_JUDGES[request.targets.judge] for request in requests], np.int64),
        due_s=np.array([job.due_s for job in jobs], np.float64),
        pace_s=np.where(paces_s < model.seconds(BatchWork(1)), LEISURE_S, paces_s),
        gap_s=np.array([_gap_s(job) for job in jobs], np.float64),
        again_s=np.array([job.came_s + _gap_s(job) for job in jobs], np.float64),
        since=generated - np.array([(job.anchor or NO_ANCHOR).tokens for job in jobs], np.float64),
        sure=np.array([job.sure_tokens for job in jobs], np.float64) - generated,
        left=np.maximum(np.array([job.output_tokens for job in jobs], np.float64) - generated, 1.0),
        context=generated + np.array([request.prompt_tokens for request in requests], np.float64),
        drafts=nobody,
        worst=Worst(nobody, nobody, nobody, nobody),
    )


def _gap_s(job: Job) -> float:
    """Each token may be the last of its thinking: its lead is lost then, and the answer's pace counts."""
    return job.request.targets.answer_tpot_s or inf


def _prompts(prompts: Sequence[Job], model: TimeModel, free_s: float) -> Prompts:
    return Prompts(
        pending=np.array([job.pending_tokens for job in prompts], np.int64),
        computed=np.array([job.computed_tokens for job in prompts], np.int64),
        due_s=np.array([_due_s(job, model, free_s) for job in prompts], np.float64),
        done_s=np.full(len(prompts), inf),
        batches=np.zeros(len(prompts), np.int64),
    )


def _due_s(job: Job, model: TimeModel, free_s: float) -> float:
    """A prompt's deadline, unless not even the next batch could keep it."""
    pending, done = job.pending_tokens, job.computed_tokens
    alone_s = model.seconds(BatchWork(pending, 0, chunk_work(pending, done)))
    return job.due_s if free_s + alone_s <= job.due_s else inf
