"""The batches of a course, one after the other: the loops of `batch_plan`, where what they mean is said.

Compiled, since a course has dozens of batches of hundreds of rows, and several courses are tried for every
batch and every newcomer. Results do not depend on that. The time model's functions are compiled along with
the loops that call them.
"""

from math import ceil, inf
from typing import NamedTuple

import numpy as np

from penstock_core.compilation.arrays import Floats, Ints
from penstock_core.compilation.jit import FLOAT, FLOATS, INT, INTS, TABLE, compiled, part, record, results
from penstock_core.domain.token_window import WINDOW_TOKENS, closed_tokens, tokens_until_judged
from penstock_core.policies.slos_serve.overload_margin import LONG_ANSWER_TOKENS
from penstock_core.timing.batch_length import longest_batch_s
from penstock_core.timing.time_model import (
    BatchWork,
    chunk_work,
    iteration_seconds,
    largest_chunk,
    line_seconds,
    with_chunk,
)

for formula in (line_seconds, chunk_work, iteration_seconds, with_chunk, largest_chunk):
    part(formula)
for rule in (closed_tokens, tokens_until_judged, longest_batch_s):
    part(rule)

TIME_ERROR_S = 1e-9
"""Due times are sums of floats; two that are meant to be equal may differ by this."""

MOST_BATCHES = 256
"""A course that needs more keeps nothing: nobody's first token can wait so long."""

MOST_IDLE_BATCHES = 2 * WINDOW_TOKENS
"""Batches in a row without a token of any prompt, after which there will never be one."""


class Engine(NamedTuple):
    """A time model in numbers, and the engine's bound on a batch.

    terms: a row for each line of the roofline, with the fields of `time_model.Term`.
    """

    terms: Floats
    context_token_s: float
    prefill_work_s: float
    overhead_s: float
    scale: float
    batch_tokens: int


class Worst(NamedTuple):
    """Where windows stand that accepted drafts fill at the worst moments: columns as in `Rows`.

    most: tokens that may have come since its window began, at most.
    """

    due_s: Floats
    since: Floats
    sure: Floats
    most: Floats


class Rows(NamedTuple):
    """Decodes, then prompts, which decode once they are done.

    live: 1 for who decodes. under_way: 1 for who has a token in the batch that the engine computes now.
    window: of its judge (`token_window`).
    due_s: of the row's next token, `since` tokens after its window began.
    gap_s: a token has to come so soon after the one before, whatever its lead; infinite for most.
    again_s: when the next one has to, for that.
    sure, left: tokens still to come, at least and by prediction.
    drafts: verified beside it in every batch. worst: of windowed rows that draft, what can have become of
    them. Both are the mode's, and empty until it is known (`_in_mode`).
    """

    live: Ints
    under_way: Ints
    window: Ints
    due_s: Floats
    pace_s: Floats
    gap_s: Floats
    again_s: Floats
    since: Floats
    sure: Floats
    left: Floats
    context: Floats
    drafts: Floats
    worst: Worst


class Prompts(NamedTuple):
    """What is still to be computed, in the order of the rows' end.

    due_s: infinite where it is late whatever is done.
    """

    pending: Ints
    computed: Ints
    due_s: Floats


class Rules(NamedTuple):
    """A mode, in numbers. drafts: of each row."""

    longest_s: float
    skips: int
    reserve: float
    drafts: Floats


class Bounds(NamedTuple):
    """What the mode says of all batches, and how long one of all decodes takes."""

    longest_s: float
    skips: int
    reserve: float
    together_s: float


class Turn(NamedTuple):
    """A batch about to be filled: its start, its longest, and the first prompt that is not done."""

    now_s: float
    limit_s: float
    todo: int


@part
def _decoding(rows: Rows, chosen: Ints) -> BatchWork:
    """A batch of these rows' decodes alone."""
    drafts, contexts = rows.drafts, rows.context
    tokens, context, steps = 0, 0, 0
    for row in range(len(chosen)):
        if chosen[row]:
            tokens += 1 + int(drafts[row])
            context += int(contexts[row])
            steps = max(steps, int(drafts[row]))
    return BatchWork(tokens, context, 0.0, steps)


@part
def _lent_s(window: int, since: float, sure: float, pace_s: float, catch_up_s: float) -> float:
    """From when its next token is due, how much later a batch may end for a row to reach its window's end."""
    others = max(tokens_until_judged(window, since, sure), 1.0) - 1.0 if window else 0.0
    lent_s: float = others * max(pace_s - catch_up_s, 0.0)
    return lent_s


@part
def _latest_ends_s(rows: Rows, catch_up_s: float) -> Floats:
    """When a batch may end for each row to reach its milestone, its other tokens taking so long each."""
    window, drafts, pace_s, again_s, worst = rows.window, rows.drafts, rows.pace_s, rows.again_s, rows.worst
    since, sure, worst_due_s, worst_since, worst_sure = (
        rows.since,
        rows.sure,
        worst.due_s,
        worst.since,
        worst.sure,
    )
    ends_s = rows.due_s.copy()
    for row in range(len(ends_s)):
        if drafts[row] == 0.0 or window[row] <= 1:
            ends_s[row] += _lent_s(window[row], since[row], sure[row], pace_s[row], catch_up_s)
        else:
            lent_s = _lent_s(window[row], worst_since[row], worst_sure[row], pace_s[row], catch_up_s)
            ends_s[row] = worst_due_s[row] + lent_s
        ends_s[row] = min(ends_s[row], again_s[row])
    return ends_s


@part
def _bring_out(rows: Rows, chosen: Ints, now_s: float, catch_up_s: float) -> None:
    """A token of each of these rows, of the batch that ends now."""
    live, window, due_s, pace_s, again_s = rows.live, rows.window, rows.due_s, rows.pace_s, rows.again_s
    gap_s, since, sure, left, context = rows.gap_s, rows.since, rows.sure, rows.left, rows.context
    for row in range(len(chosen)):
        if not chosen[row]:
            continue
        due_s[row] += pace_s[row]
        again_s[row] = now_s + gap_s[row]
        since[row] += 1.0
        sure[row] -= 1.0
        left[row] -= 1.0
        context[row] += 1.0
        closed = closed_tokens(window[row], since[row])
        if closed > 0.0:
            since[row] -= closed
            due_s[row] = now_s + (since[row] + 1.0) * pace_s[row]
        if left[row] <= 0:
            live[row] = 0
    _fill_early(rows, chosen, now_s, catch_up_s)


@part
def _fill_early(rows: Rows, chosen: Ints, now_s: float, catch_up_s: float) -> None:
    """The worst that can have come of rows that draft: one token, or as many as end their window just now.

    `sure` counts one token all the same: an answer that is nearly over is hardly ever ahead by much.
    """
    window, drafts, pace_s, again_s, worst = rows.window, rows.drafts, rows.pace_s, rows.again_s, rows.worst
    due_s, since, sure, most = worst.due_s, worst.since, worst.sure, worst.most
    for row in range(len(chosen)):
        if not chosen[row] or window[row] <= 1 or drafts[row] == 0.0:
            continue
        due_s[row] += pace_s[row]
        since[row] += 1.0
        sure[row] -= 1.0
        most[row] += 1.0 + drafts[row]
        if most[row] < window[row]:
            continue
        ended_s = now_s + pace_s[row]
        early_s = ended_s + _lent_s(window[row], 0.0, sure[row], pace_s[row], catch_up_s)
        lent_s = _lent_s(window[row], since[row], sure[row], pace_s[row], catch_up_s)
        end_s = min(due_s[row] + lent_s, again_s[row])
        if since[row] >= window[row] or early_s < end_s:
            due_s[row], since[row] = ended_s, 0.0


@part
def _forgive(engine: Engine, rows: Rows, now_s: float, longest_s: float) -> None:
    """Decodes that are late, whatever comes, get half of what a period leaves until they are not.

    Whoever has no due time is left out of that: it may be a job that is only here if it makes nobody late.
    A gap that decodes alone exceed is not kept any longer.
    """
    live, due_s, pace_s, gap_s, worst_due_s = rows.live, rows.due_s, rows.pace_s, rows.gap_s, rows.worst.due_s
    count, context, tightest_s = 0, 0, inf
    for row in range(len(live)):
        if live[row] and due_s[row] < inf:
            count += 1
            context += int(rows.context[row])
            tightest_s = min(tightest_s, pace_s[row])
    decodes_s = iteration_seconds(engine, BatchWork(count, context, 0.0, 0))
    spare_s = max(min(tightest_s, longest_s) - decodes_s, 0.0) / 2
    ends_s = _latest_ends_s(rows, decodes_s)
    for row in range(len(live)):
        if live[row]:
            behind_s = now_s + decodes_s - ends_s[row]
            if behind_s > TIME_ERROR_S:
                due_s[row] += behind_s + spare_s
                worst_due_s[row] += behind_s + spare_s
            if decodes_s > gap_s[row]:
                gap_s[row] = rows.again_s[row] = inf


@part
def _limit(engine: Engine, rows: Rows, bounds: Bounds, now_s: float, decoding: Ints) -> tuple[bool, float]:
    """Whether no decode is late, and how long the next batch may be; `decoding` takes who is in it."""
    decoding[:] = rows.live
    decodes_s = iteration_seconds(engine, _decoding(rows, rows.live))
    if decodes_s == 0.0:
        return True, bounds.longest_s
    ends_s, slack_s, lent_s = _latest_ends_s(rows, bounds.together_s), inf, inf
    for row in range(len(decoding)):
        if decoding[row]:
            left_s = ends_s[row] - now_s
            slack_s = min(slack_s, left_s)
            reserve = bounds.reserve if rows.left[row] >= LONG_ANSWER_TOKENS else 0.0
            lent_s = min(lent_s, left_s / (1.0 + reserve))
    limit_s = min(longest_batch_s(bounds.longest_s, decodes_s), max(lent_s, decodes_s))
    if slack_s < decodes_s - TIME_ERROR_S:
        return False, limit_s
    if bounds.skips:
        again_s = now_s + limit_s + bounds.together_s - TIME_ERROR_S
        for row in range(len(decoding)):
            if decoding[row] and ends_s[row] >= again_s:
                decoding[row] = 0
    return True, limit_s


@part
def _begin_decoding(rows: Rows, row: int, now_s: float) -> None:
    """A prompt is done. One that was preempted before goes on from its old anchor."""
    rows.left[row] -= 1.0
    rows.sure[row] -= 1.0
    rows.live[row] = 1 if rows.left[row] > 0 else 0
    if rows.since[row] > 0 and rows.window[row] != 1:
        rows.due_s[row] += rows.pace_s[row]
        rows.since[row] += 1.0
    else:
        rows.due_s[row] = now_s + rows.pace_s[row]
        rows.since[row] = 0.0
    rows.again_s[row] = now_s + rows.gap_s[row]
    rows.worst.due_s[row], rows.worst.since[row] = rows.due_s[row], rows.since[row]
    rows.worst.sure[row], rows.worst.most[row] = rows.sure[row], rows.since[row]


@part
def _compute(engine: Engine, prompts: Prompts, work: BatchWork, turn: Turn) -> tuple[float, int]:
    """Fill a batch of decodes with prompts: its seconds, and the first prompt that is not done then.

    -1 where one that it finishes is late, or another has to be.
    """
    now_s, limit_s, todo = turn
    while todo < len(prompts.pending):
        due_in_s = prompts.due_s[todo] - now_s
        if due_in_s < 0:
            return 0.0, -1
        pending, computed = prompts.pending[todo], prompts.computed[todo]
        most = min(pending, engine.batch_tokens - work.tokens)
        chunk = largest_chunk(engine, work, most, computed, limit_s)
        if chunk == 0:
            break
        work = with_chunk(work, chunk, computed)
        prompts.pending[todo] = pending - chunk
        prompts.computed[todo] = computed + chunk
        if chunk < pending:
            break
        if iteration_seconds(engine, work) > due_in_s + TIME_ERROR_S:
            return 0.0, -1
        limit_s, todo = min(limit_s, due_in_s), todo + 1
    return iteration_seconds(engine, work), todo


@part
def _steady(engine: Engine, rows: Rows, skips: int) -> bool:
    """Whether decodes keep their paces when nothing but them is computed."""
    work = _decoding(rows, rows.live)
    tightest_s = inf
    for row in range(len(rows.live)):
        if rows.live[row]:
            tightest_s = min(tightest_s, rows.pace_s[row])
    if skips and work.tokens > 0:
        share, count = 0.0, 0.0
        for row in range(len(rows.live)):
            if rows.live[row]:
                share += tightest_s / rows.pace_s[row]
                count += 1.0
        work = BatchWork(ceil(work.tokens * (share / count)), work.context_tokens, 0.0, work.spec_steps)
    return iteration_seconds(engine, work) <= tightest_s


@part
def _in_mode(rows: Rows, drafts: Floats) -> Rows:
    """The rows with so many drafts, to be changed in place."""
    return Rows(
        rows.live.copy(),
        rows.under_way,
        rows.window,
        rows.due_s.copy(),
        rows.pace_s,
        rows.gap_s.copy(),
        rows.again_s.copy(),
        rows.since.copy(),
        rows.sure.copy(),
        rows.left.copy(),
        rows.context.copy(),
        drafts,
        Worst(rows.due_s.copy(), rows.since.copy(), rows.sure.copy(), rows.since.copy()),
    )


@part
def _together_s(engine: Engine, rows: Rows) -> float:
    """A batch of all rows' decodes, also when they have come a window further."""
    together = _decoding(rows, np.ones(len(rows.live), np.int64))
    grown = together.context_tokens + WINDOW_TOKENS * len(rows.live)
    return iteration_seconds(engine, BatchWork(together.tokens, grown, 0.0, together.spec_steps))


@compiled(
    results(INT, INT, FLOAT, INTS, FLOATS, INTS),
    record(Engine, TABLE, FLOAT, FLOAT, FLOAT, FLOAT, INT),
    record(Rows, INTS, INTS, INTS, *(9 * [FLOATS]), record(Worst, FLOATS, FLOATS, FLOATS, FLOATS)),
    record(Prompts, INTS, INTS, FLOATS),
    record(Rules, FLOAT, INT, FLOAT, FLOATS),
    FLOAT,
)
def carry_out(
    engine: Engine, rows: Rows, prompts: Prompts, rules: Rules, free_s: float
) -> tuple[int, int, float, Ints, Floats, Ints]:
    """Batch after batch from `free_s` on, until no prompt is left or a promise is broken.

    Whether all is kept, and whether it is steady then (1 or 0); the first batch's limit, and who decodes in
    it; when each prompt's first token is out, and after how many batches.
    """
    rows, left, now_s = _in_mode(rows, rules.drafts), len(prompts.pending), free_s
    prompts = Prompts(prompts.pending.copy(), prompts.computed.copy(), prompts.due_s)
    bounds = Bounds(rules.longest_s, rules.skips, rules.reserve, _together_s(engine, rows))
    done_s, batches = np.full(left, inf), np.zeros(left, np.int64)
    _bring_out(rows, rows.under_way, now_s, bounds.together_s)
    _forgive(engine, rows, now_s, bounds.longest_s)
    decoding = np.zeros(len(rows.live), np.int64)
    keeps, limit_s = _limit(engine, rows, bounds, now_s, decoding)
    first_limit_s, first = limit_s, decoding.copy()
    todo, batch, idle = 0, 0, 0
    while todo < left and batch < MOST_BATCHES and idle < MOST_IDLE_BATCHES:
        batch += 1
        begun, pending = todo, prompts.pending[todo]
        batch_s, todo = _compute(engine, prompts, _decoding(rows, decoding), Turn(now_s, limit_s, begun))
        if todo < 0:
            break
        now_s += batch_s
        _bring_out(rows, decoding, now_s, bounds.together_s)
        for prompt in range(begun, todo):
            done_s[prompt], batches[prompt] = now_s, batch
            _begin_decoding(rows, len(rows.live) - left + prompt, now_s)
        if not keeps:
            break
        idle = idle + 1 if todo == begun and prompts.pending[begun] == pending else 0
        if todo < left:
            keeps, limit_s = _limit(engine, rows, bounds, now_s, decoding)
    steady = _steady(engine, rows, bounds.skips)
    return int(keeps and todo == left), int(steady), first_limit_s, first, done_s, batches
