"""The compiled loop of a batch plan, one batch after the other. `batch_plan` describes its rules.

A plan has dozens of batches of hundreds of requests, and every batch and every candidate needs a plan. The
functions of the time model and of windows are compiled together with the loop that calls them. Results are
the same as in Python.
"""

from math import ceil, inf
from typing import NamedTuple

import numpy as np

from penstock_core.compilation.arrays import Floats, Ints
from penstock_core.compilation.jit import FLOAT, FLOATS, INT, INTS, TABLE, compiled, part, record, results
from penstock_core.domain.token_window import WINDOW_TOKENS, closed_tokens, tokens_until_judged
from penstock_core.timing.batch_length import longest_batch_s
from penstock_core.timing.step_tail import LATE_WINDOWS, spare_steps
from penstock_core.timing.time_model import (
    BatchWork,
    chunk_work,
    iteration_seconds,
    kind_scale,
    largest_chunk,
    line_seconds,
    with_chunk,
)

for formula in (line_seconds, chunk_work, kind_scale, iteration_seconds, with_chunk, largest_chunk):
    part(formula)
for rule in (closed_tokens, tokens_until_judged, longest_batch_s, spare_steps):
    part(rule)

TIME_ERROR_S = 1e-9
"""Deadlines are sums of floats; two that are meant to be equal may differ by this."""

MOST_BATCHES = 256
"""Most batches of a plan. A plan that needs more is infeasible: no first token can wait that long."""

LONG_ANSWER_TOKENS = 100.0 * WINDOW_TOKENS
"""Remaining tokens from which an answer counts as long (`batch_plan.MARGIN`)."""

MOST_IDLE_BATCHES = 2 * WINDOW_TOKENS
"""Batches in a row without a prompt token, after which no later batch would have one either."""


LATE = -1
"""Returned instead of a prompt's number if a deadline is missed."""


class Engine(NamedTuple):
    """A time model in numbers, and the engine's bound on a batch.

    terms: a row for each line of the roofline, with the fields of `time_model.Term`.
    slow_chance, slow_excess: its slow steps; 0 if plans leave no time for them.
    decode_scale, prefill_scale, mixed_scale: scales by kind of batch.
    deadline_margin: safety margin of batches that end at a deadline.
    """

    terms: Floats
    context_token_s: float
    prefill_work_s: float
    overhead_s: float
    scale: float
    batch_tokens: int
    slow_chance: float
    slow_excess: float
    decode_scale: float
    prefill_scale: float
    mixed_scale: float
    deadline_margin: float


class Rows(NamedTuple):
    """One row per request: decodes, then prompts, which decode once they are computed.

    decoding: 1 for decodes. in_batch: 1 for those with a token in the batch that runs now.
    window: tokens over which TPOT is judged (`token_window`). since: tokens since the present window began.
    deadline_s: deadline of the next token by the TPOT target.
    gap_s: longest time between two tokens, however early they are; infinite for most requests.
    gap_ends_s: deadline of the next token by `gap_s`.
    sure, left: remaining tokens, almost certain and predicted.
    drafts: draft tokens verified in every batch. most: tokens since the present window began if all draft
        tokens were accepted.
    """

    decoding: Ints
    in_batch: Ints
    window: Ints
    deadline_s: Floats
    tpot_s: Floats
    gap_s: Floats
    gap_ends_s: Floats
    since: Floats
    most: Floats
    sure: Floats
    left: Floats
    context: Floats
    drafts: Floats


class Prompts(NamedTuple):
    """Prompts to compute, in the order of the last rows. due_s: infinite if the prompt is late anyway."""

    pending: Ints
    computed: Ints
    due_s: Floats


class Rule(NamedTuple):
    """A `BatchingRule` in numbers. skips: 1 if decodes may be left out of a batch, else 0."""

    longest_s: float
    skips: int
    margin: float


class Time(NamedTuple):
    """Start of a batch, and its longest duration."""

    now_s: float
    limit_s: float


@part
def _decodes(rows: Rows, chosen: Ints) -> BatchWork:
    """Return the work of a batch of these rows' decodes alone."""
    tokens, context, steps = 0, 0, 0
    for row in range(len(chosen)):
        if chosen[row]:
            tokens += 1 + int(rows.drafts[row])
            context += int(rows.context[row])
            steps = max(steps, int(rows.drafts[row]))
    return BatchWork(tokens, context, 0.0, steps)


@part
def _batch_s(engine: Engine, work: BatchWork) -> float:
    return iteration_seconds(engine, work)


@part
def _catch_up_s(engine: Engine, rows: Rows) -> float:
    """Return the duration of a batch of all rows' decodes when each has a window of tokens more."""
    together = _decodes(rows, np.ones(len(rows.decoding), np.int64))
    grown = together.context_tokens + WINDOW_TOKENS * len(rows.decoding)
    return _batch_s(engine, BatchWork(together.tokens, grown, 0.0, together.spec_steps))


@part
def _window_slack_s(rows: Rows, row: int, since: float, catch_up_s: float) -> float:
    """Return how much later than a row's next deadline a batch may end if its window is to end in time."""
    if rows.window[row] == 0:
        return 0.0
    others = max(tokens_until_judged(rows.window[row], since, rows.sure[row]), 1.0) - 1.0
    return float(others * max(rows.tpot_s[row] - catch_up_s, 0.0))


@part
def _latest_end_s(rows: Rows, row: int, catch_up_s: float) -> float:
    """Return when a batch may end for the row to be in time if its later tokens take `catch_up_s` each."""
    end_s = rows.deadline_s[row] + _window_slack_s(rows, row, rows.since[row], catch_up_s)
    return float(min(end_s, rows.gap_ends_s[row]))


@part
def _ends_window(rows: Rows, row: int) -> float:
    """Return 1 if the row's next token may be the last of a window, so that no later batch makes up for it.

    The end of thinking with its own target is never almost certain, so there only whole windows count.
    Without branches, as `time_model.kind_scale`: with them a plan takes three times as long.
    """
    left = rows.sure[row] + (rows.gap_s[row] < inf) * (rows.left[row] - rows.sure[row])
    in_window = rows.window[row] - rows.since[row]
    return float((rows.window[row] > 0) * ((in_window <= 1.0) | (left <= 1.0)))


@part
def _spare_steps(engine: Engine, rows: Rows, row: int, steps: float) -> float:
    """Return how many of these steps may be slow. The number grows with the row's remaining windows."""
    windows = max(rows.left[row] / rows.window[row], 1.0) if rows.window[row] > 0 else 1.0
    return spare_steps(engine.slow_chance, steps, LATE_WINDOWS / windows)


@part
def _usable_s(engine: Engine, rows: Rows, row: int, now_s: float, catch_up_s: float) -> float:
    """Return the longest batch with which a row ends its window in time despite slow steps, itself included.

    An answer that may end within the window is treated alike, because only its last window is shorter.
    """
    steps = max(rows.window[row] - rows.since[row], 1.0)
    spare = _spare_steps(engine, rows, row, steps)
    if spare == 0.0:
        return inf
    left_s = rows.deadline_s[row] + (steps - 1.0) * max(rows.tpot_s[row] - catch_up_s, 0.0) - now_s
    later_s = (spare - 1.0) * engine.slow_excess * catch_up_s
    return float((left_s - later_s) / (1.0 + engine.slow_excess))


@part
def _begin_window(rows: Rows, row: int, now_s: float, since: float) -> None:
    rows.since[row] = since
    rows.deadline_s[row] = now_s + (since + 1.0) * rows.tpot_s[row]


@part
def _generate(rows: Rows, chosen: Ints, now_s: float, catch_up_s: float) -> None:
    """Generate one token for each of these rows, in the batch that ends now."""
    for row in range(len(chosen)):
        if not chosen[row]:
            continue
        rows.deadline_s[row] += rows.tpot_s[row]
        rows.gap_ends_s[row] = now_s + rows.gap_s[row]
        rows.since[row] += 1.0
        rows.most[row] += 1.0 + rows.drafts[row]
        rows.sure[row] -= 1.0
        rows.left[row] -= 1.0
        rows.context[row] += 1.0
        if rows.window[row] > 1 and rows.drafts[row] > 0.0:
            _end_window_early(rows, row, now_s, catch_up_s)
        else:
            closed = closed_tokens(rows.window[row], rows.since[row])
            if closed > 0.0:
                _begin_window(rows, row, now_s, rows.since[row] - closed)
        if rows.left[row] <= 0:
            rows.decoding[row] = 0


@part
def _end_window_early(rows: Rows, row: int, now_s: float, catch_up_s: float) -> None:
    """Apply the worse effect that draft tokens can have had: none, or the window, with its lead, ends now.

    `sure` still counts one token per batch, because an answer near its end rarely has a large lead.
    """
    if rows.most[row] < rows.window[row]:
        return
    early_s = now_s + rows.tpot_s[row] + _window_slack_s(rows, row, 0.0, catch_up_s)
    if rows.since[row] >= rows.window[row] or early_s < _latest_end_s(rows, row, catch_up_s):
        _begin_window(rows, row, now_s, 0.0)


@part
def _extend_missed(engine: Engine, rows: Rows, now_s: float, longest_s: float) -> None:
    """Extend the deadlines of decodes that are late anyway, so that prefill gets half of the spare time.

    Rows without a deadline do not count for the spare time, because they must not make other rows late. A gap
    that a batch of decodes alone exceeds is no longer enforced.
    """
    count, context, tightest_s = 0, 0, inf
    for row in range(len(rows.decoding)):
        if rows.decoding[row] and rows.deadline_s[row] < inf:
            count += 1
            context += int(rows.context[row])
            tightest_s = min(tightest_s, rows.tpot_s[row])
    decodes_s = _batch_s(engine, BatchWork(count, context, 0.0, 0))
    spare_s = max(min(tightest_s, longest_s) - decodes_s, 0.0) / 2
    for row in range(len(rows.decoding)):
        if rows.decoding[row]:
            late_s = now_s + decodes_s - _latest_end_s(rows, row, decodes_s)
            if late_s > TIME_ERROR_S:
                rows.deadline_s[row] += late_s + spare_s
            if decodes_s > rows.gap_s[row]:
                rows.gap_s[row] = rows.gap_ends_s[row] = inf


@part
def _limit(engine: Engine, rows: Rows, rule: Rule, now_s: float, catch_up_s: float) -> tuple[bool, Time]:
    """Return whether no decode is late, and the longest duration of the batch that begins now."""
    decodes_s = _batch_s(engine, _decodes(rows, rows.decoding))
    if decodes_s == 0.0:
        return True, Time(now_s, rule.longest_s)
    slack_s, usable_s = inf, inf
    for row in range(len(rows.decoding)):
        if rows.decoding[row]:
            left_s = _latest_end_s(rows, row, catch_up_s) - now_s
            slack_s = min(slack_s, left_s)
            margin = rule.margin if rows.left[row] >= LONG_ANSWER_TOKENS else 0.0
            margin = max(margin, _ends_window(rows, row) * engine.deadline_margin)
            usable_s = min(usable_s, left_s / (1.0 + margin))
            if engine.slow_excess > 0.0 and rows.window[row] > 0:
                usable_s = min(usable_s, _usable_s(engine, rows, row, now_s, catch_up_s))
    limit_s = min(longest_batch_s(rule.longest_s, decodes_s), max(usable_s, decodes_s))
    return slack_s >= decodes_s - TIME_ERROR_S, Time(now_s, limit_s)


@part
def _chosen(rows: Rows, skips: int, time: Time, catch_up_s: float) -> Ints:
    """Return the decodes of a batch: all, or those that would be late if they waited for the next batch."""
    chosen = rows.decoding.copy()
    if skips:
        next_end_s = time.now_s + time.limit_s + catch_up_s - TIME_ERROR_S
        for row in range(len(chosen)):
            if chosen[row] and _latest_end_s(rows, row, catch_up_s) >= next_end_s:
                chosen[row] = 0
    return chosen


@part
def _begin_decoding(rows: Rows, row: int, now_s: float) -> None:
    """Start the decode of a computed prompt. A request that was preempted continues its old window."""
    rows.left[row] -= 1.0
    rows.sure[row] -= 1.0
    rows.decoding[row] = 1 if rows.left[row] > 0 else 0
    rows.gap_ends_s[row] = now_s + rows.gap_s[row]
    if rows.since[row] > 0 and rows.window[row] != 1:
        rows.deadline_s[row] += rows.tpot_s[row]
        rows.since[row] += 1.0
    else:
        _begin_window(rows, row, now_s, 0.0)
    rows.most[row] = rows.since[row]


@part
def _fill(engine: Engine, prompts: Prompts, work: BatchWork, time: Time, todo: int) -> tuple[float, int]:
    """Fill a batch of decodes with prompts. Returns its seconds, and the first prompt that is not finished.

    Returns LATE if a prompt misses its deadline. A batch without decodes always has a chunk.
    """
    now_s, limit_s = time.now_s, time.limit_s
    while todo < len(prompts.pending):
        due_in_s = prompts.due_s[todo] - now_s
        if due_in_s < 0:
            return 0.0, LATE
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
        if _batch_s(engine, work) > due_in_s + TIME_ERROR_S:
            return 0.0, LATE
        limit_s, todo = min(limit_s, due_in_s / (1.0 + engine.deadline_margin)), todo + 1
    return _batch_s(engine, work), todo


@part
def _sustained_s(engine: Engine, rows: Rows, row: int) -> float:
    """Return the longest batch of decodes that meets a row's TPOT target despite slow steps."""
    if engine.slow_excess == 0.0:
        return float(rows.tpot_s[row])
    steps = float(rows.window[row]) if rows.window[row] > 0 else rows.left[row]
    excess = _spare_steps(engine, rows, row, steps) * engine.slow_excess / steps
    return float(rows.tpot_s[row] / (1.0 + excess))


@part
def _sustainable(engine: Engine, rows: Rows, skips: int) -> bool:
    """Return whether decodes meet their TPOT targets in batches without prefill."""
    tightest_s, share, count = inf, 0.0, 0
    for row in range(len(rows.decoding)):
        if rows.decoding[row]:
            tightest_s = min(tightest_s, _sustained_s(engine, rows, row))
            count += 1
    work = _decodes(rows, rows.decoding)
    if skips and count > 0:  # each has a token in as many batches as its target requires
        for row in range(len(rows.decoding)):
            if rows.decoding[row]:
                share += tightest_s / rows.tpot_s[row] / count
        work = BatchWork(ceil(work.tokens * share), work.context_tokens, 0.0, work.spec_steps)
    return _batch_s(engine, work) <= tightest_s


@compiled(
    results(INT, INT, FLOAT, INTS, FLOATS, INTS),
    record(Engine, TABLE, FLOAT, FLOAT, FLOAT, FLOAT, INT, *(6 * [FLOAT])),
    record(Rows, INTS, INTS, INTS, *(10 * [FLOATS])),
    record(Prompts, INTS, INTS, FLOATS),
    record(Rule, FLOAT, INT, FLOAT),
    FLOAT,
)
def simulate(
    engine: Engine, rows: Rows, prompts: Prompts, rule: Rule, start_s: float
) -> tuple[int, int, float, Ints, Floats, Ints]:
    """Simulate batch after batch until no prompt is left or a deadline is missed.

    Changes rows and prompts in place. Returns whether every deadline is met and whether the decodes are
    sustainable after that (1 or 0); the longest duration of the first batch, and its decodes; the time of
    each prompt's first token, and the number of batches until then.
    """
    left = len(prompts.pending)
    first_token_s, batches = np.full(left, inf), np.zeros(left, np.int64)
    catch_up_s = _catch_up_s(engine, rows)
    _generate(rows, rows.in_batch, start_s, catch_up_s)
    _extend_missed(engine, rows, start_s, rule.longest_s)
    in_time, time = _limit(engine, rows, rule, start_s, catch_up_s)
    chosen = _chosen(rows, rule.skips, time, catch_up_s)
    first_limit_s, first, todo, batch, idle = time.limit_s, chosen, 0, 0, 0
    while todo < left and in_time and batch < MOST_BATCHES and idle < MOST_IDLE_BATCHES:
        batch += 1
        begun, pending = todo, prompts.pending[todo]
        batch_s, todo = _fill(engine, prompts, _decodes(rows, chosen), time, begun)
        if todo == LATE:
            break
        end_s = time.now_s + batch_s
        _generate(rows, chosen, end_s, catch_up_s)
        for prompt in range(begun, todo):
            first_token_s[prompt], batches[prompt] = end_s, batch
            _begin_decoding(rows, len(rows.decoding) - left + prompt, end_s)
        idle = idle + 1 if todo == begun and prompts.pending[begun] == pending else 0
        if todo < left:
            in_time, time = _limit(engine, rows, rule, end_s, catch_up_s)
            chosen = _chosen(rows, rule.skips, time, catch_up_s)
    sustainable = _sustainable(engine, rows, rule.skips)
    return int(in_time and todo == left), int(sustainable), first_limit_s, first, first_token_s, batches
