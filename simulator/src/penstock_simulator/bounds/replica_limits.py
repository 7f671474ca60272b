"""The limits of replicas in a period of time, as rows of a linear program: iterations, tokens, memory.

An iteration's work is counted in every period that it overlaps, by the share of its duration there. Then
within a block, over all its iterations:

    seconds     the sum of durations is at most replicas · length; the iterations with m drafter steps take at
                least token_s·tokens + (spec_step_s·m + fixed_s)·iterations, on every line of the roofline
    batches     tokens <= batch_tokens · iterations, and decodes <= running · iterations
    memory      KV tokens held by the batch's requests, summed over iterations, <= capacity · iterations
    speculation a decode with d draft tokens is in iterations of at least d drafter steps, computes d + 1
                tokens, and generates `tokens_expected(acceptance, d)`

and within a slot the line that holds for any mix of drafts. All rows are sums over iterations, so they also
hold for the mean over schedules, which is what random acceptance makes of one policy.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from penstock_core.compilation.arrays import Floats, Ints
from penstock_core.timing.speculation import tokens_expected

from penstock_simulator.bounds.bound_setting import BoundSetting
from penstock_simulator.bounds.linear_program import LinearProgram
from penstock_simulator.bounds.time_grid import TimeGrid


class Roofline(NamedTuple):
    """The time model's lines with scale and overhead applied, one element per line."""

    token_s: Floats
    spec_step_s: Floats
    fixed_s: Floats
    context_token_s: float
    prefill_work_s: float

    @property
    def shortest_s(self) -> float:
        """Duration of the shortest iteration."""
        return float(np.max(self.token_s + self.fixed_s))


@dataclass(frozen=True, slots=True)
class ReplicaLimits:
    """The columns and rows of a program that represent the replicas.

    iterations: columns by slot. drafted: the same by block and drafter steps.
    participants: columns by request class, block and draft length: decodes, as a share of the engine's slots.
    held: columns likewise: KV tokens that these hold, as a share of the engine's memory.
    slot_seconds: rows by line and slot. block_seconds: rows by block.
    tokens: rows by block, of all tokens. decode_tokens: rows by block, of decode tokens.
    memory: rows by block, in units of the engine's memory.
    tokens_out: tokens that a decode generates in an iteration, by draft length.
    """

    roofline: Roofline
    iterations: Ints
    drafted: Ints
    participants: Ints
    held: Ints
    slot_seconds: Ints
    block_seconds: Ints
    tokens: Ints
    decode_tokens: Ints
    memory: Ints
    tokens_out: Floats


class _Frame(NamedTuple):
    program: LinearProgram
    grid: TimeGrid
    setting: BoundSetting
    line: Roofline


def roofline_of(setting: BoundSetting) -> Roofline:
    """Return the roofline of the setting's time model."""
    model = setting.model
    return Roofline(
        token_s=model.scale * np.array([term.token_s for term in model.terms]),
        spec_step_s=model.scale * np.array([term.spec_step_s for term in model.terms]),
        fixed_s=model.scale * np.array([term.fixed_s + model.overhead_s for term in model.terms]),
        context_token_s=model.scale * model.context_token_s,
        prefill_work_s=model.scale * model.prefill_work_s,
    )


def add_replica_limits(
    program: LinearProgram, grid: TimeGrid, setting: BoundSetting, classes: int
) -> ReplicaLimits:
    """Add the replicas' limits to a program. classes: number of request classes."""
    frame = _Frame(program, grid, setting, roofline_of(setting))
    drafts = np.arange(setting.most_drafts + 1)
    most = setting.replicas * grid.blocks_s / frame.line.shortest_s
    most_drafted = np.broadcast_to(most[:, None], (len(most), len(drafts)))
    drafted = program.columns(most_drafted)
    iterations = program.columns(setting.replicas * grid.slots_s / frame.line.shortest_s)
    _add_equal_counts(frame, iterations, drafted)
    participants = program.columns(np.broadcast_to(most_drafted, (classes, *most_drafted.shape)))
    held = program.columns(np.broadcast_to(most_drafted, (classes, *most_drafted.shape)))
    block_seconds = program.at_most(setting.replicas * grid.blocks_s)
    program.put(block_seconds[None, :, None], held, frame.line.context_token_s * setting.memory_tokens)
    tokens = _add_durations(frame, drafted, block_seconds)
    slot_seconds, decode_tokens = _add_slots(frame, iterations, tokens)
    program.put(decode_tokens[None, :, None], participants, setting.limits.running * (1.0 + drafts))
    _add_nested(program, drafted, participants)
    return ReplicaLimits(
        roofline=frame.line,
        iterations=iterations,
        drafted=drafted,
        participants=participants,
        held=held,
        slot_seconds=slot_seconds,
        block_seconds=block_seconds,
        tokens=tokens,
        decode_tokens=decode_tokens,
        memory=_add_nested(program, drafted, held),
        tokens_out=np.array([tokens_expected(setting.acceptance, int(count)) for count in drafts]),
    )


def _add_equal_counts(frame: _Frame, iterations: Ints, drafted: Ints) -> None:
    """Add rows: a block's iterations are those of its slots."""
    same = frame.program.equal(np.zeros(len(drafted)))
    frame.program.put(same[frame.grid.block_of], iterations, 1.0)
    frame.program.put(same[:, None], drafted, -1.0)


def _add_durations(frame: _Frame, drafted: Ints, block_seconds: Ints) -> Ints:
    """Add rows for the durations of iterations. Returns the rows of each block's tokens."""
    program, line, batch_tokens = frame.program, frame.line, float(frame.setting.limits.batch_tokens)
    drafts = np.arange(drafted.shape[1])
    capacity_s = np.broadcast_to(frame.setting.replicas * frame.grid.blocks_s[:, None], drafted.shape)
    lasts = program.columns(capacity_s)
    tokens = program.columns(capacity_s / line.shortest_s * batch_tokens)
    for token_s, step_s, fixed_s in zip(line.token_s, line.spec_step_s, line.fixed_s, strict=True):
        rows = program.at_most(np.zeros(drafted.shape))
        program.put(rows, tokens, token_s)
        program.put(rows, drafted, step_s * drafts + fixed_s)
        program.put(rows, lasts, -1.0)
    full = program.at_most(np.zeros(drafted.shape))
    program.put(full, tokens, 1.0 / batch_tokens)
    program.put(full, drafted, -1.0)
    program.put(block_seconds[:, None], lasts, 1.0)
    all_tokens = program.at_most(np.zeros(len(drafted)))
    program.put(all_tokens[:, None], tokens, -1.0)
    return all_tokens


def _add_slots(frame: _Frame, iterations: Ints, tokens: Ints) -> tuple[Ints, Ints]:
    """Add rows for the seconds of slots, and for decodes in the slots of their block. Returns both."""
    program, line = frame.program, frame.line
    capacity_s = frame.setting.replicas * frame.grid.slots_s
    decoded = program.columns(capacity_s / line.shortest_s * frame.setting.limits.batch_tokens)
    slot_seconds = program.at_most(np.broadcast_to(capacity_s, (len(line.token_s), len(capacity_s))))
    program.put(slot_seconds, decoded[None, :], line.token_s[:, None])
    program.put(slot_seconds, iterations[None, :], line.fixed_s[:, None])
    decode_tokens = program.at_most(np.zeros(len(frame.grid.blocks_s)))
    program.put(decode_tokens[frame.grid.block_of], decoded, -1.0)
    program.put(tokens[frame.grid.block_of], decoded, 1.0)
    return slot_seconds, decode_tokens


def _add_nested(program: LinearProgram, drafted: Ints, used: Ints) -> Ints:
    """Add rows: decodes with >= d drafts are in iterations of >= d drafter steps. Returns those of d = 0."""
    rows = program.at_most(np.zeros(drafted.shape))
    for least in range(drafted.shape[1]):
        program.put(rows[None, :, None, least], used[:, :, least:], 1.0)
        program.put(rows[:, None, least], drafted[:, least:], -1.0)
    return rows[:, 0]
