"""Bounds of small workloads, as numbers, and the least work that they are computed from, by hand.

A bound that is too loose is still one, so that only its value shows that a limit no longer counts.
"""

from dataclasses import replace
from math import inf, sqrt

import numpy as np
import pytest
from penstock_core.domain.replica_view import Limits
from penstock_core.domain.slo import Judge, Slo, Tier
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import Term, TimeModel
from penstock_simulator.arrival import Arrival
from penstock_simulator.bounds import BoundSetting, bound
from penstock_simulator.bounds.capacity import ROOF_RPS, _crossing
from penstock_simulator.bounds.least_work import LeastWork, least_work
from penstock_simulator.bounds.linear_program import LinearProgram
from penstock_simulator.bounds.replica_limits import roofline_of
from penstock_simulator.bounds.time_grid import MOST_BLOCKS, spans, time_grid

from tests.simulator.test_bounds import LOADS, MODEL, SETTING, TIERS, chats, prompts

FEW_TOKENS = replace(SETTING, kv_tokens=1_600)
FEW_SLOTS = replace(SETTING, kv_tokens=400_000, limits=Limits(512, 8))
MORE_LOADS = {
    "chat, little memory": (FEW_TOKENS, ("chat",)),
    "strict, little memory": (FEW_TOKENS, ("strict",)),
    "thinking, little memory": (FEW_TOKENS, ("think",)),
    "whole, little memory": (FEW_TOKENS, ("whole",)),
    "thinking, few slots": (FEW_SLOTS, ("think",)),
    "speculating, few slots": (replace(FEW_SLOTS, speculation=Speculation(4, 0.7)), ("chat", "think")),
    "speculating, one slot": (
        replace(FEW_SLOTS, speculation=Speculation(4, 0.9), limits=Limits(512, 1)),
        ("chat", "think"),
    ),
}

SESSIONS_KEPT = {
    "chat, memory binds": 26.050467,
    "speculating": 23.823638,
    "strict, few slots": 22.573301,
    "thinking, memory ample": 29.192979,
    "every kind": 37.339562,
    "attention": 27.86502,
    "two replicas": 29.71407,
    "chat, little memory": 26.025184,
    "strict, little memory": 17.55227,
    "thinking, little memory": 27.636573,
    "whole, little memory": 25.873614,
    "thinking, few slots": 27.599991,
    "speculating, few slots": 27.391418,
    "speculating, one slot": 24.560180,
}
"""Of forty that arrive within a second or two."""


@pytest.mark.parametrize("load", SESSIONS_KEPT)
def test_a_bound_equals_the_recorded_one(load: str) -> None:
    setting, tiers = (LOADS | MORE_LOADS)[load]
    workload = list(chats(40, 40.0 * setting.replicas, 1, tiers))
    assert bound(workload, setting) * 40 == pytest.approx(SESSIONS_KEPT[load], abs=1e-4)


# Ten tokens of prompt take 1 ms more than a step's 10 ms, and 1 µs for each pair that attends.
PLAIN = BoundSetting(
    TimeModel("plain", (Term(100e-6, 10e-3),), prefill_work_s=2e-6),
    {
        "ttft": Tier("ttft", Slo(ttft_s=2.0)),
        "mean": Tier("mean", Slo(ttft_s=1.0, tpot_s=0.1)),
        "window": Tier("window", Slo(ttft_s=1.0, tpot_s=0.1, judge=Judge.WINDOW)),
        "max": Tier("max", Slo(ttft_s=1.0, tpot_s=0.1, e2e_s=1.5, judge=Judge.MAX)),
        "think": Tier("think", Slo(ttft_s=1.0, tpot_s=0.1, answer_tpot_s=0.3, judge=Judge.WINDOW)),
        "hasty": Tier("hasty", Slo(ttft_s=1.0, tpot_s=0.3, answer_tpot_s=0.1, judge=Judge.WINDOW)),
        "whole": Tier("whole", Slo(e2e_s=4.0)),
        "free": Tier("free", best_effort=True),
    },
    kv_tokens=1000,
)


def prefill_s(tokens: int) -> float:
    return 10e-3 + tokens * 100e-6 + tokens**2 * 1e-6


def work(*arrivals: Arrival, setting: BoundSetting = PLAIN) -> LeastWork:
    return least_work(arrivals, setting)


def one(tier: str, prompt: int = 20, output: int = 15, thinking: int = 0) -> LeastWork:
    return work(Arrival("a", 3.0, tier, prompt, output, thinking))


DEADLINES = {
    "ttft": (5.0, 5.0, 0),
    "mean": (4.0, 4.0 + 14 * 0.1, 14),
    "window": (4.0, 4.0 + 14 * 0.1, 14),
    "max": (4.0, 4.5, 14),
    "think": (4.0, 4.0 + 5 * 0.1 + 9 * 0.3 + 0.2, 14),
    "hasty": (4.0, 4.0 + 5 * 0.3 + 9 * 0.1, 14),
    "whole": (7.0, 7.0, 14),
}
"""Tier -> deadlines of first and last token, and tokens that count, after an arrival at 3 s."""


@pytest.mark.parametrize("tier", DEADLINES)
def test_deadlines_follow_from_the_targets(tier: str) -> None:
    demand, (due_s, end_s, decodes) = one(tier, thinking=5), DEADLINES[tier]
    assert (demand.release_s[0], demand.decode_from_s[0]) == (3.0, pytest.approx(3.0 + prefill_s(20)))
    assert (demand.due_s[0], demand.end_s[0]) == (pytest.approx(due_s), pytest.approx(end_s))
    assert demand.decodes[0] == decodes
    assert (demand.sessions, demand.unconstrained_sessions) == (1, 0)


@pytest.mark.parametrize(
    ("tier", "thinking", "targets"),
    [
        ("ttft", 0, (inf, inf)),
        ("mean", 14, (inf, inf)),
        ("window", 14, (0.1, 0.1)),
        ("max", 14, (0.1, 0.1)),
        ("think", 5, (0.1, 0.3)),
        ("whole", 14, (inf, inf)),
    ],
)
def test_windows_are_judged_by_their_targets(tier: str, thinking: int, targets: tuple[float, float]) -> None:
    demand = one(tier, thinking=5)
    assert (demand.tpot_s[0], demand.answer_tpot_s[0]) == targets
    assert demand.thinking[0] == thinking


@pytest.mark.parametrize(
    ("tier", "gap_s"), [("window", 1.0), ("max", 0.1), ("mean", 2.4), ("think", 3.0), ("whole", 4.0)]
)
def test_the_longest_gap_is_that_of_a_window_or_of_the_whole_answer(tier: str, gap_s: float) -> None:
    assert one(tier, output=15, thinking=5).gap_s[0] == pytest.approx(gap_s)


def test_memory_is_held_in_whole_blocks() -> None:
    demand = one("mean", prompt=20, output=15)
    assert (demand.first_held[0], demand.last_held[0]) == (32, 48)
    assert demand.held_sum[0] == 12 * 32 + 2 * 48, "with 21 to 32 tokens two blocks, with 33 and 34 three"
    full = one("mean", prompt=16, output=16)
    assert (full.first_held[0], full.last_held[0], full.held_sum[0]) == (32, 32, 15 * 32)


def test_requests_that_cannot_be_late_are_counted_separately() -> None:
    demand = work(
        Arrival("a", 0.0, "free", 10, 10),
        Arrival("b", 1.0, "mean", 10, 10),
        Arrival("c", 2.0, "free", 10, 10, 0, "s", 0),
        Arrival("d", 2.0, "free", 10, 10, 0, "s", 1),
        Arrival("e", 3.0, "ttft", 10, 10),
    )
    assert (demand.sessions, demand.unconstrained_sessions) == (2, 2)
    assert list(demand.owner) == [0, 1]
    assert list(demand.prompt) == [10, 10]


@pytest.mark.parametrize(("drafts", "steps"), [(None, 14), (Speculation(6, 0.5), 2)])
def test_a_stage_may_start_at_the_earliest_end_of_the_previous_ones(
    drafts: Speculation | None, steps: float
) -> None:
    stages = [
        Arrival(str(i), 3.0, tier, 20, 15, 0, "s", i) for i, tier in enumerate(["mean", "whole", "free"])
    ]
    demand = work(*reversed(stages), setting=replace(PLAIN, speculation=drafts))
    earliest_s = 3.0 + prefill_s(20) + steps * 10.1e-3
    assert list(demand.release_s) == [3.0, pytest.approx(earliest_s)]
    assert demand.decode_from_s[1] == pytest.approx(earliest_s + prefill_s(20))
    assert list(demand.end_s) == [pytest.approx(5.4), pytest.approx(9.4)], "late as the first may end"
    assert (list(demand.owner), demand.sessions) == ([0, 0], 1)


def test_a_setting_counts_whole_blocks_and_the_best_drafter() -> None:
    setting = replace(PLAIN, kv_tokens=1007, speculation=Speculation(3, 0.4, {"a": 0.2, "b": 0.6}))
    assert (setting.memory_tokens, setting.most_drafts, setting.acceptance) == (992, 3, 0.6)
    assert replace(setting, speculation=Speculation(3, 0.4)).acceptance == 0.4
    assert (PLAIN.most_drafts, PLAIN.acceptance) == (0, 0.0)


def test_a_roofline_has_the_models_scaled_lines() -> None:
    line = roofline_of(
        replace(
            SETTING,
            model=replace(MODEL, scale=2.0, overhead_s=1e-3, context_token_s=1e-6, prefill_work_s=3e-8),
        )
    )
    assert list(line.token_s) == pytest.approx([200e-6, 240e-6])
    assert list(line.spec_step_s) == pytest.approx([2e-3, 6e-3])
    assert list(line.fixed_s) == pytest.approx([42e-3, 12e-3])
    assert (line.context_token_s, line.prefill_work_s) == (2e-6, 6e-8)
    assert line.shortest_s == pytest.approx(42.2e-3)


def test_a_grid_has_equal_blocks_and_slots_that_end_at_arrivals_and_deadlines() -> None:
    arrivals = [Arrival("a", 0.0, "mean", 20, 31), Arrival("b", 1.5, "mean", 20, 31)]
    grid = time_grid(work(*arrivals))
    assert list(grid.block_ends_s) == pytest.approx(list(np.linspace(0.0, 5.5, 12))), "each eight blocks long"
    assert list(grid.blocks_s) == pytest.approx([0.5] * 11)
    assert list(grid.slot_ends_s) == pytest.approx(sorted({*grid.block_ends_s, 0.0, 1.0, 1.5, 2.5}))
    middles = grid.slot_ends_s[:-1] + grid.slots_s / 2
    assert list(grid.block_of) == [int(middle / 0.5) for middle in middles]


def test_a_grid_has_at_least_one_block_and_at_most_its_maximum() -> None:
    far = [Arrival("a", 0.0, "mean", 20, 2), Arrival("b", 10_000.0, "mean", 20, 2)]
    assert len(time_grid(work(*far)).blocks_s) == MOST_BLOCKS
    alone = time_grid(work(Arrival("a", 0.0, "mean", 20, 2)))
    assert len(alone.blocks_s) == 8


def test_a_row_spans_the_periods_that_it_overlaps() -> None:
    ends_s = np.array([0.0, 1.0, 2.0, 3.0])
    rows, periods = spans(ends_s, np.array([0.0, 0.5, 1.0, 2.5, 2.0]), np.array([1.0, 2.5, 1.0, 9.0, 3.0]))
    assert list(zip(rows, periods, strict=True)) == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 1), (3, 2), (4, 2)]


def test_a_program_is_solved_to_its_optimum() -> None:
    """x + 2y <= 4, x - y = 1, at most 3 of each: x = 2 and y = 1."""
    program = LinearProgram()
    x, y = program.columns([3.0], gain=3.0), program.columns([3.0], gain=2.0)
    upper, same = program.at_most([4.0]), program.equal([1.0])
    program.put(upper, x, 1.0)
    program.put(upper, y, 2.0)
    program.put(same, x, 1.0)
    program.put(same, y, -1.0)
    assert program.upper_bound() == pytest.approx(8.0, abs=1e-5)


class Falling:
    """A share that falls with the rate, past 0.9 at `crossing_rps`. It is asked a few times only."""

    def __init__(self, crossing_rps: float) -> None:
        self.crossing_rps = crossing_rps
        self.asked: list[float] = []

    def __call__(self, rate_rps: float) -> float:
        assert len(self.asked) < 40, "the search converges"
        self.asked.append(rate_rps)
        falling = 0.9 * sqrt(min(self.crossing_rps / rate_rps, 1.0))
        return falling + (0.05 if rate_rps <= self.crossing_rps else 0.0)


@pytest.mark.parametrize("start_rps", [1.0, 50.0, 900.0])
@pytest.mark.parametrize("crossing_rps", [3.0, 40.0, 400.0])
def test_a_crossing_is_bracketed_in_few_steps(start_rps: float, crossing_rps: float) -> None:
    share = Falling(crossing_rps)
    upper = _crossing(share, 0.9, start_rps, 1.01)
    assert crossing_rps <= upper <= crossing_rps * 1.01
    assert upper in share.asked


def test_a_share_at_the_level_is_below_the_crossing() -> None:
    requested: list[float] = []

    def share(rate_rps: float) -> float:
        assert len(requested) < 40, "the search converges"
        requested.append(rate_rps)
        return 1.0 if rate_rps <= 4.0 else 0.5

    assert 4.0 < _crossing(share, 1.0, 4.0, 1.05) <= 4.2


def test_a_level_that_is_never_crossed_is_an_error() -> None:
    requested: list[float] = []

    def share(rate_rps: float) -> float:
        assert len(requested) < 40, "the search ends at its highest rate"
        requested.append(rate_rps)
        return 1.0

    with pytest.raises(ValueError, match="above 1000"):
        _crossing(share, 0.9, 6.0, 1.01)
    assert _crossing(Falling(0.99 * ROOF_RPS), 0.9, ROOF_RPS, 1.01) <= ROOF_RPS


def test_a_prompt_needs_one_iteration_of_its_own_time() -> None:
    """No work fits into less than the shortest iteration."""
    tight = replace(SETTING, tiers=TIERS | {"first": Tier("first", Slo(ttft_s=0.0201))})
    assert bound(prompts(1), tight) == pytest.approx(1.0, abs=1e-6)
    tight = replace(SETTING, tiers=TIERS | {"first": Tier("first", Slo(ttft_s=0.01005))})
    assert bound(prompts(1), tight) == pytest.approx(0.5, abs=1e-6)
