"""The resources that a request needs to meet its targets, as rows of the linear program.

A request that meets its targets has, in every schedule:

    prompt     all its tokens computed between arrival and the first token's deadline, on every line of the
               roofline, holding memory; and at least one whole iteration within that time
    answer     every token after the first computed before the last one's deadline, in an iteration whose
               memory it shares with others, holding its context
    residence  its prompt's memory held from first to last token, unless it is preempted for no longer than
               its TPOT target allows, and then recomputed
    TPOT       if speed binds before memory: at most one decode in every iteration, and the progress that
               windows of ten tokens require

A block here is a block of time (`time_grid`), not of KV memory.

The program accepts fractions of requests and may distribute all of this freely within the limits. Decoding is
measured in one quantity exactly in every block: KV tokens held, summed over tokens, if memory binds; else
tokens. The other quantity is exact in total, and in every block within the range of its class.
"""

from dataclasses import dataclass
from math import ceil, inf, isfinite

import numpy as np
from penstock_core.compilation.arrays import Floats, Ints
from penstock_core.domain.token_window import WINDOW_TOKENS

from penstock_simulator.bounds.bound_setting import BoundSetting
from penstock_simulator.bounds.least_work import LeastWork
from penstock_simulator.bounds.linear_program import LinearProgram
from penstock_simulator.bounds.replica_limits import ReplicaLimits, add_replica_limits
from penstock_simulator.bounds.time_grid import TimeGrid, spans, time_grid

CLASSES = 4
"""Request classes by the memory that their decodes hold, so that large ones may draft more."""

MOST_BLOCKS_PREEMPTED = 20
"""If a request may be preempted for more blocks of time than this, its residence is not counted."""


@dataclass(frozen=True, slots=True)
class _Relaxation:
    """The program, its inputs, and the column of each request's acceptance and its class."""

    program: LinearProgram
    demand: LeastWork
    setting: BoundSetting
    grid: TimeGrid
    replica_limits: ReplicaLimits
    accepted: Ints
    of_class: Ints
    by_memory: bool


@dataclass(frozen=True, slots=True)
class _DecodeColumns:
    """Columns of decoding, a pair for each request and block in which it may decode.

    rows, blocks: the request and the block. now: share of its decodes in this block. later: share after it.
    """

    rows: Ints
    blocks: Ints
    now: Ints
    later: Ints


def most_sessions(demand: LeastWork, setting: BoundSetting) -> float:
    """Return an upper bound on the expected number of sessions whose targets any schedule meets."""
    if not demand.sessions:
        return float(demand.unconstrained_sessions)
    grid, program, of_class = time_grid(demand), LinearProgram(), _classes(demand)
    accepted = program.columns(_can_fit(demand, setting), gain=1.0)[demand.owner]
    replica_limits = add_replica_limits(program, grid, setting, int(of_class.max()) + 1)
    by_memory = _memory_binds(demand, setting)
    model = _Relaxation(program, demand, setting, grid, replica_limits, accepted, of_class, by_memory)
    _add_prompts(model)
    if demand.decodes.any():
        decodes = _add_decodes(model)
        _add_answers(model, decodes)
        _add_other_by_block(model, decodes)
        _add_ratios(model)
        _add_totals(model)
        _add_residence(model, decodes)
        if not by_memory:
            _add_iteration_limits(model, decodes)
            _add_progress(model, decodes)
    return min(program.upper_bound(), float(demand.sessions)) + demand.unconstrained_sessions


def _can_fit(demand: LeastWork, setting: BoundSetting) -> Floats:
    """Return 1 for each session whose requests fit into memory, else 0."""
    fits = np.ones(demand.sessions)
    np.minimum.at(fits, demand.owner, (demand.last_held <= setting.memory_tokens).astype(np.float64))
    return fits


def _mean_held(demand: LeastWork) -> Floats:
    return demand.held_sum / np.maximum(demand.decodes, 1)


def _classes(demand: LeastWork) -> Ints:
    """Return each request's class: quantiles of the memory that its decodes hold on average."""
    held = _mean_held(demand)
    borders = np.unique(np.quantile(held, np.arange(1, CLASSES) / CLASSES))
    return np.unique(np.searchsorted(borders, held), return_inverse=True)[1]


def _memory_binds(demand: LeastWork, setting: BoundSetting) -> bool:
    """Return whether memory is full before iterations become too long for the tightest TPOT target."""
    tpot_s = float(demand.tpot_s.min())
    if not isfinite(tpot_s) or not demand.decodes.any():
        return True
    at_tpot = min(setting.model.tokens_within(tpot_s), setting.limits.running)
    in_memory = setting.memory_tokens / float(np.average(_mean_held(demand), weights=demand.decodes))
    return in_memory < at_tpot


def _add_prompts(model: _Relaxation) -> None:
    program, demand, grid, replica_limits = model.program, model.demand, model.grid, model.replica_limits
    line = replica_limits.roofline
    rows, slots = spans(grid.slot_ends_s, demand.release_s, demand.due_s)
    blocks, tokens = grid.block_of[slots], demand.prompt[rows].astype(np.float64)
    share = _shares(model, rows)
    program.put(replica_limits.slot_seconds[:, slots], share[None, :], line.token_s[:, None] * tokens)
    program.put(replica_limits.tokens[blocks], share, tokens)
    program.put(replica_limits.memory[blocks], share, tokens / model.setting.memory_tokens)
    if line.prefill_work_s > 0:
        attended = _shares(model, rows)
        attention_s = line.prefill_work_s * tokens**2 / 2
        program.put(replica_limits.slot_seconds[:, slots], attended[None, :], attention_s[None, :])
        program.put(replica_limits.block_seconds[blocks], attended, attention_s)
    own_iteration = program.at_most(np.zeros(len(model.accepted)))
    program.put(own_iteration, model.accepted, 1.0)
    program.put(own_iteration[rows], replica_limits.iterations[slots], -1.0)


def _shares(model: _Relaxation, rows: Ints) -> Ints:
    """Add a column for each row, whose sum over a request's rows is its accepted fraction."""
    share = model.program.columns(np.ones(len(rows)))
    whole = model.program.equal(np.zeros(len(model.accepted)))
    model.program.put(whole[rows], share, 1.0)
    some = np.unique(rows)
    model.program.put(whole[some], model.accepted[some], -1.0)
    return share


def _add_decodes(model: _Relaxation) -> _DecodeColumns:
    """Add columns for the share of each answer by block, and the share after each block."""
    program, demand = model.program, model.demand
    some = np.flatnonzero(demand.decodes)
    which, blocks = spans(model.grid.block_ends_s, demand.decode_from_s[some], demand.end_s[some])
    rows = some[which]
    now, later = _shares(model, rows), program.columns(np.ones(len(rows)))
    left = program.equal(np.zeros(len(rows)))
    program.put(left, later, 1.0)
    followed = np.flatnonzero(rows[1:] == rows[:-1])
    program.put(left[followed], later[followed + 1], -1.0)
    program.put(left[followed], now[followed + 1], -1.0)
    return _DecodeColumns(rows, blocks, now, later)


def _add_answers(model: _Relaxation, decodes: _DecodeColumns) -> None:
    """Add rows: decodes of a block are computed by its iterations, in the exact quantity."""
    source, measure = _memory(model) if model.by_memory else _slots_used(model)
    out = model.program.at_most(np.zeros(source.shape[:2]))
    rows = out[model.of_class[decodes.rows], decodes.blocks]
    model.program.put(rows, decodes.now, measure[decodes.rows])
    model.program.put(out[:, :, None], source, -model.replica_limits.tokens_out)


def _add_other_by_block(model: _Relaxation, decodes: _DecodeColumns) -> None:
    """Add rows for the other quantity in each block: the least that an answer's exact quantity implies."""
    program, demand, unit = model.program, model.demand, _slots_per_memory(model)
    source, needs = _slots_used(model) if model.by_memory else _memory(model)
    largest, smallest = unit * demand.last_held, unit * demand.first_held
    least = _memory(model)[1] / largest if model.by_memory else _slots_used(model)[1] * smallest
    out = program.at_most(np.zeros(source.shape[:2]))
    rows = out[model.of_class[decodes.rows], decodes.blocks]
    program.put(rows, decodes.now, np.minimum(least, needs)[decodes.rows])
    program.put(out[:, :, None], source, -model.replica_limits.tokens_out)


def _slots_per_memory(model: _Relaxation) -> float:
    """Return the memory of a decode that holds one KV token, in units of a slot and the whole memory."""
    return model.setting.limits.running / model.setting.memory_tokens


def _add_totals(model: _Relaxation) -> None:
    """Add rows for the other quantity, over all blocks."""
    source, measure = _slots_used(model) if model.by_memory else _memory(model)
    total = model.program.at_most(np.zeros(len(source)))
    model.program.put(total[model.of_class], model.accepted, measure)
    model.program.put(total[:, None, None], source, -model.replica_limits.tokens_out)


def _memory(model: _Relaxation) -> tuple[Ints, Floats]:
    """Return the columns of memory held by decodes, and how much each answer needs."""
    return model.replica_limits.held, model.demand.held_sum / model.setting.memory_tokens


def _slots_used(model: _Relaxation) -> tuple[Ints, Floats]:
    """Return the columns of decodes, and how many each answer needs."""
    return model.replica_limits.participants, model.demand.decodes / model.setting.limits.running


def _add_ratios(model: _Relaxation) -> None:
    """Add rows: a decode holds at least its class's smallest context, and at most its largest."""
    program, replica_limits = model.program, model.replica_limits
    unit = _slots_per_memory(model)
    for number in range(len(replica_limits.held)):
        members = (model.of_class == number) & (model.demand.decodes > 0)
        if not members.any():
            continue
        few, many = (program.at_most(np.zeros(replica_limits.held.shape[1:])) for _ in range(2))
        program.put(
            few, replica_limits.participants[number], unit * float(model.demand.first_held[members].min())
        )
        program.put(few, replica_limits.held[number], -1.0)
        program.put(many, replica_limits.held[number], 1.0)
        program.put(
            many, replica_limits.participants[number], -unit * float(model.demand.last_held[members].max())
        )


def _add_residence(model: _Relaxation, decodes: _DecodeColumns) -> None:
    """Add rows for the memory that requests hold between their decodes.

    A request unfinished at a block's end has held its prompt since the first token's deadline. A finished one
    has held memory at least for the shortest duration of its decodes; `for_now` is that share, small enough
    to be covered by the former for a request that continues.

    Preemption frees memory: for every `gap_s` of a KV token, a token is recomputed, in that block or one
    within the gap.
    """
    program, demand, grid, setting = model.program, model.demand, model.grid, model.setting
    gap_s = float(demand.gap_s.max())
    preempted_blocks = ceil(gap_s / float(grid.blocks_s.min())) if gap_s < inf else MOST_BLOCKS_PREEMPTED + 1
    if preempted_blocks > MOST_BLOCKS_PREEMPTED:
        return
    begins_s, ends_s = grid.block_ends_s[decodes.blocks], grid.block_ends_s[decodes.blocks + 1]
    resident_s = np.clip(ends_s - np.maximum(begins_s, demand.due_s[decodes.rows]), 0.0, None)
    capacity = setting.replicas * setting.memory_tokens * grid.blocks_s
    share_of_memory = demand.prompt[decodes.rows] * resident_s / capacity[decodes.blocks]
    residence = program.at_most(np.ones(len(capacity)))
    program.put(residence[decodes.blocks], decodes.later, share_of_memory)
    for_now = _least_held(model)[decodes.rows] / capacity[decodes.blocks]
    program.put(
        residence[decodes.blocks],
        decodes.now,
        np.where(share_of_memory > 0, np.minimum(for_now, share_of_memory), for_now),
    )
    most_preempted = np.bincount(decodes.blocks, share_of_memory + for_now, len(capacity))
    preempted = program.columns(most_preempted)
    program.put(residence, preempted, -1.0)
    again_tokens = capacity / gap_s
    computed = program.at_most(np.zeros(len(capacity)))
    program.put(computed, preempted, 1.0)
    for lag in range(preempted_blocks + 1):
        blocks = np.arange(max(len(capacity) - lag, 0))
        again = program.columns(most_preempted[blocks])
        program.put(computed[blocks], again, -1.0)
        program.put(model.replica_limits.decode_tokens[blocks + lag], again, again_tokens[blocks])


def _least_held(model: _Relaxation) -> Floats:
    """Return KV token seconds of each answer if every draft were accepted in iterations of one decode."""
    demand, line = model.demand, model.replica_limits.roofline
    drafts = np.arange(model.replica_limits.drafted.shape[1])[:, None]
    alone_s = np.max(line.token_s * (1 + drafts) + line.spec_step_s * drafts + line.fixed_s, axis=1)
    token_s = float(np.min(alone_s / (1 + drafts[:, 0])))
    return token_s * (
        demand.held_sum if model.by_memory else (demand.first_held * demand.decodes).astype(np.float64)
    )


def _add_iteration_limits(model: _Relaxation, decodes: _DecodeColumns) -> None:
    """Add rows: no request generates more tokens in a block than one decode in every iteration does."""
    iteration_limits = model.program.at_most(np.zeros(len(decodes.rows)))
    model.program.put(iteration_limits, decodes.now, model.demand.decodes[decodes.rows])
    model.program.put(
        iteration_limits[:, None],
        model.replica_limits.drafted[decodes.blocks],
        -model.replica_limits.tokens_out,
    )


def _add_progress(model: _Relaxation, decodes: _DecodeColumns) -> None:
    """Add rows: no request falls behind its TPOT target, if it is judged by windows."""
    judged = np.flatnonzero(np.isfinite(model.demand.tpot_s[decodes.rows]))
    due_share = _due_share(model, decodes.rows[judged], decodes.blocks[judged])
    some = judged[(due_share > 0) & (due_share < 1)]
    behind = model.program.at_most(np.zeros(len(some)))
    model.program.put(behind, decodes.later[some], 1.0)
    model.program.put(
        behind, model.accepted[decodes.rows[some]], due_share[(due_share > 0) & (due_share < 1)] - 1.0
    )


def _due_share(model: _Relaxation, rows: Ints, blocks: Ints) -> Floats:
    """Return the share of an answer that is due by a block's end, less one window."""
    demand = model.demand
    since_due_s = model.grid.block_ends_s[blocks + 1] - demand.due_s[rows]
    thinking_s = demand.thinking[rows] * demand.tpot_s[rows]
    at_tpot = np.where(
        since_due_s < thinking_s,
        since_due_s / demand.tpot_s[rows],
        demand.thinking[rows] + (since_due_s - thinking_s) / demand.answer_tpot_s[rows],
    )
    return np.clip((at_tpot - WINDOW_TOKENS) / demand.decodes[rows], 0.0, 1.0)
