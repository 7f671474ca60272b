"""The program's answer is the best set, by brute force over all of them."""

from functools import partial
from itertools import chain, combinations
from random import Random

import numpy as np
import pytest
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.domain.slo import Targets
from penstock_core.policies.slos_serve.selection import (
    Prefill,
    Program,
    best_set,
    program_of,
    without_candidates,
)
from penstock_core.timing.builtin_models import time_model

as_ints = partial(np.asarray, dtype=np.int64)


def instance(
    seed: int, new: int, *, equal: bool, crowded: bool, speed: float = 1.0, room: int = 0
) -> Program:
    """A program of `new` candidates among a few forced prefills. `room`: more blocks than there were."""
    random = Random(seed)
    targets_s = (0.05, 0.075, 0.1, float("inf"))
    load, slots = random.uniform(0.0, 0.9), random.choice((3, 100))
    count, target_s = np.arange(new + 1)[:, None], np.array(targets_s)[None, :]
    period_s = np.minimum(target_s, 0.06 + 0.001 * count) / speed
    tokens_s = np.maximum(9000 * speed * (1 - load - 0.004 * count) * (period_s / 0.06) ** 0.3, 0.0)
    tokens_s[slots + 1 :] = 0.0
    prefills = []
    for candidate in [None] * random.randint(0, 3) + list(range(new)):
        due_s = random.uniform(0.05, 1.5) if random.random() < 0.95 else float("inf")
        attention_s = random.uniform(0, 0.01) / speed
        tokens, tpot_class = random.randint(1, 2000), random.randrange(len(targets_s))
        prefills.append(Prefill(due_s, tokens, attention_s, candidate, tpot_class))
    prefills.sort(key=lambda prefill: prefill.due_s)
    claims = as_ints([[random.randint(0, 60) for _ in range(5)] for _ in range(new)]).reshape(new, 5)
    blocks = as_ints([random.randint(60, 200) if crowded else 10_000 for _ in range(5)])
    values = [1.0 if equal else float(random.randint(1, 5)) for _ in range(new)]
    start_s, tightest = random.uniform(0, 0.05), random.randrange(1, len(targets_s))
    return Program(start_s, prefills, period_s, tokens_s, tightest, values, claims, blocks + room)


def feasible_end_s(program: Program, chosen: frozenset[int], alone_s: list[float]) -> float | None:
    """When the last prefill of this set is done; None where something does not fit."""
    blocks = sum((program.claims[i] for i in chosen), as_ints([0] * len(program.room)))
    if any(blocks > program.room):
        return None
    at_s, count, tightest = program.start_s, 0, program.tightest
    for prefill, base_s in zip(program.prefills, alone_s, strict=True):
        if prefill.candidate is not None and prefill.candidate not in chosen:
            continue
        rate = program.tokens_s[count, tightest]
        at_s += prefill.attention_s + (prefill.tokens / rate if rate > 0 else float("inf"))
        in_time = at_s + program.period_s[count, tightest] <= prefill.due_s and np.isfinite(at_s)
        if not in_time and (prefill.candidate is not None or at_s > base_s):
            return None
        if prefill.candidate is not None:
            count, tightest = count + 1, min(tightest, prefill.tpot_class)
            if program.tokens_s[count, tightest] <= 0:
                return None
    return float(at_s)


def best_by_brute_force(program: Program) -> tuple[float, float]:
    alone_s = without_candidates(program)
    everyone = range(len(program.values))
    found = []
    for chosen in chain.from_iterable(combinations(everyone, size) for size in range(len(everyone) + 1)):
        end_s = feasible_end_s(program, frozenset(chosen), alone_s)
        if end_s is not None:
            found.append((sum(program.values[i] for i in chosen), -end_s))
    value, end_s = max(found)
    return value, -end_s


def worth(program: Program, chosen: list[int]) -> float:
    return sum(program.values[i] for i in chosen)


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("crowded", [True, False])
def test_the_chosen_set_has_the_value_of_the_best_by_brute_force(equal: bool, crowded: bool) -> None:
    for seed in range(700):
        program = instance(seed, new=seed % 7, equal=equal, crowded=crowded)
        chosen = best_set(program)
        value, end_s = best_by_brute_force(program)
        ends_at_s = feasible_end_s(program, frozenset(chosen), without_candidates(program))
        assert ends_at_s is not None, f"seed {seed}"
        assert worth(program, chosen) == value, f"seed {seed}"
        assert ends_at_s == pytest.approx(end_s) or not np.isfinite(end_s), f"seed {seed}"


@pytest.mark.parametrize("crowded", [True, False])
def test_ten_candidates_are_solved_exactly(crowded: bool) -> None:
    for seed in range(12):
        program = instance(seed, new=10, equal=not crowded, crowded=crowded)
        assert worth(program, best_set(program)) == best_by_brute_force(program)[0], f"seed {seed}"


@pytest.mark.parametrize("equal", [True, False])
def test_a_faster_engine_never_lowers_the_optimum(equal: bool) -> None:
    for seed in range(150):
        slow, fast = (instance(seed, 8, equal=equal, crowded=False, speed=speed) for speed in (1.0, 1.5))
        assert worth(fast, best_set(fast)) >= worth(slow, best_set(slow)), f"seed {seed}"


def test_more_memory_never_lowers_the_optimum() -> None:
    for seed in range(150):
        less, more = (instance(seed, 8, equal=False, crowded=True, room=room) for room in (0, 40))
        assert worth(more, best_set(more)) >= worth(less, best_set(less)), f"seed {seed}"


@pytest.mark.parametrize("crowded", [True, False])
def test_many_candidates_are_solved_within_the_beam_and_stay_feasible(crowded: bool) -> None:
    """Beyond the exact size: always feasible, and never far below what one after the other are worth."""
    for seed in range(40):
        program = instance(seed, new=32, equal=seed % 2 == 0, crowded=crowded)
        chosen, alone_s = best_set(program), without_candidates(program)
        assert feasible_end_s(program, frozenset(chosen), alone_s) is not None
        one_by_one: frozenset[int] = frozenset()
        for candidate in range(32):
            if feasible_end_s(program, one_by_one | {candidate}, alone_s) is not None:
                one_by_one |= {candidate}
        assert worth(program, chosen) >= 0.9 * worth(program, [*one_by_one]), f"seed {seed}"


MODEL = time_model("slos-serve-opt-6.7b-a100")


def asks(name: str, tpot_s: float | None, ttft_s: float = 1.0, value: float = 1.0) -> Job:
    return new_job(Request(name, "tier", 0.0, 400, 4096, Targets(ttft_s, tpot_s), value), 50, False)


def replica(*, slots: int = 256, blocks: int = 1000, busy_s: float = 0.0) -> ReplicaView:
    return ReplicaView(0.0, busy_s, (), (), KvCache(blocks, blocks, 16), Limits(running=slots), MODEL)


def test_the_program_has_the_replicas_state() -> None:
    decode = advance(asks("d", 0.075), 400, 1, 0.0)
    forced, tight, free = asks("w", 0.1, 0.5), asks("tight", 0.05, value=3.0), asks("free", None)
    program = program_of(replica(busy_s=0.02), [decode, forced], [tight, free])
    assert program.start_s == 0.02
    assert [prefill.candidate for prefill in program.prefills] == [None, 0, 1]
    assert [prefill.tpot_class for prefill in program.prefills[1:]] == [0, 1]
    assert (program.tightest, program.values) == (1, [3.0, 1.0])
    assert program.period_s[0].tolist() == sorted(program.period_s[0].tolist())
    assert (np.diff(program.tokens_s, axis=0) < 0).all(), "the more decode, the slower is prefill"
    assert best_set(program) == [0, 1]


def test_a_target_that_no_batch_meets_limits_no_request() -> None:
    program = program_of(replica(), [], [asks("hopeless", 0.001), asks("free", None)])
    assert program.period_s.shape == (3, 1)


def test_the_chosen_set_fits_the_free_slots_and_blocks() -> None:
    several = [asks(f"{i}", 0.1, 9.0) for i in range(4)]
    assert len(best_set(program_of(replica(slots=3), [asks("w", 0.1)], several))) == 2
    assert len(best_set(program_of(replica(slots=1), several[:2], several[2:]))) == 0
    assert len(best_set(program_of(replica(blocks=2 * 29), [], several))) == 2


def test_admitted_requests_that_need_more_than_all_blocks_leave_no_block() -> None:
    program = program_of(replica(blocks=5), [asks("w", 0.1)], [asks("a", 0.1)])
    assert program.room.min() == 0
