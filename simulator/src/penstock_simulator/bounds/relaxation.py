"""What accepting a request takes out of the machine, as rows of the same linear program.

A request that meets its targets leaves these traces in every schedule, whoever made it:

    prompt     all its tokens computed between arrival and the first token's deadline, on every line of the
               roofline, holding memory; and at least one whole iteration within that time
    answer     every token after the first computed before the last one's deadline, in an iteration whose
               memory it shares with the others, holding its context
    residence  between first and last token it holds its prompt's memory all the time, unless it is set aside
               for a while, no longer than its pace allows, and then computed again
    pace       where the machine's speed binds before its memory: at most one turn in every iteration, and
               the progress that windows of ten tokens demand

The program accepts shares of requests and lets every trace be spread at will within its limits. Decoding is
counted in shares of one measure, exact in every block: KV tokens held, summed over tokens, where memory
binds; else tokens. The other measure is exact in sum, and in every block within what its class allows.
"""

from dataclasses import dataclass
from math import ceil, inf, isfinite

import numpy as np
from numpy.typing import NDArray
from penstock_core.domain.token_window import WINDOW_TOKENS

from penstock_simulator.bounds.demand import Demand
from penstock_simulator.bounds.linear_program import LinearProgram
from penstock_simulator.bounds.machine import Machine, add_machine
from penstock_simulator.bounds.setting import Setting
from penstock_simulator.bounds.time_grid import TimeGrid, spans, time_grid

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CLASSES = 4
"""Of requests, by the memory that a decode of theirs holds: enough to draft more for the larger ones."""

MOST_BLOCKS_ASIDE = 20
"""Where a request may be set aside for more blocks than this, its residence is not counted."""


@dataclass(frozen=True, slots=True)
class _Model:
    """The program, what it is about, and the column of each request's acceptance and class."""

    program: LinearProgram
    demand: Demand
    setting: Setting
    grid: TimeGrid
    machine: Machine
    accepted: Ints
    of_class: Ints
    by_memory: bool


@dataclass(frozen=True, slots=True)
class _Decodes:
    """Columns of decoding: a share of a request's in a block each.

    rows, blocks: whose and where. now: done in this block. later: done after it.
    """

    rows: Ints
    blocks: Ints
    now: Ints
    later: Ints


def most_sessions(demand: Demand, setting: Setting) -> float:
    """No schedule meets the targets of more sessions, on average over the luck of speculation."""
    if not demand.sessions:
        return float(demand.carefree)
    grid, program, of_class = time_grid(demand), LinearProgram(), _classes(demand)
    accepted = program.columns(_can_fit(demand, setting), gain=1.0)[demand.owner]
    machine = add_machine(program, grid, setting, int(of_class.max()) + 1)
    by_memory = _memory_binds(demand, setting)
    model = _Model(program, demand, setting, grid, machine, accepted, of_class, by_memory)
    _add_prompts(model)
    if demand.decodes.any():
        decodes = _add_decodes(model)
        _add_answers(model, decodes)
        _add_least(model, decodes)
        _add_ratios(model)
        _add_totals(model)
        _add_residence(model, decodes)
        if not by_memory:
            _add_turns(model, decodes)
            _add_progress(model, decodes)
    return min(program.upper_bound(), float(demand.sessions)) + demand.carefree


def _can_fit(demand: Demand, setting: Setting) -> Floats:
    """1 for each session whose requests fit into memory, else 0."""
    fits = np.ones(demand.sessions)
    np.minimum.at(fits, demand.owner, (demand.last_held <= setting.memory_tokens).astype(np.float64))
    return fits


def _mean_held(demand: Demand) -> Floats:
    return demand.held_sum / np.maximum(demand.decodes, 1)


def _classes(demand: Demand) -> Ints:
    """Equal parts of the requests by the memory that their decodes hold on average."""
    held = _mean_held(demand)
    borders = np.unique(np.quantile(held, np.arange(1, CLASSES) / CLASSES))
    return np.unique(np.searchsorted(borders, held), return_inverse=True)[1]


def _memory_binds(demand: Demand, setting: Setting) -> bool:
    """Whether memory is full before iterations get too long for the tightest pace."""
    pace_s = float(demand.pace_s.min())
    if not isfinite(pace_s) or not demand.decodes.any():
        return True
    at_pace = min(setting.model.tokens_within(pace_s), setting.limits.running)
    in_memory = setting.memory_tokens / float(np.average(_mean_held(demand), weights=demand.decodes))
    return in_memory < at_pace


def _add_prompts(model: _Model) -> None:
    program, demand, grid, machine = model.program, model.demand, model.grid, model.machine
    line = machine.roofline
    rows, slots = spans(grid.slot_ends_s, demand.release_s, demand.due_s)
    blocks, tokens = grid.block_of[slots], demand.prompt[rows].astype(np.float64)
    share = _shares(model, rows)
    program.put(machine.slot_seconds[:, slots], share[None, :], line.token_s[:, None] * tokens)
    program.put(machine.tokens[blocks], share, tokens)
    program.put(machine.memory[blocks], share, tokens / model.setting.memory_tokens)
    if line.prefill_work_s > 0:
        attended = _shares(model, rows)
        attention_s = line.prefill_work_s * tokens**2 / 2
        program.put(machine.slot_seconds[:, slots], attended[None, :], attention_s[None, :])
        program.put(machine.block_seconds[blocks], attended, attention_s)
    own_iteration = program.at_most(np.zeros(len(model.accepted)))
    program.put(own_iteration, model.accepted, 1.0)
    program.put(own_iteration[rows], machine.iterations[slots], -1.0)


def _shares(model: _Model, rows: Ints) -> Ints:
    """Columns, one for each of these rows, that add up to how much of the row's request is accepted."""
    share = model.program.columns(np.ones(len(rows)))
    whole = model.program.equal(np.zeros(len(model.accepted)))
    model.program.put(whole[rows], share, 1.0)
    some = np.unique(rows)
    model.program.put(whole[some], model.accepted[some], -1.0)
    return share


def _add_decodes(model: _Model) -> _Decodes:
    """Shares of each answer by block, and what is left of it after each block."""
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
    return _Decodes(rows, blocks, now, later)


def _add_answers(model: _Model, decodes: _Decodes) -> None:
    """What is decoded in a block comes out of its iterations, in the measure that is exact."""
    source, measure = _memory(model) if model.by_memory else _seats(model)
    out = model.program.at_most(np.zeros(source.shape[:2]))
    rows = out[model.of_class[decodes.rows], decodes.blocks]
    model.program.put(rows, decodes.now, measure[decodes.rows])
    model.program.put(out[:, :, None], source, -model.machine.bring_out)


def _add_least(model: _Model, decodes: _Decodes) -> None:
    """The other measure in a block, where the first stands for as little of it as it can in each answer."""
    program, demand, unit = model.program, model.demand, _seats_of_memory(model)
    source, needs = _seats(model) if model.by_memory else _memory(model)
    largest, smallest = unit * demand.last_held, unit * demand.first_held
    least = _memory(model)[1] / largest if model.by_memory else _seats(model)[1] * smallest
    out = program.at_most(np.zeros(source.shape[:2]))
    rows = out[model.of_class[decodes.rows], decodes.blocks]
    program.put(rows, decodes.now, np.minimum(least, needs)[decodes.rows])
    program.put(out[:, :, None], source, -model.machine.bring_out)


def _seats_of_memory(model: _Model) -> float:
    """Memory of a decode that holds one KV token, where a seat and the whole memory are the units."""
    return model.setting.limits.running / model.setting.memory_tokens


def _add_totals(model: _Model) -> None:
    """The other measure, over all blocks."""
    source, measure = _seats(model) if model.by_memory else _memory(model)
    total = model.program.at_most(np.zeros(len(source)))
    model.program.put(total[model.of_class], model.accepted, measure)
    model.program.put(total[:, None, None], source, -model.machine.bring_out)


def _memory(model: _Model) -> tuple[Ints, Floats]:
    """Columns of memory held by decodes, and how much of it each answer needs."""
    return model.machine.held, model.demand.held_sum / model.setting.memory_tokens


def _seats(model: _Model) -> tuple[Ints, Floats]:
    """Columns of decodes, and how many each answer needs."""
    return model.machine.takers, model.demand.decodes / model.setting.limits.running


def _add_ratios(model: _Model) -> None:
    """A decode holds no less than its class's smallest, and no more than its largest."""
    program, machine = model.program, model.machine
    unit = _seats_of_memory(model)
    for number in range(len(machine.held)):
        members = (model.of_class == number) & (model.demand.decodes > 0)
        if not members.any():
            continue
        few, many = (program.at_most(np.zeros(machine.held.shape[1:])) for _ in range(2))
        program.put(few, machine.takers[number], unit * float(model.demand.first_held[members].min()))
        program.put(few, machine.held[number], -1.0)
        program.put(many, machine.held[number], 1.0)
        program.put(many, machine.takers[number], -unit * float(model.demand.last_held[members].max()))


def _add_residence(model: _Model, decodes: _Decodes) -> None:
    """Whoever is unfinished at a block's end has held its prompt since its first token was due.

    And whoever is not has held memory for as long as its tokens took at the least. `for_now` is the latter's
    share, small enough to be covered by the former where a request goes on.

    Memory is freed meanwhile by setting requests aside: for every `gap_s` of a KV token, a token is computed
    again, in that block or one that the gap reaches.
    """
    program, demand, grid, setting = model.program, model.demand, model.grid, model.setting
    gap_s = float(demand.gap_s.max())
    aside_blocks = ceil(gap_s / float(grid.blocks_s.min())) if gap_s < inf else MOST_BLOCKS_ASIDE + 1
    if aside_blocks > MOST_BLOCKS_ASIDE:
        return
    begins_s, ends_s = grid.block_ends_s[decodes.blocks], grid.block_ends_s[decodes.blocks + 1]
    resident_s = np.clip(ends_s - np.maximum(begins_s, demand.due_s[decodes.rows]), 0.0, None)
    room = setting.replicas * setting.memory_tokens * grid.blocks_s
    of_room = demand.prompt[decodes.rows] * resident_s / room[decodes.blocks]
    residents = program.at_most(np.ones(len(room)))
    program.put(residents[decodes.blocks], decodes.later, of_room)
    for_now = _least_held(model)[decodes.rows] / room[decodes.blocks]
    program.put(
        residents[decodes.blocks], decodes.now, np.where(of_room > 0, np.minimum(for_now, of_room), for_now)
    )
    most_aside = np.bincount(decodes.blocks, of_room + for_now, len(room))
    aside = program.columns(most_aside)
    program.put(residents, aside, -1.0)
    again_tokens = room / gap_s
    computed = program.at_most(np.zeros(len(room)))
    program.put(computed, aside, 1.0)
    for lag in range(aside_blocks + 1):
        blocks = np.arange(max(len(room) - lag, 0))
        again = program.columns(most_aside[blocks])
        program.put(computed[blocks], again, -1.0)
        program.put(model.machine.decode_tokens[blocks + lag], again, again_tokens[blocks])


def _least_held(model: _Model) -> Floats:
    """KV tokens times seconds of each answer, were every draft accepted in iterations of one decode."""
    demand, line = model.demand, model.machine.roofline
    drafts = np.arange(model.machine.drafted.shape[1])[:, None]
    alone_s = np.max(line.token_s * (1 + drafts) + line.spec_step_s * drafts + line.fixed_s, axis=1)
    token_s = float(np.min(alone_s / (1 + drafts[:, 0])))
    return token_s * (
        demand.held_sum if model.by_memory else (demand.first_held * demand.decodes).astype(np.float64)
    )


def _add_turns(model: _Model, decodes: _Decodes) -> None:
    """No request brings out more tokens in a block than one in every iteration does."""
    turns = model.program.at_most(np.zeros(len(decodes.rows)))
    model.program.put(turns, decodes.now, model.demand.decodes[decodes.rows])
    model.program.put(turns[:, None], model.machine.drafted[decodes.blocks], -model.machine.bring_out)


def _add_progress(model: _Model, decodes: _Decodes) -> None:
    """No request falls behind its pace, where it is judged on its way."""
    judged = np.flatnonzero(np.isfinite(model.demand.pace_s[decodes.rows]))
    owed = _owed(model, decodes.rows[judged], decodes.blocks[judged])
    some = judged[(owed > 0) & (owed < 1)]
    behind = model.program.at_most(np.zeros(len(some)))
    model.program.put(behind, decodes.later[some], 1.0)
    model.program.put(behind, model.accepted[decodes.rows[some]], owed[(owed > 0) & (owed < 1)] - 1.0)


def _owed(model: _Model, rows: Ints, blocks: Ints) -> Floats:
    """Share of an answer that is due by a block's end, less one window."""
    demand = model.demand
    since_due_s = model.grid.block_ends_s[blocks + 1] - demand.due_s[rows]
    thinking_s = demand.thought[rows] * demand.pace_s[rows]
    at_pace = np.where(
        since_due_s < thinking_s,
        since_due_s / demand.pace_s[rows],
        demand.thought[rows] + (since_due_s - thinking_s) / demand.answer_pace_s[rows],
    )
    return np.clip((at_pace - WINDOW_TOKENS) / demand.decodes[rows], 0.0, 1.0)
