"""The course of a replica: its batches from now on, one by one, until every prompt there is computed.

Admission and the engine look at the same course. Admission accepts a newcomer only if in some `Mode` the
course with it keeps every promise; the engine then computes the first batch of such a course, so what was
foreseen is what happens [plans of several batches, SLOs-Serve, §3.2]. A batch is formed as the paper's
Algorithm 2 does it: decodes first, then prefills by deadline into what is left of the longest batch that
makes no token late.

How long that is. A pace is judged over windows, so a decode need not keep it token by token: it must reach
its next milestone, the window's end, in time. With r tokens to go until then, a batch may last until the
milestone less what the r - 1 other tokens take in batches that do nothing else. Where nobody knows that the
answer will last until the window's end (`Job.sure_tokens`), the milestone is the next token. In overload,
long answers lend a little less (`overload_margin`).

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
deadline worse. The engine then tries shorter ones (`batching_rules.engines_way`). And when thinking ends,
its dues are later than foreseen, so others may wait in a batch than those that were to: of promises made to
thinkers in overload, fewer than one in a thousand breaks by that.
"""

from collections.abc import Collection, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from penstock_core.compilation.arrays import Ints
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, RequestId
from penstock_core.domain.slo import NO_ANCHOR
from penstock_core.policies.slos_serve.kernel import (
    Engine,
    Prompts,
    Rows,
    Rules,
    Worst,
    carry_out,
)
from penstock_core.policies.slos_serve.speculation_length import NO_DRAFTS, Drafting
from penstock_core.timing.time_model import BatchWork, TimeModel, chunk_work

LEISURE_S = 1e9
"""The pace of whoever was promised none, or one that by now not even a batch of one token keeps."""

_NOBODY = np.zeros(0)
_NO_WORST = Worst(*4 * [_NOBODY])


class Mode(NamedTuple):
    """What batches are allowed.

    longest_s: of a batch in which some prompt is computed, unless `longest_batch_s` allows more.
    drafting: of the decodes.
    skips: decodes that can wait may be left out of a batch, for the prompts in it.
    reserve: what batches have to spare beside long answers, of their own time (`overload_margin`).
    """

    longest_s: float
    drafting: Drafting = NO_DRAFTS
    skips: bool = False
    reserve: float = 0.0


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
        free_s, jobs = max(view.now_s, view.busy_until_s), [*decodes, *prompts]
        rows = _rows(jobs, len(decodes), view.model)
        if view.busy_until_s > view.now_s:
            rows = rows._replace(under_way=_under_way(jobs, rows.live, free_s, view.resting))
        return Outset(
            _engine(view.model, view.limits.batch_tokens),
            rows,
            _prompts(prompts, view.model, free_s),
            [job.request.tier for job in jobs],
            free_s,
        )


def course(outset: Outset, mode: Mode) -> Course:
    """The course in this mode."""
    drafts = np.zeros(len(outset.tiers))
    if mode.drafting:
        drafts[:] = [mode.drafting.get(tier, 0) for tier in outset.tiers]
    keeps, steady, limit_s, first, done_s, batches = carry_out(
        outset.engine,
        outset.rows,
        outset.prompts,
        Rules(mode.longest_s, int(mode.skips), mode.reserve, drafts),
        outset.free_s,
    )
    skipped = np.flatnonzero(outset.rows.live > first).tolist() if mode.skips else ()
    return Course(bool(keeps), limit_s, frozenset(skipped), done_s.tolist(), batches.tolist(), bool(steady))


def _engine(model: TimeModel, batch_tokens: int) -> Engine:
    return Engine(
        np.array(model.terms, np.float64),
        model.context_token_s,
        model.prefill_work_s,
        model.overhead_s,
        model.scale,
        batch_tokens,
    )


def _rows(jobs: Sequence[Job], decodes: int, model: TimeModel) -> Rows:
    """Nobody of them in the batch under way."""
    columns = zip(*jobs, strict=True) if jobs else 10 * [()]
    requests, _, generated, output, due_s, pace_s, anchors, _, sure, came_s = columns
    paces_s = np.array([LEISURE_S if pace is None else pace for pace in pace_s], np.float64)
    tokens, targets = np.array(generated, np.float64), [request.targets for request in requests]
    live = np.zeros(len(jobs), np.int64)
    live[:decodes] = 1
    # each token may be the last of its thinking: its lead is lost then, and the answer's pace counts
    gaps_s = np.array([target.answer_tpot_s or inf for target in targets], np.float64)
    return Rows(
        live=live,
        under_way=np.zeros_like(live),
        window=np.array([target.judge.window for target in targets], np.int64),
        due_s=np.array(due_s, np.float64),
        pace_s=np.where(paces_s < model.seconds(BatchWork(1)), LEISURE_S, paces_s),
        gap_s=gaps_s,
        again_s=np.array(came_s, np.float64) + gaps_s,
        since=tokens - np.array([0 if anchor is None else anchor.tokens for anchor in anchors], np.float64),
        sure=np.array(sure, np.float64) - tokens,
        left=np.maximum(np.array(output, np.float64) - tokens, 1.0),
        context=tokens + np.array([request.prompt_tokens for request in requests], np.float64),
        drafts=_NOBODY,
        worst=_NO_WORST,
    )


def _under_way(jobs: Sequence[Job], live: Ints, free_s: float, resting: Collection[RequestId]) -> Ints:
    """Decodes that have a token in the batch which ends at `free_s`."""
    computed = [(job.anchor or NO_ANCHOR).at_s < free_s and job.request.id not in resting for job in jobs]
    return live * np.array(computed, np.int64)


def _prompts(prompts: Sequence[Job], model: TimeModel, free_s: float) -> Prompts:
    return Prompts(
        pending=np.array([job.pending_tokens for job in prompts], np.int64),
        computed=np.array([job.computed_tokens for job in prompts], np.int64),
        due_s=np.array([_due_s(job, model, free_s) for job in prompts], np.float64),
    )


def _due_s(job: Job, model: TimeModel, free_s: float) -> float:
    """A prompt's deadline, unless not even the next batch could keep it."""
    pending, done = job.pending_tokens, job.computed_tokens
    alone_s = model.seconds(BatchWork(pending, 0, chunk_work(pending, done)))
    return job.due_s if free_s + alone_s <= job.due_s else inf
