from itertools import count

import pytest
from penstock_core.domain.replica_view import KvCache, Limits
from penstock_core.domain.request import Job, Request, new_job
from penstock_core.domain.slo import Targets
from penstock_core.forecast.overdue import Signs, Where
from penstock_core.forecast.snapshot import snapshot
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import BatchWork, Term, TimeModel
from penstock_proto.telemetry_pb2 import Drafting, StepReport
from penstock_sidecar.mirror.replica_mirror import ReplicaMirror
from penstock_sidecar.mirror.reported_job import FOREIGN_TIER

MODEL = TimeModel("test", (Term(0.0001, 0.01),))
Row = tuple[str, int, int] | tuple[str, int, int, bool]
numbers = count(1)


def job(id: str, prompt: int = 100, out: int = 50, best_effort: bool = False) -> Job:
    targets = Targets(ttft_s=1.0, tpot_s=0.1)
    return new_job(Request(id, "chat", 0.0, prompt, 500, targets), out, best_effort)


def mirror(longer: int = 400, speculation: Speculation | None = None) -> ReplicaMirror:
    return ReplicaMirror(KvCache(1000, 1000, 16), Limits(), lambda _: longer, 2.0, speculation)


def report(running: list[Row], queued: list[Row] = [], **more: float) -> StepReport:  # noqa: B006
    rows = [*running, *queued]
    fields: dict[str, float] = {"kv_blocks_total": 1000, "kv_blocks_free": 900, "block_tokens": 16, **more}
    return StepReport(
        sequence=next(numbers),
        running=len(running),
        request_ids=[row[0] for row in rows],
        computed_tokens=[row[1] for row in rows],
        generated_tokens=[row[2] for row in rows],
        best_effort=[row[3] if len(row) > 3 else False for row in rows],
        **fields,  # type: ignore[arg-type]
    )


def ids(jobs: tuple[Job, ...]) -> list[str]:
    return [job.request.id for job in jobs]


def test_an_accepted_request_waits_in_the_mirror_until_it_is_reported() -> None:
    m = mirror()
    m.accept(job("a"), 0.0)
    view = m.view(0.1, MODEL)
    assert (ids(view.running), ids(view.waiting)) == ([], ["a"])
    m.apply(report([("a", 64, 0)]), 0.2)
    m.accept(job("b"), 0.2)
    view = m.view(0.2, MODEL)
    assert (ids(view.running), ids(view.waiting)) == (["a"], ["b"])
    assert view.running[0].computed_tokens == 64


def test_the_engines_order_is_kept_and_new_requests_wait_behind_it() -> None:
    m = mirror()
    for id in "abcd":
        m.accept(job(id), 0.0)
    m.apply(report([("c", 10, 0), ("a", 10, 0)], [("b", 0, 0)]), 0.1)
    view = m.view(0.1, MODEL)
    assert (ids(view.running), ids(view.waiting)) == (["c", "a"], ["b", "d"])


def test_a_request_missing_from_the_latest_report_holds_no_blocks() -> None:
    m = mirror()
    m.accept(job("a"), 0.0)
    m.accept(job("b"), 0.0)
    m.apply(report([("a", 100, 1), ("b", 100, 1)]), 0.1)
    m.apply(report([("b", 101, 2)]), 0.2)
    assert ids(m.view(0.2, MODEL).running) == ["b"]
    assert m.view(0.2, MODEL).waiting == ()
    ended = m.forget("a")
    assert ended is not None and ended.generated_tokens == 1
    assert m.forget("a") is None


def test_a_job_that_ended_here_is_removed_even_if_the_engine_still_reports_it() -> None:
    m = mirror()
    m.accept(job("a"), 0.0)
    m.forget("a")
    m.apply(report([("a", 100, 1)]), 0.1)
    (foreign,) = m.view(0.1, MODEL).running
    assert foreign.request.tier == FOREIGN_TIER


def test_requests_of_other_clients_are_planned_for() -> None:
    m = mirror()
    m.apply(report([("x", 120, 21, True)], [("y", 0, 3, True)]), 0.1)
    view = m.view(0.1, MODEL)
    (x,), (y,) = view.running, view.waiting
    assert (x.request.prompt_tokens, x.generated_tokens, x.best_effort, x.decoding) == (100, 21, True, True)
    assert (y.computed_tokens, y.generated_tokens, y.pending_tokens > 0) == (0, 3, True)


def test_tpot_is_counted_from_the_report_of_the_first_token() -> None:
    m = mirror()
    m.accept(job("a"), 0.0)
    m.apply(report([("a", 100, 1)]), 5.0)
    m.apply(report([("a", 102, 3)]), 5.2)
    (a,) = m.view(5.2, MODEL).running
    assert a.due_s == pytest.approx(5.0 + 3 * 0.1)
    assert a.decoding


def test_a_preempted_job_keeps_its_tokens_and_waits() -> None:
    m = mirror()
    m.accept(job("a"), 0.0, prompt_known=True)
    m.apply(report([("a", 104, 5)]), 0.1)
    m.apply(report([], [("a", 0, 5)]), 0.2)
    (a,) = m.view(0.2, MODEL).waiting
    assert (a.computed_tokens, a.generated_tokens, a.pending_tokens) == (0, 5, 105)


def test_promoted_best_effort_is_planned_as_the_engine_serves_it() -> None:
    m = mirror()
    m.accept(job("a", best_effort=True), 0.0)
    m.apply(report([("a", 10, 0, True)]), 0.1)
    assert m.view(0.1, MODEL).running[0].best_effort
    m.apply(report([("a", 20, 0, False)]), 0.2)
    assert not m.view(0.2, MODEL).running[0].best_effort


def test_an_estimated_prompt_is_corrected_by_the_first_token_and_observed_once() -> None:
    m = mirror()
    m.accept(job("a", prompt=100), 0.0)
    m.accept(job("b", prompt=100), 0.0, prompt_known=True)
    assert m.apply(report([("a", 130, 0), ("b", 100, 1)]), 0.1) == []
    assert m.view(0.1, MODEL).running[0].pending_tokens == 1  # longer than estimated, never done early
    assert m.apply(report([("a", 140, 1), ("b", 101, 2)]), 0.2) == [("a", 140)]
    assert m.view(0.2, MODEL).running[0].request.prompt_tokens == 140
    assert m.apply(report([("a", 141, 2), ("b", 102, 3)]), 0.3) == []


def test_a_job_that_exceeds_its_prediction_is_planned_with_a_longer_one() -> None:
    m = mirror(longer=80)
    m.accept(job("a", out=10), 0.0)
    m.apply(report([("a", 108, 9)]), 0.1)
    assert m.view(0.1, MODEL).running[0].output_tokens == 80
    m.apply(report([("a", 578, 479)]), 0.2)
    assert m.view(0.2, MODEL).running[0].output_tokens == 480


def test_memory_and_the_iteration_in_progress_are_as_reported() -> None:
    m = mirror()
    m.apply(report([("x", 10, 0)], kv_blocks_total=500, kv_blocks_free=123, next_duration_s=0.03), 1.0)
    view = m.view(1.01, MODEL)
    assert (view.kv.total_blocks, view.kv.free_blocks, view.kv.block_tokens) == (500, 123, 16)
    assert view.busy_until_s == pytest.approx(1.03)
    assert m.view(1.05, MODEL).busy_until_s == 1.05
    assert m.kv_tokens_total == 8000


def test_prefills_in_progress_are_planned_as_after_the_iteration() -> None:
    m = mirror()
    for name in ("a", "b", "c"):
        m.accept(job(name, prompt=100), 0.0)
    under_way = report([("a", 60, 0), ("b", 10, 0), ("c", 100, 1)], next_duration_s=0.03)
    under_way.prefilling.extend([0, 1])
    under_way.chunk_tokens.extend([40, 50])
    m.apply(under_way, 1.0)
    a, b, c = m.view(1.01, MODEL).running
    assert (a.decoding, a.generated_tokens) == (True, 1)
    assert a.due_s == pytest.approx(1.13)
    assert (b.pending_tokens, b.generated_tokens) == (40, 0)
    assert (c.computed_tokens, c.generated_tokens) == (100, 1)
    m.apply(report([("a", 100, 1), ("b", 60, 0), ("c", 101, 2)]), 1.03)
    assert [j.computed_tokens for j in m.view(1.04, MODEL).running] == [100, 60, 101]


def test_a_report_without_room_for_all_waiting_requests_leaves_them_waiting() -> None:
    m = mirror()
    for id in "abc":
        m.accept(job(id), 0.0)
    m.apply(report([("a", 10, 0)], [("b", 0, 0), ("c", 0, 0)], waiting=2), 0.1)
    m.apply(report([("a", 20, 0)], [("b", 0, 0)], waiting=2), 0.2)
    assert ids(m.view(0.2, MODEL).waiting) == ["b", "c"]
    m.apply(report([("a", 30, 0)], [("b", 0, 0)], waiting=1), 0.3)
    assert ids(m.view(0.3, MODEL).waiting) == ["b", "c"]  # not named since: on its way, or gone


def test_without_reports_progress_is_counted_from_streamed_tokens() -> None:
    m = mirror()
    m.accept(job("a"), 0.0)
    m.accept(job("b"), 0.0)
    m.passed("a", 1, 3.0)
    m.passed("a", 4, 3.2)
    view = m.view(3.2, MODEL)
    assert (ids(view.running), ids(view.waiting)) == (["a"], ["b"])
    (a,) = view.running
    assert (a.generated_tokens, a.computed_tokens, a.decoding) == (5, 104, True)
    assert a.due_s == pytest.approx(3.0 + 5 * 0.1)
    assert view.kv.free_blocks == 1000 - 7
    assert view.busy_until_s == pytest.approx(3.2 + MODEL.seconds(_one_decode()))


def _one_decode() -> BatchWork:
    return BatchWork(1, 104)


def test_planning_does_not_wait_for_a_silent_engine() -> None:
    m = mirror()
    m.accept(job("a"), 0.0)
    m.apply(report([("a", 100, 1)], next_duration_s=0.5), 1.0)
    m.passed("a", 1, 1.0)
    m.passed("a", 2, 2.0)
    assert m.check(3.4)
    assert not m.check(3.6)
    m.passed("a", 1, 3.7)
    (a,) = m.view(3.7, MODEL).running
    assert a.generated_tokens == 4
    m.apply(report([("a", 105, 6)]), 4.0)
    assert m.check(4.0) and m.view(4.0, MODEL).running[0].generated_tokens == 6


def test_an_idle_engine_is_not_required_to_report() -> None:
    m = mirror()
    m.apply(report([]), 1.0)
    assert m.check(100.0)
    m.accept(job("a"), 100.0)
    assert m.check(101.9)
    assert not m.check(102.1)


def test_a_restarted_engine_has_no_earlier_requests() -> None:
    m = mirror()
    m.accept(job("a"), 0.0)
    m.apply(report([("a", 100, 1)]), 1.0)
    m.apply(report([]), 2.0)
    m.accept(job("b"), 2.0)
    view = m.view(2.0, MODEL)
    assert (ids(view.running), ids(view.waiting)) == ([], ["b"])


def test_counts_follow_the_latest_report() -> None:
    m = mirror()
    m.accept(job("a"), 0.0)
    m.accept(job("b", best_effort=True), 0.0)
    m.accept(job("c"), 0.0)
    m.apply(report([("a", 100, 1), ("b", 40, 0, True)]), 0.1)
    counts = m.snapshot(0.1, MODEL)
    assert (counts.running, counts.waiting, counts.best_effort) == (2, 1, 1)
    assert counts.prefill_tokens_left == 60 + 100
    assert (counts.kv_tokens_free, counts.kv_tokens_total) == (900 * 16, 16000)
    m.forget("c")
    assert m.snapshot(0.1, MODEL).waiting == 0


def test_a_requests_stage_follows_the_reports() -> None:
    m = mirror()
    for id in "abc":
        m.accept(job(id), 0.0)
    m.apply(report([("a", 100, 1), ("b", 30, 0)]), 0.5)

    def where(id: str) -> Where:
        signs = m.signs(id, shows_output=True)
        assert signs is not None
        return signs.where

    assert [where(id) for id in "abc"] == [Where.RUNNING, Where.QUEUED, Where.COMING]
    m.apply(report([("b", 100, 1)], [("a", 0, 1), ("c", 0, 0)]), 0.6)  # a was preempted
    assert [where(id) for id in "abc"] == [Where.QUEUED, Where.RUNNING, Where.QUEUED]
    m.apply(report([("b", 101, 2)], [], waiting=5), 0.7)  # most that wait have no row
    assert [where(id) for id in "abc"] == [Where.QUEUED, Where.RUNNING, Where.QUEUED]
    m.apply(report([]), 0.8)
    m.apply(report([]), 0.9)  # ended at the engine, which has not reported it
    assert [where(id) for id in "abc"] == [Where.COMING, Where.RUNNING, Where.COMING]
    assert m.signs("unknown", shows_output=True) is None


def test_without_reports_a_requests_stage_follows_its_output() -> None:
    m = mirror()
    for id in "ab":
        m.accept(job(id), 0.0)
    m.passed("a", 2, 0.4)
    assert m.signs("a", shows_output=True) == Signs(Where.RUNNING, 0.4, 0.4)
    assert m.signs("b", shows_output=True) == Signs(Where.QUEUED, 0.0, 0.4)
    assert m.signs("b", shows_output=False) == Signs(Where.UNSEEN, 0.0, 0.4)


def test_only_requests_that_advance_in_a_report_make_progress() -> None:
    m = mirror()
    for id in "ab":
        m.accept(job(id), 0.0)
    m.apply(report([("a", 50, 0), ("b", 50, 0)]), 0.1)
    m.apply(report([("a", 100, 0), ("b", 50, 0)]), 0.2)
    found = [m.signs(id, shows_output=True) for id in "ab"]
    assert [signs and signs.own_s for signs in found] == [0.2, 0.1]


def test_the_acceptance_rate_is_the_pool_s_until_the_engine_reports_one() -> None:
    m = mirror(speculation=Speculation(4, 0.7))
    m.apply(report([]), 0.1)
    assert m.view(0.1, MODEL).speculation == Speculation(4, 0.7)
    reported = report([])
    reported.drafting.CopyFrom(Drafting(max_tokens=3, acceptance=0.5, by_tier={"coder": 0.8}))
    m.apply(reported, 0.2)
    speculation = m.view(0.2, MODEL).speculation
    assert speculation == Speculation(3, 0.5, {"coder": 0.8})
    assert (speculation.acceptance_of("coder"), speculation.acceptance_of("chat")) == (0.8, 0.5)
    m.apply(report([]), 0.3)
    assert m.view(0.3, MODEL).speculation == speculation, "the last measurement holds until the next one"
    none = report([])
    none.drafting.CopyFrom(Drafting())
    m.apply(none, 0.4)
    assert m.view(0.4, MODEL).speculation is None


def test_an_engine_that_does_not_speculate_is_planned_without_drafts() -> None:
    assert mirror().view(0.0, MODEL).speculation is None


def test_the_forecast_uses_the_engines_measured_acceptance() -> None:
    rates = []
    for acceptance in (0.1, 0.9):
        m = mirror()
        m.accept(new_job(Request("a", "chat", 0.0, 100, 500, Targets(1.0, 0.015)), 50, False), 0.0)
        reported = report([("a", 100, 1)])
        reported.drafting.CopyFrom(Drafting(max_tokens=4, acceptance=acceptance))
        m.apply(reported, 0.1)
        forecast = m.snapshot(0.1, MODEL)
        assert forecast == snapshot(m.view(0.1, MODEL))
        rates.append(forecast.prefill_tokens_s)
    assert rates[1] > rates[0]


def test_several_tokens_of_one_step_are_ahead_of_their_deadlines() -> None:
    m = mirror(speculation=Speculation(4, 0.7))
    m.accept(job("a"), 0.0, prompt_known=True)
    m.apply(report([("a", 100, 1)]), 5.0)
    m.apply(report([("a", 104, 5)]), 5.1)
    (a,) = m.view(5.1, MODEL).running
    assert (a.generated_tokens, a.decoding) == (5, True)
    assert a.due_s == pytest.approx(5.0 + 5 * 0.1)


def test_reported_tokens_of_a_speculating_engine_count_before_they_are_forwarded() -> None:
    m = mirror(speculation=Speculation(4, 0.7))
    m.accept(job("a"), 0.0)
    assert m.tokens_out("a") == 0
    m.apply(report([("a", 104, 5)]), 0.1)
    assert (m.tokens_out("a"), m.tokens_out("unknown")) == (5, 0)
    m.lose_reports()
    assert m.tokens_out("a") == 0, "then only what passes is known"
    plain = mirror()
    plain.accept(job("a"), 0.0)
    plain.apply(report([("a", 104, 5)]), 0.1)
    assert plain.tokens_out("a") == 0, "without drafts an event is a token"


def test_without_reports_an_iteration_takes_as_long_as_its_drafts_do() -> None:
    m = mirror(speculation=Speculation(4, 0.7))
    m.accept(job("a"), 0.0)
    m.passed("a", 1, 3.0)
    assert m.view(3.0, MODEL).busy_until_s == pytest.approx(3.0 + MODEL.seconds(BatchWork(5, 100, 0.0, 4)))


def thinker(id: str) -> Job:
    targets = Targets(ttft_s=1.0, tpot_s=0.05, answer_tpot_s=0.2)
    return new_job(Request(id, "chat", 0.0, 100, 500, targets), 50, best_effort=False)


def test_a_reported_end_of_thinking_gives_the_answer_its_own_tpot_target_once() -> None:
    m = mirror()
    for id in "ab":
        m.accept(thinker(id), 0.0, prompt_known=True)
    m.apply(report([("a", 100, 1), ("b", 100, 1)]), 5.0)
    assert [j.tpot_s for j in m.view(5.0, MODEL).running] == [0.05, 0.05]
    ended = report([("a", 102, 3), ("b", 102, 3)])
    ended.thinking_tokens.extend([3, 0])
    m.apply(ended, 5.1)
    a, b = m.view(5.1, MODEL).running
    assert (a.tpot_s, b.tpot_s) == (0.2, 0.05)
    assert a.due_s == pytest.approx(5.1 + 0.2)
    assert b.due_s == pytest.approx(5.0 + 3 * 0.05)
    later = report([("a", 104, 5), ("b", 104, 5)])
    later.thinking_tokens.extend([3, 0])
    m.apply(later, 5.3)
    (a, _) = m.view(5.3, MODEL).running
    assert a.due_s == pytest.approx(5.1 + 3 * 0.2), "counted from where the answer began"
    assert (m.thinking_tokens("a"), m.thinking_tokens("b"), m.thinking_tokens("unknown")) == (3, 0, 0)


def test_without_reports_thinking_ends_at_its_token_in_the_output() -> None:
    m = mirror()
    m.accept(thinker("a"), 0.0)
    m.passed("a", 4, 3.0)
    m.thinking_ended("a", 3, 3.0)
    m.thinking_ended("unknown", 3, 3.0)
    (a,) = m.view(3.0, MODEL).running
    assert a.tpot_s == 0.2
    assert a.due_s == pytest.approx(3.2)
    assert m.thinking_tokens("a") == 3


def test_an_engines_report_on_thinking_precedes_the_forwarded_output() -> None:
    m = mirror()
    m.accept(thinker("a"), 0.0)
    ended = report([("a", 104, 5)])
    ended.thinking_tokens.extend([5])
    m.thinking_ended("a", 3, 3.0)
    m.apply(ended, 3.1)
    m.thinking_ended("a", 3, 3.2)
    assert m.thinking_tokens("a") == 5
    assert m.view(3.2, MODEL).running[0].tpot_s == 0.2


def test_a_request_has_started_if_the_last_report_runs_it_or_it_has_output() -> None:
    m = mirror()
    for id in "abcd":
        m.accept(job(id), 0.0)
    m.apply(report([("a", 30, 0), ("b", 100, 1)], [("c", 0, 0)]), 0.1)
    for shows_output in (True, False):
        assert [m.computes(id, shows_output) for id in "abcd"] == [True, True, False, False]
    m.apply(report([("c", 30, 0)], [("a", 0, 0), ("b", 0, 1)]), 0.2)  # both were preempted
    assert [m.computes(id, True) for id in "abcd"] == [False, True, True, False]
    assert not m.computes("unknown", False)


def test_without_reports_a_request_has_started_with_output_or_if_it_is_not_streamed() -> None:
    m = mirror()
    for id in "ab":
        m.accept(job(id), 0.0)
    m.passed("a", 1, 0.1)
    assert [m.computes(id, True) for id in "ab"] == [True, False]
    assert [m.computes(id, False) for id in "ab"] == [True, True]
    assert not m.computes("unknown", False)


def test_tokens_have_the_times_of_their_reports_and_the_last_ones_that_of_the_end() -> None:
    m = mirror()
    m.accept(job("a"), 0.0, timed=True)
    m.apply(report([("a", 50, 0)]), 0.1)
    m.apply(report([("a", 100, 1)]), 0.2)
    m.apply(report([("a", 103, 4)]), 0.5)
    m.apply(report([("a", 103, 4)]), 0.6)
    assert m.token_times_s("a", 6, 0.9) == [0.2, 0.5, 0.5, 0.5, 0.9, 0.9]
    assert m.token_times_s("a", 3, 0.9) == [0.2, 0.5, 0.5]


def test_a_token_without_a_report_has_the_time_of_the_end() -> None:
    m = mirror()
    m.accept(job("a"), 0.0, timed=True)
    m.apply(report([("a", 50, 0)]), 0.1)
    assert m.token_times_s("a", 1, 0.9) == [0.9]
    assert m.token_times_s("a", 0, 0.9) == []
    assert m.token_times_s("a", 2, 0.9) == []


def test_tokens_neither_streamed_nor_reported_have_no_times() -> None:
    m = mirror()
    m.accept(job("a"), 0.0)
    m.accept(job("b"), 0.0, timed=True)
    m.apply(report([("a", 100, 1), ("b", 100, 1)]), 0.2)
    assert m.token_times_s("a", 1, 0.9) == []
    assert m.token_times_s("unknown", 1, 0.9) == []
    assert m.token_times_s("b", 1, 0.9) == [0.2]
    m.lose_reports()
    assert m.token_times_s("b", 1, 0.9) == []


def test_a_request_that_was_prefilled_in_full_and_has_no_output_is_queued() -> None:
    m = mirror()
    m.accept(job("a"), 0.0)
    m.apply(report([("a", 100, 0)]), 0.1)
    assert m.signs("a", shows_output=False) == Signs(Where.QUEUED, 0.1, 0.1)
    m.apply(report([("a", 101, 1)]), 0.2)
    assert m.signs("a", shows_output=False) == Signs(Where.RUNNING, 0.2, 0.2)


def test_a_report_with_all_waiting_requests_shows_which_others_run() -> None:
    m = mirror()
    for id in "ab":
        m.accept(job(id), 0.0)
    m.apply(report([], [("a", 0, 0)], waiting=1), 0.1)
    signs = m.signs("b", shows_output=True)
    assert signs is not None
    assert signs.where is Where.COMING


def test_a_job_keeps_its_predicted_length_until_it_reaches_it() -> None:
    m = mirror(longer=400)
    m.accept(job("a", out=50), 0.0)
    for generated, predicted in ((1, 50), (48, 50), (49, 400), (450, 451), (499, 500)):
        m.apply(report([("a", 99 + generated, generated)]), 0.1)
        assert m.view(0.1, MODEL).running[0].output_tokens == predicted
