"""The program's answer is the best subset, by brute force over all of them."""

from functools import partial
from itertools import chain, combinations
from random import Random

import numpy as np
import pytest
from penstock_core.forecast.decode_load import Load, Pacing, rates, work_s
from penstock_core.policies.slos_serve.dynamic_program import Item, Program, all_possible, solve, without
from penstock_core.policies.slos_serve.tpot_classes import MOST_CLASSES, class_of, kept_paces_s, states
from penstock_core.timing.time_model import Term, TimeModel, chunk_work

as_ints = partial(np.asarray, dtype=np.int64)
PACES_S = (0.05, 0.075, 0.1, float("inf"))


def model(random: Random, speed: float = 1.0) -> TimeModel:
    terms = (Term(70e-6, random.uniform(-0.004, 0.02)), Term(40e-6, random.uniform(0.005, 0.03)))
    return TimeModel("drawn", terms, 8e-8, 3e-9, 0.002, 1 / speed)


def instance(
    seed: int, new: int, *, equal: bool, crowded: bool, speed: float = 1.0, room: int = 0
) -> Program:
    """A program of `new` newcomers among a few forced prefills. `room` is more blocks than there were."""
    random = Random(seed)
    drawn = model(random, speed)
    paces = [random.choice(PACES_S) for _ in range(new)]
    kept = kept_paces_s([*paces, 0.05])
    classes = class_of(paces, kept)
    running = [random.randint(0, 30) for _ in kept]
    counts = np.bincount(classes, minlength=len(kept)).tolist()
    space = states(kept, running, counts, random.random() < 0.5)
    load = Load(random.randint(0, 30_000), 2000, random.choice((256, 8192)))
    at = rates(drawn, Pacing(), load, space.decode_tokens, space.tightest_pace_s)
    items = []
    for newcomer in [None] * random.randint(0, 3) + list(range(new)):
        tokens = random.randint(1, 2000)
        stride = 0 if newcomer is None else space.strides[int(classes[newcomer])]
        due_s = random.uniform(0.05, 1.5) if random.random() < 0.95 else float("inf")
        items.append(Item(due_s, tokens, work_s(drawn, tokens, chunk_work(tokens, 0)), newcomer, stride))
    items.sort(key=lambda item: item.due_s)
    claims = as_ints([[random.randint(0, 60) for _ in range(5)] for _ in range(new)]).reshape(new, 5)
    blocks = as_ints([random.randint(60, 200) if crowded else 10_000 for _ in range(5)])
    allowed = at.fits & (space.newcomers <= random.choice((3, 100)))
    values = [1.0 if equal else float(random.randint(1, 5)) for _ in range(new)]
    return Program(random.uniform(0, 0.05), items, at, allowed, values, claims, blocks + room)


def feasible_end_s(program: Program, taken: frozenset[int], alone_s: list[float]) -> float | None:
    """When the last prefill of this subset is done; None where something does not fit."""
    blocks = sum((program.claims[i] for i in taken), as_ints([0] * len(program.room)))
    if any(blocks > program.room):
        return None
    at_s, state, at = program.start_s, 0, program.at
    for item, base_s in zip(program.items, alone_s, strict=True):
        if item.newcomer is not None and item.newcomer not in taken:
            continue
        slowest_s = at.per_token[state] * item.tokens
        for line, work in zip(at.per_second, item.lines_s, strict=True):
            slowest_s = max(slowest_s, line[state] * work)
        at_s += slowest_s
        in_time = at_s + at.period_s[state] <= item.due_s and np.isfinite(at_s)
        if not in_time and (item.newcomer is not None or at_s > base_s):
            return None
        if item.newcomer is not None:
            state += item.stride
            if not program.allowed[state]:
                return None
    return float(at_s)


def best_by_brute_force(program: Program) -> tuple[float, float]:
    alone_s = without(program)
    newcomers = range(len(program.values))
    found = []
    for subset in chain.from_iterable(combinations(newcomers, size) for size in range(len(newcomers) + 1)):
        end_s = feasible_end_s(program, frozenset(subset), alone_s)
        if end_s is not None:
            found.append((sum(program.values[i] for i in subset), -end_s))
    value, end_s = max(found)
    return value, -end_s


def worth(program: Program, taken: frozenset[int]) -> float:
    return sum(program.values[i] for i in taken)


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("crowded", [True, False])
def test_the_answer_is_worth_what_the_best_subset_is(equal: bool, crowded: bool) -> None:
    for seed in range(700):
        program = instance(seed, new=seed % 7, equal=equal, crowded=crowded)
        taken = solve(program)
        value, end_s = best_by_brute_force(program)
        ends_at_s = feasible_end_s(program, taken, without(program))
        assert ends_at_s is not None, f"seed {seed}"
        assert worth(program, taken) == value, f"seed {seed}"
        assert ends_at_s == pytest.approx(end_s) or not np.isfinite(end_s), f"seed {seed}"


@pytest.mark.parametrize("crowded", [True, False])
def test_ten_newcomers_are_solved_exactly(crowded: bool) -> None:
    for seed in range(12):
        program = instance(seed, new=10, equal=not crowded, crowded=crowded)
        assert worth(program, solve(program)) == best_by_brute_force(program)[0], f"seed {seed}"


def test_everyone_is_possible_where_carrying_that_out_is() -> None:
    for seed in range(300):
        program = instance(seed, new=5, equal=True, crowded=seed % 2 == 0)
        everyone = frozenset(range(5))
        feasible = feasible_end_s(program, everyone, without(program)) is not None
        assert all_possible(program, without(program)) == feasible, f"seed {seed}"


@pytest.mark.parametrize("equal", [True, False])
def test_a_faster_engine_never_lowers_the_optimum(equal: bool) -> None:
    for seed in range(150):
        slow, fast = (instance(seed, 8, equal=equal, crowded=False, speed=speed) for speed in (1.0, 1.5))
        assert worth(fast, solve(fast)) >= worth(slow, solve(slow)), f"seed {seed}"


def test_more_memory_never_lowers_the_optimum() -> None:
    for seed in range(150):
        less, more = (instance(seed, 8, equal=False, crowded=True, room=room) for room in (0, 40))
        assert worth(more, solve(more)) >= worth(less, solve(less)), f"seed {seed}"


@pytest.mark.parametrize("crowded", [True, False])
def test_many_newcomers_are_solved_within_the_beam_and_stay_feasible(crowded: bool) -> None:
    """Beyond the exact size: always feasible, and never far below what the first ten alone are worth."""
    for seed in range(40):
        program = instance(seed, new=32, equal=seed % 2 == 0, crowded=crowded)
        taken = solve(program)
        assert feasible_end_s(program, taken, without(program)) is not None
        one_by_one: frozenset[int] = frozenset()
        for newcomer in range(32):
            if feasible_end_s(program, one_by_one | {newcomer}, without(program)) is not None:
                one_by_one |= {newcomer}
        assert worth(program, taken) >= 0.9 * worth(program, one_by_one), f"seed {seed}"


def test_paces_are_rounded_down_to_a_few_classes_and_the_tightest_is_kept() -> None:
    paces_s = [0.03, 0.05, 0.051, 0.09, 0.1, 0.3, float("inf")]
    kept = kept_paces_s(paces_s)
    rounded = [kept[i] for i in class_of(paces_s, kept)]
    assert len(kept) == MOST_CLASSES
    assert rounded[0] == 0.03
    assert all(less <= pace for less, pace in zip(rounded, paces_s, strict=True))


def test_loose_decodes_cost_less_only_where_they_may_wait() -> None:
    waits, serves = (states((0.05, 0.1), (2, 9), (0, 0), may_wait) for may_wait in (True, False))
    assert waits.decode_tokens.tolist() == [2 + 5]
    assert serves.decode_tokens.tolist() == [11]
