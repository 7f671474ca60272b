"""Batch plans: simulated future batches of a replica, one by one, until all of its prompts are computed.

Admission and the engine make the same plans. Admission accepts a candidate only if the plan with it meets
every deadline; the engine then computes the first batch of such a plan, so plans and execution agree [plans
of several batches, SLOs-Serve, §3.2]. A batch is formed as in the paper's Algorithm 2: decodes first, then
prefills by deadline in the rest of the longest batch that makes no token late.

**Length of a batch.** TPOT is judged over windows, so a decode need not meet it for each token: it must reach
the end of its window in time. With r tokens left in the window, a batch may last until that deadline minus
the time of the r - 1 other tokens in batches without prefill. If the answer may end before its window does
(`Job.sure_tokens`), the deadline of the next token counts. A batch cannot be interrupted, so an arriving
request may wait for all of it. Therefore its length is also bounded (`batch_length`): by four of the shortest
batches, by 60 ms if that is at most eight of them, or by twice the duration of its decodes alone. Beside a
decode whose single gaps are judged, plans with fewer tokens a batch come first. Without decodes a prompt is
computed even if one of its tokens takes longer than that, because of a wrong time model or a very long
context (`largest_chunk`).

**Batches at a deadline.** A batch after which a window or a prefill is judged has a safety margin
(`TimeModel.deadline_margin`): an iteration that takes longer than planned could not be made up for by the
next. It applies to what the batch contains beside its decodes and that prefill, not to whether they are in
time. So it makes no request of the batch late; prompts behind may be computed a batch later.

**Slow steps.** An engine may have steps that take several times as long (`step_tail`). Then the plan assumes
that the batch itself may be slow, and so may some of the window's other steps: as many as occur with a small
risk. A batch leaves enough of the window for all of them. After a slow step, decodes are therefore computed
alone until the window ends or there is enough time again, even if a first token is late: a late window
affects many answers.

**Speculation.** Acceptance is random, so a plan counts one token per decode and batch, whatever the
speculation length; accepted draft tokens then leave time for later batches. The paper counts the average.
Accepted drafts have one disadvantage: a window that they fill early ends early, and its lead over the target
is lost. So for a window with draft tokens a plan assumes the worst position that they can have reached. It
does not also assume that the answer ends early: that would reject a quarter of the requests that are admitted
with predicted lengths, and without it one or two admitted requests in a thousand miss their SLO.

**Thinking** with its own TPOT target may end with any token. Its last window is judged at that token, however
short it is, so only the next token is certain. The answer's target counts from that token, so the token after
it must also meet that target, however far ahead of its deadlines the thinking was.

**Why admitted requests meet their SLO.** A plan determines everything: the tokens of each batch, its
duration, and the requests that decode in it. After the engine has computed the first batch of a feasible
plan, the rest of that plan is feasible for the new state. Requests that end early or are cancelled only free
time and memory: a batch of the same duration computes more, so at the end of every batch at least as much is
computed as planned. And every new request was admitted with a feasible plan that includes it.

There are three exceptions. Deadlines of windows assume batches with all present requests. When a request
leaves, batches are faster, so earlier ones may last longer, and for one in ten thousand requests a longer
batch misses a deadline. When thinking ends, the new deadlines differ from the planned ones. And a prompt that
is computed earlier than planned, because draft tokens were accepted, also decodes earlier, beside the prompts
behind it: with drafts this makes one first token in 2,500 late.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import chain, product, tee
from math import inf
from typing import Any, NamedTuple

import numpy as np

from penstock_core.compilation.arrays import Floats, Ints
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, RequestId, transposed
from penstock_core.domain.slo import NO_ANCHOR, Judge
from penstock_core.policies.slos_serve.kernel import Engine, Prompts, Rows, Rule, simulate
from penstock_core.policies.slos_serve.speculation import NO_SPECULATION, SpeculationLengths
from penstock_core.policies.slos_serve.workload import AdmittedSet
from penstock_core.timing.batch_length import ordinary_batch_s, smooth_batch_tokens
from penstock_core.timing.time_model import ONE_DECODE, ONE_TOKEN, UNBOUNDED_TOKENS, BatchWork, TimeModel

LENGTHS = (1.0, 4.0)
"""Batch lengths tried, as multiples of the ordinary one: longer batches waste less time on their fixed cost.
Without the longer ones Summarizer attains 1.5 points less near capacity (`bench/results/ablations.md`)."""

MARGIN = 0.2
"""Safety margin on the length of batches beside an answer with a hundred or more windows to come.

Such a batch lasts at most the answer's slack / (1 + margin). At the end of every window one slow iteration
can make the answer late, and a long answer has many windows. Near capacity a margin costs more requests than
it saves, so it applies only while a replica serves more rejected requests as best effort than admitted ones.
At three times the capacity of Reasoning 98.3 % of admitted requests meet their SLO without it and 99.5 % with
it (ADR 0014, `bench/results/ablations.md`)."""

NO_TARGET_S = 1e9
"""TPOT target of requests without a target, or with one that not even a batch of one token can meet now."""


class BatchingRule(NamedTuple):
    """A rule by which batches of a plan are formed.

    longest_s: longest batch with prefill, unless its decodes allow more (`longest_batch_s`).
    speculation: draft tokens of decodes, by tier.
    skips: whether decodes that are in time without a token may be left out of a batch, in favour of prefill.
    margin: safety margin of batches beside long answers (`MARGIN`).
    most_tokens: most tokens of a batch, at most the engine's own bound.
    """

    longest_s: float
    speculation: SpeculationLengths = NO_SPECULATION
    skips: bool = False
    margin: float = 0.0
    most_tokens: int = UNBOUNDED_TOKENS


class FirstBatch(NamedTuple):
    """The first batch of a plan.

    limit_s: its longest duration. speculation: draft tokens of its decodes, by tier.
    skipped: indices of decodes that it leaves out. most_tokens: its most tokens.
    """

    limit_s: float
    speculation: SpeculationLengths
    skipped: frozenset[int] = frozenset()
    most_tokens: int = UNBOUNDED_TOKENS


class BatchPlan(NamedTuple):
    """The result of a simulation.

    rows: the requests at its beginning.
    in_time: whether every deadline is met that can still be met.
    sustainable: whether decodes meet their TPOT targets after it.
    first: its first batch.
    first_token_s: times of the prompts' first tokens, in order. batches: number of batches until then.
    """

    rule: BatchingRule
    rows: Rows
    in_time: bool
    sustainable: bool
    first: FirstBatch
    first_token_s: Sequence[float]
    batches: Sequence[int]

    @property
    def feasible(self) -> bool:
        """Return whether it meets every deadline and decodes stay in time after it."""
        return self.in_time and self.sustainable


class InitialState(NamedTuple):
    """The state in which plans begin: a free engine, admitted decodes, and admitted prompts by deadline."""

    engine: Engine
    rows: Rows
    prompts: Prompts
    tiers: Sequence[str]
    start_s: float

    @staticmethod
    def of(view: ReplicaView, decodes: Sequence[Job], prompts: Sequence[Job]) -> "InitialState":
        """Return the state at the end of the batch that runs now."""
        start_s, jobs = max(view.now_s, view.busy_until_s), [*decodes, *prompts]
        rows = _rows(jobs, len(decodes), view.model)
        if view.busy_until_s > view.now_s:
            rows = rows._replace(in_batch=_in_batch(jobs, rows.decoding, start_s, view.resting))
        tiers = [job.request.tier for job in jobs]
        return InitialState(_engine(view), rows, _prompts(prompts, view.model, start_s), tiers, start_s)


def first_batch(admitted: AdmittedSet, *, alone: bool) -> FirstBatch:
    """Return the first batch of the best plan.

    alone: without best effort. If there are only decodes then, no plan has to be simulated.
    """
    if alone and not admitted.prompts and _decodes_fit(admitted):
        return FirstBatch(inf, admitted.speculation)
    return best_plan(admitted, either_margin=True).first


def _decodes_fit(admitted: AdmittedSet) -> bool:
    """Return whether a token of each decode fits, with draft tokens, without making any decode late."""
    view, decodes, lengths = admitted.view, admitted.decodes, admitted.speculation
    if len(decodes) > min(view.kv.free_blocks, view.limits.batch_tokens):
        return False
    if not lengths:
        return True
    drafts = [lengths.get(job.request.tier, 0) for job in decodes]
    context = sum([job.computed_tokens for job in decodes]) + len(decodes)
    batch_s = view.model.seconds(BatchWork(len(decodes) + sum(drafts), context, 0.0, max(drafts)))
    return batch_s <= min([job.due_s for job in decodes]) - view.now_s


def best_plan(admitted: AdmittedSet, *, either_margin: bool = False) -> BatchPlan:
    """Return the plan of the first rule that is feasible; else the last plan in which no decode waits.

    either_margin: try both margins, because the load may have changed since admission chose one.
    """
    state = InitialState.of(admitted.view, admitted.decodes, admitted.prompts)
    tried = rules(admitted, smooth=_gaps_are_judged(state.rows))
    if either_margin:
        tried, again = tee(tried)
        tried = chain(tried, (rule._replace(margin=MARGIN - rule.margin) for rule in again))
    for rule in tried:
        found = plan(state, rule)
        if found.feasible:
            return found
        if not rule.skips:
            last = found
    return last


def _gaps_are_judged(rows: Rows) -> bool:
    """Return whether a decode is judged by its single gaps, which are windows of one token."""
    return bool(np.any(rows.window[rows.decoding == 1] == Judge.MAX.window))


def rules(admitted: AdmittedSet, *, smooth: bool = False) -> Iterator[BatchingRule]:
    """Yield the rules to try: ordinary batches, longer ones, and batches without some of the decodes.

    smooth: whether batches with few tokens come first. Lazy: mostly the first rule is feasible, so whether
    decodes may wait need not be computed.
    """
    shortest_s = admitted.view.model.seconds(ONE_TOKEN)
    ordinary_s = ordinary_batch_s(shortest_s)
    bounds = [(ordinary_s * factor, UNBOUNDED_TOKENS) for factor in LENGTHS]
    if smooth:
        tokens = max(smooth_batch_tokens(admitted.view.model), 2 * len(admitted.jobs))  # at most half decodes
        bounds.insert(0, (ordinary_s, tokens))
    margin = MARGIN if admitted.rejected > len(admitted.jobs) else 0.0
    speculations = (admitted.speculation, NO_SPECULATION) if admitted.speculation else (NO_SPECULATION,)
    for (longest_s, most_tokens), speculation in product(bounds, speculations):
        yield BatchingRule(longest_s, speculation, margin=margin, most_tokens=most_tokens)
    if _may_wait(admitted):
        for speculation in speculations:
            yield BatchingRule(ordinary_s, speculation, skips=True, margin=margin)


def _may_wait(admitted: AdmittedSet) -> bool:
    """Return whether some decode can skip batches and the KV cache holds the peaks of all requests at once.

    A decode that skips batches holds its blocks for longer. Without such batches Reasoning attains 6 points
    less near capacity (`bench/results/ablations.md`). A decode that has waited has no time left for a slow
    step, so on an engine with slow steps none waits.
    """
    view, jobs = admitted.view, admitted.jobs
    targets_s = [job.tpot_s for job in jobs if job.tpot_s is not None]
    if not targets_s or max(targets_s) < 2 * min(targets_s) or view.model.slow_excess:
        return False
    peaks = [
        view.kv.blocks_for(job.request.prompt_tokens + job.generated_tokens + job.output_tokens_left)
        for job in jobs
    ]
    return sum(peaks) <= view.kv.total_blocks


def plan(state: InitialState, rule: BatchingRule) -> BatchPlan:
    """Simulate batches from this state by this rule."""
    rows = state.rows
    if rule.speculation:
        rows = rows._replace(drafts=_floats([rule.speculation.get(tier, 0) for tier in state.tiers]))
    batch_tokens = min(state.engine.batch_tokens, rule.most_tokens)
    in_time, sustainable, limit_s, chosen, first_token_s, batches = simulate(
        state.engine._replace(batch_tokens=batch_tokens),
        Rows._make([column.copy() for column in rows]),
        Prompts._make([column.copy() for column in state.prompts]),
        Rule(rule.longest_s, int(rule.skips), rule.margin),
        state.start_s,
    )
    skipped = frozenset(np.flatnonzero(rows.decoding > chosen).tolist() if rule.skips else ())
    first = FirstBatch(limit_s, rule.speculation, skipped, rule.most_tokens)
    return BatchPlan(
        rule, rows, bool(in_time), bool(sustainable), first, first_token_s.tolist(), batches.tolist()
    )


def _engine(view: ReplicaView) -> Engine:
    model, batch_tokens = view.model, view.limits.batch_tokens
    attention_s = model.context_token_s, model.prefill_work_s
    slow = model.slow_chance, model.slow_excess
    kinds = model.decode_scale, model.prefill_scale, model.mixed_scale
    general = _floats(model.terms), *attention_s, model.overhead_s, model.scale, batch_tokens
    return Engine(*general, *slow, *kinds, model.deadline_margin)


def _rows(jobs: Sequence[Job], decodes: int, model: TimeModel) -> Rows:
    """Return the requests as columns. None of them counts as part of the batch that runs now."""
    of = transposed(jobs)
    targets = [request.targets for request in of.request]
    tpot_s = _floats([NO_TARGET_S if tpot_s is None else tpot_s for tpot_s in of.tpot_s])
    tokens = _floats(of.generated_tokens)
    # each token may end the thinking: then its lead is lost, and the answer's target applies
    gap_s = _floats([target.answer_tpot_s or inf for target in targets])
    since = tokens - _floats([0 if anchor is None else anchor.tokens for anchor in of.anchor])
    decoding = np.zeros(len(jobs), np.int64)
    decoding[:decodes] = 1
    return Rows(
        decoding=decoding,
        in_batch=np.zeros_like(decoding),
        window=np.array([target.judge.window for target in targets], np.int64),
        deadline_s=_floats(of.due_s),
        tpot_s=np.where(tpot_s < model.seconds(ONE_DECODE), NO_TARGET_S, tpot_s),
        gap_s=gap_s,
        gap_ends_s=_floats(of.last_token_s) + gap_s,
        since=since,
        most=since,
        sure=_floats(of.sure_tokens) - tokens,
        left=np.maximum(_floats(of.output_tokens) - tokens, 1.0),
        context=tokens + _floats([request.prompt_tokens for request in of.request]),
        drafts=np.zeros(len(jobs)),
    )


def _floats(values: Sequence[Any]) -> Floats:
    return np.array(values, np.float64)


def _in_batch(jobs: Sequence[Job], decoding: Ints, start_s: float, resting: Collection[RequestId]) -> Ints:
    """Return 1 for decodes that have a token in the batch which ends at `start_s`, else 0."""
    runs = [(job.anchor or NO_ANCHOR).at_s < start_s and job.request.id not in resting for job in jobs]
    return decoding * np.array(runs, np.int64)


def _prompts(prompts: Sequence[Job], model: TimeModel, start_s: float) -> Prompts:
    return Prompts(
        pending=np.array([job.pending_tokens for job in prompts], np.int64),
        computed=np.array([job.computed_tokens for job in prompts], np.int64),
        due_s=np.array([_due_s(job, model, start_s) for job in prompts], np.float64),
    )


def _due_s(job: Job, model: TimeModel, start_s: float) -> float:
    """Return a prompt's deadline; infinite if not even an engine that computes it alone could meet it."""
    alone_s = model.prefill_seconds(job.pending_tokens, job.computed_tokens)
    return job.due_s if start_s + alone_s <= job.due_s else inf
