"""The search for a capacity, with outcomes whose capacity is known."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import floor
from pathlib import Path
from typing import Any

import pytest
from penstock_cli.capacity.confidence import wilson
from penstock_cli.capacity.question import Question, SearchConditions
from penstock_cli.capacity.report import answer_of, as_json
from penstock_cli.capacity.run import SearchProgress, run_all
from penstock_cli.capacity.sampled_question import NO_MISS_LIMIT, RateProbe
from penstock_cli.capacity.search import (
    GROWTH,
    MOST_STEPS,
    CapacityResult,
    UnboundedCapacity,
    capacity,
    capacity_above,
    guess_rps,
    result_of,
)
from penstock_cli.capacity.setting import ALL_BUDGETS_TOKENS, PolicySetting, grid_of, laps_of
from penstock_cli.capacity.trial import Trial, TrialResult, arrivals_of, fleet_of, run_trial, trial_of
from penstock_cli.capacity.trial_log import TrialLog
from penstock_cli.failure import Failure
from penstock_core.policies import UnknownPolicy
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.scenarios import scenario
from penstock_simulator.simulation import LengthKnowledge
from penstock_simulator.simulation.disaggregated.distserve import Ratio

REQUESTS = 905

World = Callable[[Trial], float]
"""The share of requests that miss in a trial."""


def question(policy: str = "slos-serve", **changed: Any) -> Question:
    conditions = {
        "replicas": 1,
        "attainment": 0.9,
        "lengths": LengthKnowledge.KNOWN,
        "truth": TruthKind.EXACT,
        "seeds": 1,
        "order": "round-robin",
    }
    return Question("coder", policy, SearchConditions(**{**conditions, **changed}))


def wall(capacity_rps: Callable[[Trial], float]) -> World:
    """Misses grow with the rate, and pass a tenth at the capacity."""
    return lambda trial: min(0.1 * (trial.rate_rps / (capacity_rps(trial) or 1e-9)) ** 4, 1.0)


class Engine:
    """Runs trials of a world, and remembers which."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ran: list[Trial] = []

    def __call__(self, trial: Trial) -> TrialResult:
        self.ran.append(trial)
        requests = REQUESTS * laps_of(trial.policy, trial.replicas)
        missed = floor(requests * self.world(trial))
        complete = missed <= trial.most_misses
        return TrialResult(requests, missed if complete else trial.most_misses + 1, complete)


def found(
    requested: Question, world: World, path: Path | None = None, before: RateProbe | None = None
) -> tuple[CapacityResult, Sequence[Trial]]:
    engine = Engine(world)
    with TrialLog(path) as memory:
        (answer,) = run_all([capacity(requested, before)], engine, 1, memory, SearchProgress())
    return answer, engine.ran


@pytest.mark.parametrize("true_rps", [0.05, 1.0, 4.154, 40.0])
def test_the_capacity_is_found_within_two_percent(true_rps: float) -> None:
    answer, ran = found(question(), wall(lambda trial: true_rps))
    assert answer.low_rps <= true_rps * 1.003 < answer.high_rps * 1.006
    assert answer.high_rps <= answer.low_rps * 1.0205
    assert len(ran) <= 24


def test_a_search_takes_the_documented_steps() -> None:
    _, ran = found(question(seeds=2), wall(lambda trial: 1.0))
    start = guess_rps(scenario("coder"))
    assert start == 4.154
    bracket, narrow = [start, 2.769, 1.846, 1.231, 0.8207], [1.005, 0.9082, 0.9554]
    again, finer, ahead = [1.051], [1.002, 0.9784, 0.9901], [1.04, 1.089, 1.188, 1.386]
    first = [trial.rate_rps for trial in ran if trial.seed == 0]
    assert first == [*bracket, *narrow, *again, *finer, *ahead]
    second = [trial.rate_rps for trial in ran if trial.seed == 1]
    assert second == [narrow[-1], *again, *finer, ahead[0]]


def test_a_trial_ends_once_its_misses_decide_alone_or_with_other_samples() -> None:
    _, ran = found(question(seeds=2), wall(lambda trial: 1.0))
    limits = {(trial.rate_rps, trial.seed): trial.most_misses for trial in ran}
    assert limits[4.154, 0] == 90  # a tenth of 905, while the first sample is the only one
    assert limits[1.002, 0] == 90 + 27  # and 3 % of it, which the second sample may make up for
    missed = floor(REQUESTS * 0.1 * 1.002**4)
    assert limits[1.002, 1] == 2 * REQUESTS // 10 - missed


def test_from_an_earlier_result_the_bracket_widens_from_two_percent() -> None:
    beside = RateProbe(grid_of("slos-serve", scenario("coder")).start, 0.8)
    _, ran = found(question(seeds=2), wall(lambda trial: 1.0), before=beside)
    assert [trial.rate_rps for trial in ran if trial.seed == 0][:6] == [
        0.8,
        0.816,
        0.849,
        0.919,
        1.077,
        0.9949,
    ]


def above(policy: str, rate_rps: float, world: World) -> tuple[CapacityResult, Sequence[Trial]]:
    engine = Engine(world)
    with TrialLog(None) as log:
        search = capacity_above(question(policy), rate_rps)
        (answer,) = run_all([search], engine, 1, log, SearchProgress())
    return answer, engine.ran


def test_a_capacity_below_a_rate_is_not_searched() -> None:
    answer, ran = above("vllm", 1.2, wall(lambda trial: 1.0))
    assert (answer.low_rps, answer.high_rps, answer.requests) == (0.0, 1.2, REQUESTS)
    assert [(trial.batch_tokens, trial.rate_rps) for trial in ran] == [
        (tokens, 1.2) for tokens in ALL_BUDGETS_TOKENS
    ]


def test_a_capacity_above_a_rate_is_that_of_a_whole_search() -> None:
    def best_at_2048(trial: Trial) -> float:
        return 1.5 if trial.batch_tokens == 2048 else 1.0

    answer, _ = above("vllm", 1.2, wall(best_at_2048))
    assert answer.setting.batch_tokens == 2048
    assert answer.low_rps <= 1.5 * 1.003 < answer.high_rps * 1.006


def test_a_search_that_ended_without_a_rate_starts_again() -> None:
    beside_none = RateProbe(PolicySetting(1024), 0.0)
    assert next(capacity(question("vllm"), beside_none)) == next(capacity(question("vllm")))


@pytest.mark.parametrize("before_rps", [0.05, 0.97, 1.0, 1.3, 20.0])
def test_a_search_starts_at_the_earlier_result_and_finds_the_same(before_rps: float) -> None:
    best = {512: 0.9, 1024: 1.0, 2048: 1.5, 4096: 1.46}
    world = wall(lambda trial: best.get(trial.batch_tokens, 0.1))
    _, from_afar = found(question("vllm"), world)
    answer, _ = found(question("vllm"), world, before=RateProbe(PolicySetting(1024), before_rps))
    assert answer.setting.batch_tokens == 2048
    assert answer.low_rps == pytest.approx(1.5, rel=0.02)
    again, ran = found(question("vllm"), world, before=RateProbe(answer.setting, answer.low_rps))
    assert again.low_rps == pytest.approx(answer.low_rps, rel=0.02)
    assert len(ran) < len(from_afar) - 4


def test_a_setting_that_is_no_longer_tried_is_not_a_start() -> None:
    answer, _ = found(question("vllm"), wall(lambda trial: 1.0), before=RateProbe(PolicySetting(1000), 1.0))
    assert answer.low_rps == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("policy", ["slos-serve", "vllm-spec", "distserve", "orca"])
@pytest.mark.parametrize("true_rps", [1.0, 0.0])
def test_a_row_reads_back_as_its_result(policy: str, true_rps: float) -> None:
    answer, _ = found(question(policy), wall(lambda trial: true_rps))
    answer = replace(answer, promoted=17 if true_rps else None)
    (row,) = as_json([answer])
    assert answer_of(row) == answer


def test_a_policy_is_shown_at_its_best_setting() -> None:
    best = {128: 0.2, 256: 0.4, 512: 0.9, 1024: 1.0, 2048: 1.5, 4096: 1.46, 8192: 1.2}
    answer, _ = found(question("vllm"), wall(lambda trial: best[trial.batch_tokens]))
    assert answer.setting.batch_tokens == 2048
    assert answer.low_rps == pytest.approx(1.5, rel=0.02)


def test_distserve_is_shown_at_its_best_ratio_per_gpu() -> None:
    best = {"1:1": 1.0, "2:1": 0.4, "1:2": 1.2}
    answer, ran = found(question("distserve"), wall(lambda trial: best[str(trial.ratio)]))
    assert str(answer.setting.ratio) == "1:2"
    assert answer.low_rps == pytest.approx(1.2, rel=0.03)
    assert {str(trial.ratio) for trial in ran} == set(best)


def test_orca_is_tuned_over_its_slots() -> None:
    best = {8: 1.0, 16: 1.3, 32: 0.9, 64: 0.9}
    answer, _ = found(question("orca"), wall(lambda trial: best[trial.slots or 0]))
    assert answer.setting.slots == 16
    assert answer.low_rps == pytest.approx(1.3, rel=0.03)
    assert (
        fleet_of(trial_of(question("orca"), answer.setting, 1.0, 0, 3), scenario("coder")).limits.running
        == 16
    )


def test_distserve_is_simulated_in_groups_of_gpus() -> None:
    """At a rate for each GPU, and under load for as long as one of them would be."""
    trial = trial_of(question("distserve", replicas=2), PolicySetting(2048, 0, Ratio(1, 2)), 50.0, 0, 3)
    coming = arrivals_of(trial, scenario("coder"))
    assert len(coming) == 6 * REQUESTS
    assert coming[-1].arrival_s == pytest.approx(6 * REQUESTS / (6 * 50.0), rel=0.05)
    assert run_trial(trial) == TrialResult(6 * REQUESTS, 4, complete=False)


def test_rounds_of_tuning_are_the_same_on_every_machine() -> None:
    world = wall(lambda trial: {8: 1.0, 16: 1.3, 32: 0.9, 64: 0.9}[trial.slots or 0])
    _, ran = found(question("orca"), world)
    start, better = (2048, 32), (2048, 16)
    bracketed = [4.154, 2.769, 1.846, 1.231, 0.8207, 1.005, 0.9082, 0.8633]
    compared = [(512, 32), (8192, 32), (2048, 8), (2048, 16), (2048, 64)]
    rejected = [(512, 16), (8192, 16), (2048, 32)]
    assert [((trial.batch_tokens, trial.slots), trial.rate_rps) for trial in ran] == [
        *((start, rate_rps) for rate_rps in bracketed),
        *((other, 0.9496) for other in compared),
        *((better, rate_rps) for rate_rps in (1.149, 1.39, 1.264)),
        *((other, 1.39) for other in ((2048, 8), *rejected)),
        *((better, rate_rps) for rate_rps in (1.326, 1.295, 1.31)),
        *((other, 1.321) for other in (*rejected[:2], (2048, 8), (2048, 32), (2048, 64))),
        *((better, rate_rps) for rate_rps in (1.36, 1.425, 1.554, 1.813)),
    ]


def test_drafts_are_tuned_with_the_budget() -> None:
    def true_rps(trial: Trial) -> float:
        return {0: 9.0, 2: 1.0, 3: 1.2, 4: 1.3}[trial.drafts] * (1.5 if trial.batch_tokens == 512 else 1.0)

    answer, ran = found(question("vllm-spec"), wall(true_rps))
    assert (answer.setting.batch_tokens, answer.setting.drafts) == (512, 4)
    assert answer.low_rps == pytest.approx(1.95, rel=0.02)
    assert all(trial.drafts > 0 and trial.policy == "vllm" for trial in ran)


def test_a_setting_that_fails_at_the_champions_rate_is_dropped_for_one_trial_a_round() -> None:
    _, ran = found(question("vllm"), wall(lambda trial: 1.5 if trial.batch_tokens == 1024 else 0.5))
    tried = Counter(trial.batch_tokens for trial in ran)
    assert {tried[tokens] for tokens in (128, 256, 512, 2048, 4096, 8192)} == {2}


@pytest.mark.parametrize("tokens", [128, 2048])
def test_a_setting_that_is_little_better_is_found_in_the_second_round(tokens: int) -> None:
    better = {1024: 1.5, tokens: 1.58}
    answer, _ = found(question("vllm"), wall(lambda trial: better.get(trial.batch_tokens, 1.0)))
    assert answer.setting.batch_tokens == tokens
    assert answer.low_rps == pytest.approx(1.58, rel=0.02)


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_rate_that_attains_beyond_one_that_does_not_is_found(seeds: int) -> None:
    steady = wall(lambda trial: 1.0)

    def lucky_again(trial: Trial) -> float:
        return 0.05 if 1.17 <= trial.rate_rps <= 1.25 else steady(trial)

    beside = RateProbe(grid_of("slos-serve", scenario("coder")).start, 1.0)
    answer, _ = found(question(seeds=seeds), lucky_again, before=beside)
    assert answer.low_rps == pytest.approx(1.25, rel=0.02) and answer.low_rps <= 1.25
    assert answer.low_rps < answer.high_rps <= answer.low_rps * 1.0205


def test_one_sample_decides_alone_only_if_it_is_certain() -> None:
    _, ran = found(question(seeds=3), wall(lambda trial: 1.0))
    later = [trial.rate_rps for trial in ran if trial.seed > 0]
    assert later
    assert max(later) < 1.1 and min(later) > 0.85


def test_a_complete_trial_of_the_bound_is_used_despite_misses() -> None:
    world = wall(lambda trial: 4.0)

    def bound(trial: Trial) -> TrialResult:
        return TrialResult(REQUESTS, floor(REQUESTS * world(trial)), complete=True)

    with TrialLog(None) as memory:
        (answer,) = run_all([capacity(question("oracle"))], bound, 1, memory, SearchProgress())
    assert answer.low_rps <= 4.0 < answer.high_rps


def test_all_samples_count_together() -> None:
    answer, _ = found(question(seeds=3), wall(lambda trial: (0.95, 1.0, 1.05)[trial.seed]))
    assert answer.low_rps == pytest.approx(1.0, rel=0.025)
    assert answer.requests == 3 * REQUESTS
    assert answer.missed <= 0.1 * answer.requests


def test_a_rate_that_only_the_first_sample_attains_is_rejected() -> None:
    answer, _ = found(question(seeds=3), wall(lambda trial: 2.0 if trial.seed == 0 else 1.0))
    assert answer.missed <= 0.1 * answer.requests
    assert 1.0 <= answer.low_rps <= 1.25


def test_capacity_is_zero_if_no_rate_attains() -> None:
    answer, _ = found(question(), lambda trial: 0.5)
    assert answer.low_rps == 0.0


def test_if_no_rate_attains_in_all_samples_the_search_has_no_rate() -> None:
    """The first alone is sure that it attains."""
    answer, ran = found(question(seeds=2), wall(lambda trial: 0.0 if trial.seed else 1.0))
    assert answer.low_rps == 0.0
    confirmed = [trial.rate_rps for trial in ran if trial.seed == 1 and trial.most_misses == NO_MISS_LIMIT]
    assert confirmed[-1] == pytest.approx(confirmed[0] / GROWTH**MOST_STEPS, rel=0.03)


def test_a_bracket_of_two_percent_is_not_narrowed() -> None:
    beside = RateProbe(grid_of("slos-serve", scenario("coder")).start, 1.0)
    answer, ran = found(question(), wall(lambda trial: 1.01), before=beside)
    assert [trial.rate_rps for trial in ran] == [1.0, 1.02, 1.05, 1.1, 1.2, 1.4]
    assert (answer.low_rps, answer.high_rps) == (1.0, 1.02)


def test_a_rate_over_the_misses_of_all_samples_is_not_run_on_the_others() -> None:
    """With a target of 99.9 % the first sample alone is never sure of itself."""
    asked = question(seeds=2, attainment=0.999)
    _, ran = found(asked, lambda trial: 0.02 * trial.rate_rps**4)
    assert all(trial.most_misses >= 0 for trial in ran)
    first = {trial.rate_rps: floor(REQUESTS * 0.02 * trial.rate_rps**4) for trial in ran if trial.seed == 0}
    others = {trial.rate_rps for trial in ran if trial.seed == 1}
    assert others
    assert all(first[rate_rps] <= 1 for rate_rps in others)


def test_a_search_fails_if_every_rate_attains() -> None:
    with pytest.raises(UnboundedCapacity, match=r"coder, slos-serve: .* requests/s still attain"):
        found(question(), lambda trial: 0.0)


def test_a_search_stops_at_the_highest_rate() -> None:
    search = capacity(question(), RateProbe(PolicySetting(8192, 10), 10.0), most_rps=12.0)
    trials = next(search)
    tried = []
    with pytest.raises(UnboundedCapacity) as unbounded:
        while True:
            tried.append(trials[0].rate_rps)
            trials = search.send([TrialResult(REQUESTS, 0, complete=True)] * len(trials))
    assert tried[0] == 10.0
    assert tried[-2] < 12.0 <= tried[-1] < 14.0
    assert unbounded.value.probe == RateProbe(PolicySetting(8192, 10), tried[-1])


def test_the_result_adds_up_its_complete_trials() -> None:
    tallies = [TrialResult(100, 5, True, promoted=2, prompt_tokens=50, cached_tokens=20, admitted=80)]
    asked, probe = question(), RateProbe(PolicySetting(512), 3.0)
    found = result_of(asked, probe, [*tallies, tallies[0]._replace(admitted_missed=4, imbalance=1.5)])
    assert (found.low_rps, found.high_rps, found.requests, found.missed, found.promoted) == (3, 3, 200, 10, 4)
    assert (found.cached_share, found.admitted_attainment, found.imbalance) == (0.4, 1 - 4 / 160, 1.5)


def test_a_stopped_search_continues(tmp_path: Path) -> None:
    path, world = tmp_path / "memory.jsonl", wall(lambda trial: 1.0)
    whole, ran = found(question("vllm"), world, path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:10]) + lines[10][:20])  # cut off in the middle of a line
    again, ran_again = found(question("vllm"), world, path)
    assert again == whole
    assert len(lines) == len(ran)
    assert ran_again == ran[10:]
    assert found(question("vllm"), world, path)[1] == []


def test_trials_recorded_under_other_conditions_are_not_used(tmp_path: Path) -> None:
    path, world = tmp_path / "memory.jsonl", wall(lambda trial: 1.0)
    found(question(), world, path)
    assert len(found(question(lengths=LengthKnowledge.PREDICTED), world, path)[1]) > 5


def test_a_longer_trial_replaces_a_shorter_one() -> None:
    requested = Trial("coder", "vllm", 512, 0, 1, "round-robin", "known", "exact", 1.0, 0, most_misses=100)
    shorter, longer = replace(requested, most_misses=50), replace(requested, most_misses=150)
    with TrialLog(None) as memory:
        memory.record(requested, TrialResult(REQUESTS, 101, complete=False))
        assert memory.lookup(shorter) == TrialResult(REQUESTS, 51, complete=False)
        assert memory.lookup(longer) is None
        memory.record(longer, TrialResult(REQUESTS, 120, complete=True))
        assert memory.lookup(requested) == TrialResult(REQUESTS, 101, complete=False)
        assert memory.lookup(longer) == TrialResult(REQUESTS, 120, complete=True)


def test_an_invalid_log_of_trials_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text('[\n{"scenario": "coder"}\n]\n')
    with pytest.raises(Failure, match=r"--resume .*table\.json: line 1 is not a trial result") as error:
        found(question(), wall(lambda trial: 1.0), path)
    assert error.value.exit_code == 2


def test_parallel_and_sequential_searches_agree() -> None:
    world = wall(lambda trial: 1.0 + trial.batch_tokens / 8192)
    questions = [question("vllm"), question("sarathi"), question("slos-serve")]
    with TrialLog(None) as memory:
        together = run_all([capacity(q) for q in questions], Engine(world), 1, memory, SearchProgress())
    assert together == [found(q, world)[0] for q in questions]


def test_every_policy_has_its_settings() -> None:
    coder, toolllm = scenario("coder"), scenario("toolllm")
    assert grid_of("slos-serve", coder).single
    assert not any(
        grid_of(name, coder).single for name in ("vllm", "vllm-spec", "annealing-spec", "distserve")
    )
    assert grid_of("slos-serve", coder).drafts == (10,)
    assert grid_of("vllm", coder).drafts == (0,)
    assert grid_of("vllm-spec", coder).drafts == (2, 3, 4)
    assert grid_of("vllm-spec", toolllm).drafts == (0,)
    assert grid_of("annealing-spec", coder).budgets_tokens == (512, 2048, 8192)
    assert grid_of("orca", coder).slots == (8, 16, 32, 64)
    assert grid_of("vllm", coder).budgets_tokens == (128, 256, 512, 1024, 2048, 4096, 8192)
    assert grid_of("slos-serve", coder).budgets_tokens == (coder.limits.batch_tokens,)
    for name in ("nonsense", "slos-serve-spec"):
        with pytest.raises(UnknownPolicy):
            grid_of(name, coder)


def test_a_grid_has_only_the_settings_of_its_axes() -> None:
    grid = grid_of("orca-spec", scenario("coder"))
    inside = PolicySetting(2048, 3, None, 16)
    assert grid.has(inside) and grid.has(grid.start)
    for outside in (
        replace(inside, batch_tokens=4096),
        replace(inside, drafts=0),
        replace(inside, ratio=Ratio(1, 1)),
        replace(inside, slots=None),
    ):
        assert not grid.has(outside)


def test_a_search_starts_in_the_middle_of_every_axis() -> None:
    assert grid_of("vllm-spec", scenario("coder")).start == PolicySetting(1024, 3)
    assert grid_of("orca", scenario("coder")).start == PolicySetting(2048, 0, None, 32)
    assert str(grid_of("distserve", scenario("coder")).start.ratio) == "1:2"


def test_a_setting_is_named_by_its_values_that_differ_from_the_default() -> None:
    assert str(PolicySetting(512)) == "512 tokens a step"
    assert str(PolicySetting(512, 3, Ratio(1, 2), 16)) == "512 tokens a step, 3 drafts, GPUs 1:2, 16 slots"


def test_a_split_fleet_repeats_the_trace_for_the_gpus_of_its_largest_group() -> None:
    assert (laps_of("vllm", 2), laps_of("distserve", 2)) == (2, 6)


def test_the_error_of_an_unknown_policy_lists_those_that_can_be_searched() -> None:
    with pytest.raises(UnknownPolicy, match=r"vllm.*distserve, oracle, vllm-spec, sarathi-spec"):
        grid_of("nonsense", scenario("coder"))


def test_wilsons_interval_equals_the_published_one() -> None:
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998, Table I
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
