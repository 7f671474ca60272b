"""A replica's snapshot agrees with its planner."""

from dataclasses import astuple, replace
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.domain.slo import Targets
from penstock_core.forecast.snapshot import Snapshot, is_valid, snapshot
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import Term, TimeModel

MODEL = TimeModel("test", (Term(1e-4, 0.020),))
"""20 ms a batch and a tenth of a millisecond a token, so an ordinary batch has 604 tokens."""

ORDINARY_S = 4 * 0.0201


def prefill(name: str, tokens: int = 400, due_s: float = 10.0, best_effort: bool = False) -> Job:
    return new_job(Request(name, "chat", 0.0, tokens, 4096, Targets(due_s, 0.1)), 50, best_effort)


def decode(name: str, tokens: int = 100, left: int = 50, tpot_s: float | None = 0.1) -> Job:
    job = new_job(Request(name, "chat", 0.0, tokens, 4096, Targets(1.0, tpot_s)), left + 1, False)
    return advance(job, tokens, 1, 0.0)


def view(
    *running: Job, waiting: tuple[Job, ...] = (), busy_s: float = 0.0, blocks: int = 1000
) -> ReplicaView:
    free = blocks - sum(-(-job.computed_tokens // 16) for job in running)
    return ReplicaView(0.0, busy_s, running, waiting, KvCache(blocks, free, 16), Limits(), MODEL)


def test_an_empty_replica_has_no_load_and_free_memory() -> None:
    idle = snapshot(view())
    assert (idle.running, idle.waiting, idle.work_s, idle.prefill_wait_s, idle.step_s) == (0, 0, 0, 0, 0)
    assert (idle.prefill_slack_s, idle.tightest_tpot_s) == (inf, inf)
    assert idle.kv_tokens_headroom == idle.kv_tokens_total == 16000
    assert idle.prefill_tokens_s == pytest.approx(604 / ORDINARY_S)


def test_a_fast_engine_is_forecast_with_its_planners_short_batches() -> None:
    fast = replace(view(), model=TimeModel("fast", (Term(1e-5, 0.00199),)))
    assert snapshot(fast).prefill_tokens_s == pytest.approx((0.016 - 0.00199) / 1e-5 / 0.016)


def test_a_snapshot_counts_requests_and_tokens() -> None:
    output = snapshot(view(decode("a"), waiting=(prefill("b"), prefill("c", 40, best_effort=True))))
    assert (output.running, output.waiting, output.best_effort) == (1, 2, 1)
    assert output.prefill_tokens_left == 440
    assert output.kv_tokens_free == output.kv_tokens_total - 7 * 16


def test_a_new_request_waits_for_the_batch_in_progress_and_the_queue() -> None:
    output = snapshot(view(waiting=(prefill("a", 399), prefill("b", 399)), busy_s=0.5))
    assert output.prefill_wait_s == pytest.approx(0.5 + 2 * 399 * ORDINARY_S / 602)


def test_prefill_slack_is_that_of_the_most_urgent_prompt() -> None:
    easy = snapshot(view(waiting=(prefill("a", 399, due_s=9.0), prefill("b", 399, due_s=8.0))))
    tight = snapshot(view(waiting=(prefill("a", 399, due_s=9.0), prefill("b", 399, due_s=0.3))))
    assert easy.prefill_slack_s == pytest.approx(8.0 - ORDINARY_S - 399 * ORDINARY_S / 602)
    assert tight.prefill_slack_s == pytest.approx(0.3 - ORDINARY_S - 399 * ORDINARY_S / 602)
    assert snapshot(view(waiting=(prefill("a", due_s=0.01),))).prefill_slack_s == 0.0


def test_best_effort_is_preempted() -> None:
    alone = snapshot(view(decode("a")))
    flooded = snapshot(view(decode("a"), waiting=tuple(prefill(f"b{i}", best_effort=True) for i in range(9))))
    assert flooded.prefill_wait_s == alone.prefill_wait_s
    assert flooded.kv_tokens_headroom == alone.kv_tokens_headroom
    assert flooded.work_s > alone.work_s


def test_decodes_slow_prefill_down() -> None:
    few, many = (snapshot(view(*[decode(f"d{i}") for i in range(count)])) for count in (10, 100))
    assert many.prefill_tokens_s < few.prefill_tokens_s
    assert many.step_s == pytest.approx(0.030) and few.step_s == pytest.approx(0.021)


def test_a_tight_tpot_bounds_the_batch() -> None:
    loose, tight = (snapshot(view(decode("a", tpot_s=tpot_s))) for tpot_s in (0.1, 0.030))
    assert (loose.tightest_tpot_s, tight.tightest_tpot_s) == (0.1, 0.030)
    assert tight.prefill_tokens_s < loose.prefill_tokens_s / 2
    assert snapshot(view(decode("a", tpot_s=0.001))).tightest_tpot_s == inf  # no replica could meet that one


def test_decodes_that_leave_no_tokens_stop_prefill() -> None:
    crowd = [decode(f"d{i}", tpot_s=0.025) for i in range(60)]
    output = snapshot(view(*crowd, waiting=(prefill("a"),)))
    assert (output.prefill_tokens_s, output.prefill_wait_s, output.prefill_slack_s) == (0.0, inf, 0.0)
    assert output.kv_tokens_headroom > 0


def test_speculation_lets_batches_be_longer() -> None:
    tight = view(*[decode(f"d{i}", tpot_s=0.030) for i in range(20)])
    drafting = replace(tight, speculation=Speculation(4, 0.7))
    useless = replace(tight, speculation=Speculation(4, 0.0))
    assert snapshot(drafting).prefill_tokens_s > snapshot(tight).prefill_tokens_s
    assert snapshot(useless).prefill_tokens_s == snapshot(tight).prefill_tokens_s


def test_headroom_is_at_the_future_peak() -> None:
    """One ends soon and frees its blocks before the other has grown."""
    output = snapshot(view(decode("a", tokens=160, left=8), decode("b", tokens=160, left=320)))
    peak_now, peak_then = 11 + 11, 30
    assert output.kv_tokens_headroom == (1000 - max(peak_now, peak_then)) * 16


def test_a_full_cache_has_no_headroom() -> None:
    assert snapshot(view(decode("a", tokens=160, left=320), blocks=20)).kv_tokens_headroom == 0


def test_long_prompts_pay_for_their_attention() -> None:
    attending = replace(MODEL, prefill_work_s=1e-8)
    plain = view(waiting=(prefill("a", 4000),))
    output = snapshot(replace(plain, model=attending))
    assert output.prefill_wait_s == pytest.approx(snapshot(plain).prefill_wait_s + 1e-8 * 4000 * 2000)


jobs = st.builds(
    lambda i, tokens, waits, best: (
        prefill(f"p{i}", tokens, best_effort=best) if waits else decode(f"d{i}", tokens)
    ),
    st.integers(),
    st.integers(1, 3000),
    st.booleans(),
    st.booleans(),
)


@given(st.lists(jobs, max_size=12), jobs)
def test_more_work_never_lowers_the_reported_load(there: list[Job], another: Job) -> None:
    before, after = (snapshot(_of(some)) for some in (there, [*there, another]))
    assert after.work_s >= before.work_s
    assert after.prefill_wait_s >= before.prefill_wait_s
    assert after.prefill_slack_s <= before.prefill_slack_s
    assert after.kv_tokens_headroom <= before.kv_tokens_headroom
    assert after.prefill_tokens_s <= before.prefill_tokens_s


def _of(some: list[Job]) -> ReplicaView:
    return view(
        *[job for job in some if job.decoding], waiting=tuple(job for job in some if not job.decoding)
    )


@given(st.lists(jobs, max_size=6), st.floats(0.0, 2.0))
def test_a_snapshot_does_not_depend_on_the_clock(there: list[Job], busy_s: float) -> None:
    def at(now_s: float) -> Snapshot:
        moved = [
            job._replace(due_s=job.due_s + now_s, anchor=job.anchor and job.anchor._replace(at_s=now_s))
            for job in there
        ]
        return snapshot(replace(_of(moved), now_s=now_s, busy_until_s=now_s + busy_s))

    assert astuple(at(1024.0)) == pytest.approx(astuple(at(0.0)))


def test_work_is_every_remaining_token_times_the_marginal_cost_of_a_token() -> None:
    """A decode with 50 to come, one of them under way, and a prompt of 400 with its answer of 50."""
    output = snapshot(view(decode("a", left=50), waiting=(prefill("b", 400),), busy_s=0.5))
    assert output.work_s == pytest.approx(0.5 + 1e-4 * (50 + 400 + 49))


def test_a_tpot_that_an_engine_can_just_meet_counts() -> None:
    one_s = MODEL.prefill_seconds(1)
    assert snapshot(view(decode("a", tpot_s=one_s))).tightest_tpot_s == one_s
    assert snapshot(view(decode("a", tpot_s=one_s - 1e-9))).tightest_tpot_s == inf


def test_headroom_covers_a_prompt_that_starts_after_the_queue() -> None:
    """It starts within 50 periods and has 50 tokens to come: its 13 blocks fit beside the 17 others."""
    output = snapshot(
        view(decode("a", tokens=160, left=100), waiting=(prefill("b", 150),), busy_s=50 * ORDINARY_S)
    )
    assert 50 <= output.prefill_wait_s / ORDINARY_S < 53
    assert output.kv_tokens_headroom == (1000 - 17 - 13) * 16


def test_a_replica_without_a_snapshot_counts_as_idle() -> None:
    output = Snapshot()
    assert (output.running, output.waiting, output.best_effort, output.prefill_tokens_left) == (0, 0, 0, 0)
    assert (output.kv_tokens_free, output.kv_tokens_total, output.kv_tokens_headroom) == (0, 0, 0)
    assert (output.work_s, output.prefill_wait_s, output.step_s) == (0.0, 0.0, 0.0)
    assert (output.prefill_slack_s, output.prefill_tokens_s, output.tightest_tpot_s) == (inf, inf, inf)


DURATIONS_AND_RATES = (
    "work_s",
    "prefill_wait_s",
    "prefill_slack_s",
    "prefill_tokens_s",
    "step_s",
    "tightest_tpot_s",
)


@pytest.mark.parametrize("field", DURATIONS_AND_RATES)
@pytest.mark.parametrize("value", [nan, -1.0, -inf])
def test_a_snapshot_with_a_negative_time_or_none_is_invalid(field: str, value: float) -> None:
    assert is_valid(Snapshot())
    assert is_valid(_with(field, inf)) and is_valid(_with(field, 0.0))
    assert not is_valid(_with(field, value))


def _with(field: str, value: float) -> Snapshot:
    changed: dict[str, Any] = {field: value}
    return replace(Snapshot(), **changed)
