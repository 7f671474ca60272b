"""Chooses which candidates to admit if not all fit: the dynamic program of SLOs-Serve [§3.2.1, App. C].

Prefills are computed in the order of their deadlines: those of admitted requests, which are forced, and those
of candidates, which are optional. The state is the number of candidates chosen so far and the tightest TPOT
target among running requests. For each state the program stores the earliest time C at which the chosen
prefills are done (the paper's dual stores the remaining budget). Choosing a prefill moves C to

    C' = C + its seconds at the prefill rate of the state           feasible if C' + period <= deadline

and omitting it leaves C unchanged. The paper's state counts requests per TPOT class, because its decodes of
looser classes skip batches; here every decode has a token in every batch, so a count and the tightest target
suffice. With equal values and sufficient memory only the earliest C of a state matters. If values differ or
memory is scarce, both are stored with it: every set up to `EXACT_CANDIDATES`, and a beam beyond.

The program models batches as a fluid. `feasibility` checks its set by a batch plan.

A forced prefill constrains candidates up to its deadline, or up to the time at which it would be done without
candidates, whichever is later: a request that is late already is not delayed further.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from penstock_core.compilation.arrays import Bools, Floats, Ints
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, deadline_order
from penstock_core.forecast.job_columns import columns
from penstock_core.forecast.kv_forecast import UNKNOWN_DELAY_STEPS, forecast
from penstock_core.forecast.prefill_rate import PrefillRate, prefill_rate
from penstock_core.policies.slos_serve.workload import AdmittedSet
from penstock_core.timing.batch_length import ordinary_batch_s
from penstock_core.timing.time_model import ONE_DECODE, ONE_TOKEN, BatchWork, chunk_work

EXACT_CANDIDATES = 10
"""Number of candidates up to which every set is kept, so that the program is exact."""

BEAM = 64
"""Number of sets that are kept for more candidates than that."""


MOST_CANDIDATES = 32
"""Most candidates that the program considers, by deadline."""


class Prefill(NamedTuple):
    """One prefill.

    attention_s: part of its duration that is independent of the rate. candidate: its number; None if forced.
    tpot_class: index of its TPOT target.
    """

    due_s: float
    tokens: int
    attention_s: float
    candidate: int | None = None
    tpot_class: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """One instance of the dynamic program.

    start_s: when the engine is free. prefills: in order of deadline.
    period_s, tokens_s: prefill rates by number of chosen candidates (rows) and tightest TPOT class (columns);
        a rate of 0 is an infeasible state.
    tightest: tightest TPOT class that runs already.
    values: values of the candidates. claims: KV blocks of each candidate per bucket of steps. room: free
        blocks per
        bucket.
    """

    start_s: float
    prefills: Sequence[Prefill]
    period_s: Floats
    tokens_s: Floats
    tightest: int
    values: Sequence[float]
    claims: Ints
    room: Ints


class Sets(NamedTuple):
    """Sets of candidates that are still considered, one row each.

    chosen: number of candidates. tightest: tightest TPOT class that runs with them. members: candidates as
        bits. blocks: KV blocks per bucket that can be binding.
    """

    chosen: Ints
    tightest: Ints
    members: Ints
    value: Floats
    done_s: Floats
    blocks: Ints

    def rows(self, kept: Ints | Bools) -> "Sets":
        """Return some of the sets."""
        return Sets._make([column[kept] for column in self])

    def joined_with(self, more: "Sets") -> "Sets":
        """Return these sets and others."""
        return Sets._make([np.concatenate(both) for both in zip(self, more, strict=True)])


def propose(admitted: AdmittedSet, candidates: Sequence[Job], chosen: Sequence[Job] = ()) -> list[Job]:
    """Return the most valuable set of candidates (by deadline) beside those admitted and those chosen.

    Batches are modelled as a fluid, so a plan has to confirm the set.
    """
    among, forced = candidates[:MOST_CANDIDATES], [*admitted.jobs, *chosen]
    return [among[i] for i in best_set(program_of(admitted.view, forced, among))]


def best_set(program: Program) -> list[int]:
    """Return the most valuable set of candidates; of equal ones the one whose prefills end first."""
    candidates = len(program.values)
    binding = program.claims.sum(axis=0) > program.room
    claims, room = program.claims[:, binding], program.room[binding]
    most = BEAM if candidates > EXACT_CANDIDATES else 1 << EXACT_CANDIDATES
    sets = _empty_set(program, len(room))
    for prefill, alone_s in zip(program.prefills, without_candidates(program), strict=True):
        then_s = sets.done_s + _seconds(program.tokens_s[sets.chosen, sets.tightest], prefill)
        in_time = then_s + program.period_s[sets.chosen, sets.tightest] <= prefill.due_s
        if prefill.candidate is None:
            sets = sets._replace(done_s=then_s).rows(in_time | (then_s <= alone_s))
            continue
        with_it = Sets(
            sets.chosen + 1,
            np.minimum(sets.tightest, prefill.tpot_class),
            sets.members | (1 << prefill.candidate),
            sets.value + program.values[prefill.candidate],
            then_s,
            sets.blocks + claims[prefill.candidate],
        )
        able = in_time & (then_s < inf) & (program.tokens_s[with_it.chosen, with_it.tightest] > 0)
        sets = sets.joined_with(with_it.rows(able & (with_it.blocks <= room).all(axis=1)))
        if len(sets.value) > most:
            sets = sets.rows(_beam(sets, room, most))
    members = int(sets.members[np.lexsort((sets.done_s, -sets.value))[0]])
    return [i for i in range(candidates) if members >> i & 1]


def without_candidates(program: Program) -> list[float]:
    """Return when each prefill would be done if no candidate were chosen."""
    now_s, passed = program.start_s, []
    for prefill in program.prefills:
        if prefill.candidate is None:
            now_s += float(_seconds(program.tokens_s[0, program.tightest], prefill))
        passed.append(now_s)
    return passed


def _empty_set(program: Program, buckets: int) -> Sets:
    zero = np.zeros(1, np.int64)
    start_s = np.array([program.start_s])
    return Sets(zero, zero + program.tightest, zero, np.zeros(1), start_s, np.zeros((1, buckets), np.int64))


def _seconds(tokens_s: Floats, prefill: Prefill) -> Floats:
    """Return the duration at each of these prefill rates; infinite where decodes leave no time."""
    beside_s = np.full_like(tokens_s, inf)
    np.divide(prefill.tokens, tokens_s, out=beside_s, where=tokens_s > 0)
    return beside_s + prefill.attention_s


def _beam(sets: Sets, room: Ints, most: int) -> Ints:
    """Return, for every value, the set that is done first and the one with the fewest blocks, best first."""
    orders = [sets.done_s]
    if len(room):
        orders.append((sets.blocks / np.maximum(room, 1)).max(axis=1))
    kept = np.zeros(len(sets.value), np.bool_)
    kept[0] = True  # the empty set is always feasible
    for order in orders:
        rows = np.lexsort((order, -sets.value))
        value = sets.value[rows]
        first = np.concatenate(([True], value[1:] != value[:-1]))
        kept[rows[first][: most // (2 * len(orders))]] = True
    return np.flatnonzero(kept)


def program_of(view: ReplicaView, admitted: Sequence[Job], candidates: Sequence[Job]) -> Program:
    """Return the program that chooses among these candidates (by deadline) beside these admitted requests."""
    all_jobs, present = [*admitted, *candidates], len(admitted)
    jobs = columns(all_jobs)
    decode_s, shortest_s = view.model.seconds(ONE_DECODE), view.model.seconds(ONE_TOKEN)
    targets_s = np.where(jobs.tpot_s >= decode_s, jobs.tpot_s, inf)  # of tighter ones none can be met
    tightest_s = float(targets_s[:present].min(initial=inf))
    tightest_with_s = np.minimum(targets_s[present:], tightest_s)
    classes_s = sorted({*tightest_with_s.tolist(), tightest_s})
    context = int((jobs.size_tokens + jobs.output_tokens_left).sum())
    prefills = [_prefill(view, job) for job in sorted(admitted, key=deadline_order) if not job.decoding]
    class_of = np.searchsorted(classes_s, tightest_with_s).tolist()
    prefills += [_prefill(view, job, i, class_of[i]) for i, job in enumerate(candidates)]
    ordinary_s = ordinary_batch_s(shortest_s)
    rates = np.full((len(candidates) + 1, len(classes_s), 2), PrefillRate(inf, 0.0))
    for count in range(min(len(candidates), max(view.limits.running - present, 0)) + 1):
        decodes = BatchWork(present + count, context)
        rates[count] = [prefill_rate(view, decodes, tpot_s, ordinary_s) for tpot_s in classes_s]
    period_s, tokens_s = rates[..., 0], rates[..., 1]
    start_s = max(view.now_s, view.busy_until_s)
    waiting = ~jobs.decoding
    waiting[present:] = True
    steps = np.ceil((jobs.due_s - start_s) / period_s[0, 0])
    steps = np.where(np.isfinite(steps), np.clip(steps, 0, UNKNOWN_DELAY_STEPS), UNKNOWN_DELAY_STEPS)
    delay = np.where(waiting, steps, 0).astype(np.int64)
    future = forecast(all_jobs, view.kv, jobs.size_tokens, jobs.output_tokens_left, delay, present=present)
    blocks = future.blocks
    return Program(
        start_s,
        sorted(prefills, key=lambda prefill: prefill.due_s),
        period_s,
        tokens_s,
        len(classes_s) - 1,
        [job.request.value for job in candidates],
        blocks[present:],
        np.maximum(view.kv.total_blocks - blocks[:present].sum(axis=0), 0),
    )


def _prefill(view: ReplicaView, job: Job, candidate: int | None = None, tpot_class: int = 0) -> Prefill:
    attention = chunk_work(job.pending_tokens, job.computed_tokens)
    attention_s = view.model.scale * view.model.prefill_work_s * attention
    return Prefill(job.due_s, job.pending_tokens, attention_s, candidate, tpot_class)
