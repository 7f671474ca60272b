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
beyond that makes milestones easier, for batches that then can be longer. The paper counts on the average.

Why promises hold. All is known: tokens of each batch, its duration, who decodes in it.
If the engine computes the first batch of a course that keeps every promise, the rest of that course is one
for the moment after it. Requests that end early or are aborted only leave room: a batch as long as before
computes more, so that by the end of every batch at least as much is done. And whoever joins was admitted
with such a course of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from penstock_core.decode_load import Bools, Floats
from penstock_core.drafting import NO_DRAFTS, Drafting
from penstock_core.replica_view import ReplicaView
from penstock_core.request import Job
from penstock_core.slo import NO_ANCHOR, WINDOW_TOKENS, Judge
from penstock_core.time_model import BatchWork, chunk_work, largest_chunk

STRETCH = 2.0
"""A batch with prompts in it may last so many times what its decodes take alone, whatever the mode says."""

TIME_ERROR_S = 1e-9
"""Due times are sums of floats; two that are meant to be equal may differ by this."""

LEISURE_S = 1e9
"""The pace of whoever was promised none, or one that by now not even a batch of one token keeps."""

MOST_BATCHES = 256
"""A course that needs more keeps nothing: nobody's first token can wait so long."""

MOST_IDLE_BATCHES = 2 * WINDOW_TOKENS
"""Batches in a row without a token of any prompt, after which there will never be one."""


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


def course(view: ReplicaView, decodes: Sequence[Job], prompts: Sequence[Job], mode: Mode) -> Course:
    """The course from when the engine is free, of accepted decodes and prompts (by deadline) alone."""
    return _Rows(view, decodes, prompts, mode).run()


@dataclass(slots=True)
class _Prompt:
    """What is still to be computed of one. due_s: infinite where it is late whatever is done."""

    row: int
    pending: int
    computed: int
    due_s: float


class _Rows:
    """A course under way. Rows are decodes, then prompts, which decode once they are done.

    due_s: of the row's next token, `since` tokens after its window began. sure, left: tokens still to come,
    at least and by prediction. drafts: verified beside it in every batch. together_s: a batch of all rows'
    decodes, also when they have come a window further.
    """

    def __init__(self, view: ReplicaView, decodes: Sequence[Job], prompts: Sequence[Job], mode: Mode) -> None:
        jobs = [*decodes, *prompts]
        self.model, self.mode, self.batch_tokens = view.model, mode, view.limits.batch_tokens
        self.now_s = max(view.now_s, view.busy_until_s)
        self._read(jobs, view)
        self.live = np.arange(len(jobs)) < len(decodes)
        together = self._decoding(np.ones(len(jobs), np.bool_))
        grown = together.context_tokens + WINDOW_TOKENS * len(jobs)
        self.together_s = self.model.seconds(together._replace(context_tokens=grown))
        if view.busy_until_s > view.now_s:  # a token of every decode in the batch under way
            self._bring_out(self.live & (self.began_s < self.now_s))
        self.todo = [
            _Prompt(row, job.pending_tokens, job.computed_tokens, self._due_s(job))
            for row, job in enumerate(prompts, len(decodes))
        ]
        self.done_s, self.batches = [inf] * len(jobs), [0] * len(jobs)
        self.first = len(decodes)
        self._forgive()

    def _read(self, jobs: Sequence[Job], view: ReplicaView) -> None:
        judges = [job.request.targets.judge for job in jobs]
        anchors = [job.anchor or NO_ANCHOR for job in jobs]
        generated = np.array([job.generated_tokens for job in jobs], np.float64)
        self.due_s = np.array([job.due_s for job in jobs], np.float64)
        self.began_s = np.array([anchor.at_s for anchor in anchors], np.float64)
        self.windowed = np.array([judge is Judge.WINDOW for judge in judges], np.bool_)
        self.strict = np.array([judge is Judge.MAX for judge in judges], np.bool_)
        paces_s = np.array([LEISURE_S if job.pace_s is None else job.pace_s for job in jobs], np.float64)
        self.pace_s = np.where(paces_s < self.model.seconds(BatchWork(1)), LEISURE_S, paces_s)
        self.since = generated - np.array([anchor.tokens for anchor in anchors], np.float64)
        self.sure = np.array([job.sure_tokens for job in jobs], np.float64) - generated
        self.left = np.array([job.output_tokens_left for job in jobs], np.float64)
        self.context = generated + np.array([job.request.prompt_tokens for job in jobs], np.float64)
        drafts = [self.mode.drafting.get(job.request.tier, 0) for job in jobs]
        self.drafts = np.array(drafts, np.int64)

    def _due_s(self, job: Job) -> float:
        """A prompt's deadline, unless not even the next batch could keep it."""
        pending, done = job.pending_tokens, job.computed_tokens
        alone_s = self.model.seconds(BatchWork(pending, 0, chunk_work(pending, done)))
        return job.due_s if self.now_s + alone_s <= job.due_s else inf

    def _forgive(self) -> None:
        """Decodes that are late, whatever comes, get half of what a period leaves until they are not."""
        if not self.live.any():
            return
        alone = BatchWork(int(self.live.sum()), int(self.context[self.live].sum()))
        decodes_s = self.model.seconds(alone)
        behind_s = self.now_s + decodes_s - self._latest_ends_s(decodes_s)
        late = self.live & (behind_s > TIME_ERROR_S)
        spare_s = max(min(float(self.pace_s[self.live].min()), self.mode.longest_s) - decodes_s, 0.0) / 2
        self.due_s[late] += behind_s[late] + spare_s

    def run(self) -> Course:
        """Batch after batch until no prompt is left, or a promise is broken."""
        first: tuple[float, Bools] | None = None
        keeps, batch, idle = True, 0, 0
        while keeps and self.todo and batch < MOST_BATCHES and idle < MOST_IDLE_BATCHES:
            keeps, limit_s, skipped = self._limit()
            first = first or (limit_s, skipped)
            batch += 1
            before = sum([prompt.pending for prompt in self.todo])
            keeps = self._compute(limit_s, self.live & ~skipped, batch) and keeps
            idle = idle + 1 if sum([prompt.pending for prompt in self.todo]) == before else 0
        limit_s, skipped = first or self._limit()[1:]
        return Course(
            keeps and not self.todo,
            limit_s,
            frozenset(np.flatnonzero(skipped).tolist()),
            self.done_s[self.first :],
            self.batches[self.first :],
            self._steady(),
        )

    def _limit(self) -> tuple[bool, float, Bools]:
        """Whether no decode is late, how long the next batch may be, and which decodes it leaves out."""
        none = np.zeros(len(self.live), np.bool_)
        if not self.live.any():
            return True, self.mode.longest_s, none
        decodes_s = self.model.seconds(self._decoding(self.live))
        longest_s = max(self.mode.longest_s, STRETCH * decodes_s)
        latest_s = np.where(self.live, self._latest_ends_s(self.together_s), inf)
        slack_s = float(latest_s.min()) - self.now_s
        limit_s = min(longest_s, max(slack_s, decodes_s))
        if slack_s < decodes_s - TIME_ERROR_S:
            return False, limit_s, none
        if not self.mode.skips:
            return True, limit_s, none
        return True, limit_s, self.live & (latest_s >= self.now_s + limit_s + self.together_s)

    def _latest_ends_s(self, catch_up_s: float) -> Floats:
        """When a batch may end for every row to reach its milestone, its other tokens taking so long each."""
        rest = np.where(self.windowed, np.minimum(WINDOW_TOKENS - self.since, self.sure), 1.0)
        others = np.maximum(rest, 1.0) - 1.0
        latest_s: Floats = self.due_s + others * np.maximum(self.pace_s - catch_up_s, 0.0)
        return latest_s

    def _compute(self, limit_s: float, decoding: Bools, batch: int) -> bool:
        """One batch; whether every prompt that it finishes is in time, and no other one has to be late."""
        work, finished = self._decoding(decoding), 0
        for prompt in self.todo:
            due_in_s = prompt.due_s - self.now_s
            if due_in_s < 0:
                return False
            chunk = self._chunk(prompt, work, limit_s)
            if chunk == 0:
                break
            work = _with_chunk(work, chunk, prompt.computed)
            prompt.pending, prompt.computed = prompt.pending - chunk, prompt.computed + chunk
            if prompt.pending:
                break
            if self.model.seconds(work) > due_in_s + TIME_ERROR_S:
                return False
            limit_s, finished = min(limit_s, due_in_s), finished + 1
        self.now_s += self.model.seconds(work)
        self._bring_out(decoding)
        for prompt in self.todo[:finished]:
            self._begin_decoding(prompt.row, batch)
        del self.todo[:finished]
        return True

    def _chunk(self, prompt: _Prompt, work: BatchWork, limit_s: float) -> int:
        most = min(prompt.pending, self.batch_tokens - work.tokens)
        return largest_chunk(self.model, work, most, prompt.computed, limit_s)

    def _begin_decoding(self, row: int, batch: int) -> None:
        """A prompt is done. One that was preempted before goes on from its old anchor."""
        self.done_s[row], self.batches[row] = self.now_s, batch
        self.left[row] -= 1
        self.sure[row] -= 1
        self.live[row] = self.left[row] > 0
        resumed = self.since[row] > 0 and not self.strict[row]
        self.due_s[row] = (self.due_s[row] if resumed else self.now_s) + self.pace_s[row]
        self.since[row] = self.since[row] + 1 if resumed else 0

    def _bring_out(self, rows: Bools) -> None:
        """A token of each of these rows, of the batch that ends now."""
        came = rows.astype(np.float64)
        self.due_s[rows] += self.pace_s[rows]
        self.since += came
        self.sure -= came
        self.left -= came
        self.context += came
        turned = rows & ((self.windowed & (self.since >= WINDOW_TOKENS)) | self.strict)
        if turned.any():
            ahead = np.where(self.strict[turned], 0.0, self.since[turned] % WINDOW_TOKENS)
            self.since[turned] = ahead
            self.due_s[turned] = self.now_s + (ahead + 1.0) * self.pace_s[turned]
        self.live &= self.left > 0

    def _decoding(self, rows: Bools) -> BatchWork:
        """A batch of these rows' decodes alone."""
        drafts = self.drafts[rows]
        if not len(drafts):
            return BatchWork(0)
        tokens = len(drafts) + int(drafts.sum())
        return BatchWork(tokens, int(self.context[rows].sum()), 0.0, int(drafts.max()))

    def _steady(self) -> bool:
        """Whether decodes keep their paces when nothing but them is computed."""
        if not self.live.any():
            return True
        work, paces_s = self._decoding(self.live), self.pace_s[self.live]
        if self.mode.skips:
            share = float((paces_s.min() / paces_s).mean())
            work = work._replace(tokens=ceil(work.tokens * share))
        return self.model.seconds(work) <= float(paces_s.min())


def _with_chunk(work: BatchWork, tokens: int, computed: int) -> BatchWork:
    attention = work.prefill_work + chunk_work(tokens, computed)
    return work._replace(tokens=work.tokens + tokens, prefill_work=attention)
