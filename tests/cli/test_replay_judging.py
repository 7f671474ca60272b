"""Requests are judged by their tier's SLO; the expected figures are worked out by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
from penstock_cli.failure import Failure
from penstock_cli.replay.outcome import RequestEnding, RequestOutcome
from penstock_cli.replay.report import (
    NARROWEST,
    PlannerTimes,
    Report,
    aligned,
    console_for_tables,
    summary_line,
    table,
)
from penstock_cli.replay.slo_options import slos_from_options
from penstock_cli.replay.streamed_answer import StreamedAnswer, StreamError
from penstock_cli.replay.tally import ReplayTally, percentile
from penstock_cli.replay.tier_slos import TierSlos
from penstock_core.domain.slo import Judge, Slo, Targets, judged_tpot_s
from penstock_core.timing.time_model import Term, TimeModel
from rich.console import Console


def event(text: str) -> bytes:
    return b'data: {"choices":[{"text":"%s"}]}\n\n' % text.encode()


USAGE = b'data: {"choices":[],"usage":{"completion_tokens":%d}}\n\n'

DONE = b"data: [DONE]\n\n"


def answer_of(*pieces: tuple[bytes, float]) -> StreamedAnswer:
    answer = StreamedAnswer()
    for piece, at_s in pieces:
        answer.feed(piece, at_s)
    return answer


def test_each_event_with_content_is_a_token_at_its_time() -> None:
    answer = answer_of((event("a"), 1.0), (event("b") + event("c"), 2.0), (USAGE % 3 + DONE, 3.0))
    assert answer.done
    assert answer.token_times_s() == [1.0, 2.0, 2.0]


def test_an_event_may_arrive_in_pieces() -> None:
    whole = event("a")
    assert answer_of((whole[:9], 1.0), (whole[9:], 1.5)).token_times_s() == [1.5]


def test_a_role_or_an_empty_text_is_not_a_token() -> None:
    role = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    word = b'data: {"choices":[{"delta":{"content":"hi"}}]}\r\n\r\n'
    end = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
    comment = b": keep-alive\n\n"
    assert answer_of((role, 1.0), (comment, 1.1), (word, 2.0), (end, 3.0)).token_times_s() == [2.0]


def test_tokens_that_share_events_are_spread_over_them() -> None:
    answer = answer_of((event("ab"), 1.0), (event("cd"), 2.0), (USAGE % 4, 3.0))
    assert answer.tokens == 4
    assert answer.token_times_s() == [1.0, 1.0, 2.0, 2.0]


def test_an_error_in_the_stream_is_named_by_its_code() -> None:
    with pytest.raises(StreamError, match=r"^engine_lost$"):
        answer_of((b'data: {"error":{"message":"m","type":"server_error","code":"engine_lost"}}\n\n', 1.0))
    with pytest.raises(StreamError, match="unreadable event"):
        answer_of((b"data: {nonsense\n\n", 1.0))


def test_the_mean_tpot_excludes_the_first_token() -> None:
    times_s = [10.0, 10.1, 10.3]  # 0.3 s for two tokens after the first
    assert judged_tpot_s(times_s, Judge.MEAN) == pytest.approx(0.15)
    assert judged_tpot_s(times_s, Judge.MAX) == pytest.approx(0.2)


def test_a_slowdown_is_of_the_prompts_idle_prefill() -> None:
    model = TimeModel("m", (Term(token_s=0.001, fixed_s=0.010),))
    tier_slos = TierSlos({"chat": Slo(ttft_slowdown=5.0, tpot_s=0.1)}, "chat", model)
    assert tier_slos.targets("chat", 190).ttft_s == pytest.approx(5 * 0.2)  # 190 × 1 ms + 10 ms
    assert tier_slos.targets("unknown", 190) == Targets()


def test_a_slowdown_without_a_time_model_cannot_be_judged() -> None:
    with pytest.raises(ValueError, match="tier chat has a slowdown, which needs a time model"):
        TierSlos({"chat": Slo(ttft_slowdown=5.0)}, "chat").targets("chat", 190)


def test_a_tier_without_targets_is_not_in_the_total() -> None:
    """Its requests never miss a target, so counting them would raise the total attainment."""
    tier_slos = TierSlos({"chat": Slo(tpot_s=0.1), "batch": Slo()}, "chat")
    tally = ReplayTally(tier_slos.tiers_without_targets)
    tally.add(outcome("chat", RequestEnding.ADMITTED, kept=False), late_s=0.0)
    tally.add(outcome("batch", RequestEnding.BEST_EFFORT, kept=True), late_s=0.0)
    report = Report("slos-serve", 2, span_s=10.0, tally=tally)
    found = report.as_json()
    assert (found["requests"], found["requests_with_targets"], found["rate"]) == (2, 1, 0.2)
    assert (found["attainment"], found["goodput_rps"]) == (0.0, 0.0)
    assert list(found["tiers"]) == ["chat", "batch"]  # the worst first; at the end what is not judged
    assert found["tiers"]["batch"]["attainment"] is None
    assert summary_line(report) == (
        "At 0.20 requests/s 0.0 % of 1 requests with targets met their tier's SLO; lowest: chat with 0.0 %."
    )


def test_without_targets_no_request_is_judged() -> None:
    tally = ReplayTally(frozenset({"batch"}))
    tally.add(outcome("batch", RequestEnding.BEST_EFFORT, kept=True), late_s=0.0)
    report = Report("slos-serve", 2, span_s=10.0, tally=tally)
    assert report.as_json()["attainment"] is None
    assert summary_line(report) == "1 requests at 0.10 requests/s; none has a target."
    assert "all" not in [cell for cell in table(report, "").columns[0].cells]


def outcome(
    tier: str, ending: RequestEnding, kept: bool = False, ttft_s: float | None = None
) -> RequestOutcome:
    return RequestOutcome(
        id="0",
        tier=tier,
        arrival_s=0.0,
        prompt_tokens=1,
        output_tokens=1,
        ending=ending,
        hops=1,
        ttft_s=ttft_s,
        met=kept,
        reason="503 no_replicas" if ending is RequestEnding.FAILED else "",
    )


def test_turns_attain_among_requests_with_targets() -> None:
    tally = ReplayTally(frozenset({"batch"}))
    for turn, tier, kept in ((0, "batch", True), (1, "batch", True), (1, "chat", True), (1, "chat", False)):
        tally.add(replace(outcome(tier, RequestEnding.ADMITTED, kept), turn=turn), late_s=0.0)
    turns = Report("slos-serve", 2, span_s=10.0, tally=tally).as_json()["turns"]
    assert [turns[name]["requests"] for name in ("first", "later")] == [1, 3]
    assert [turns[name]["attainment"] for name in ("first", "later")] == [None, 0.5]


def test_goodput_counts_until_the_last_turn_was_sent() -> None:
    tally = ReplayTally()
    for at_s in (0.0, 10.0, 40.0):
        tally.add(replace(outcome("chat", RequestEnding.ADMITTED, kept=True), arrival_s=at_s), late_s=0.0)
    report = Report("slos-serve", 2, span_s=10.0, tally=tally)
    assert (report.rate_rps, report.goodput_rps) == (0.3, 3 / 40)


def test_attainment_counts_all_arrived_requests() -> None:
    tally = ReplayTally()
    for one in (
        outcome("chat", RequestEnding.ADMITTED, kept=True, ttft_s=0.1),
        outcome("chat", RequestEnding.ADMITTED, kept=False, ttft_s=0.9),
        outcome("chat", RequestEnding.BEST_EFFORT, kept=True, ttft_s=0.3),
        outcome("chat", RequestEnding.REJECTED),
        outcome("coder", RequestEnding.FAILED),
    ):
        tally.add(one, late_s=0.001)
    report = Report("slos-serve", 2, span_s=10.0, tally=tally, planner=PlannerTimes(0.5, 1.0, 2.0))
    assert report.as_json() == {
        "policy": "slos-serve",
        "replicas": 2,
        "rate": 0.5,
        "requests": 5,
        "requests_with_targets": 5,
        "attainment": 2 / 5,
        "attained_admitted": 1 / 5,
        "attained_promoted": 1 / 5,
        "admitted_attainment": 1 / 2,
        "goodput_rps": 0.2,
        "tiers": {
            "coder": {
                "requests": 1,
                "attainment": 0.0,
                "attained_admitted": 0.0,
                "attained_promoted": 0.0,
                "ttft_p50_s": None,
                "ttft_p99_s": None,
                "tpot_p50_s": None,
                "tpot_p99_s": None,
                "best_effort": 0,
                "rejected": 0,
            },
            "chat": {
                "requests": 4,
                "attainment": 2 / 4,
                "attained_admitted": 1 / 4,
                "attained_promoted": 1 / 4,
                "ttft_p50_s": 0.3,
                "ttft_p99_s": 0.9,
                "tpot_p50_s": None,
                "tpot_p99_s": None,
                "best_effort": 1,
                "rejected": 1,
            },
        },
        "planner_ms": {"p50": 0.5, "p99": 1.0, "max": 2.0},
    }
    assert tally.reasons == {"503 no_replicas": 1}


def test_percentiles_are_measured_values() -> None:
    ordered = [float(value) for value in range(1, 101)]
    assert percentile(ordered, 0.5) == 50.0
    assert percentile(ordered, 0.99) == 99.0
    assert percentile(ordered, 1.0) == 100.0
    assert percentile([7.0], 0.01) == 7.0
    assert percentile([], 0.5) is None


def test_targets_are_read_from_the_command_line() -> None:
    tier_slos = slos_from_options(None, ["chat:ttft=800ms,tpot=50ms,e2e=30s,judge=window", "batch:e2e=1h"])
    assert tier_slos is not None
    assert tier_slos.slos["chat"] == Slo(0.8, None, 0.05, 30.0, Judge.WINDOW)
    assert tier_slos.slos["batch"] == Slo(e2e_s=3600.0)
    assert tier_slos.default_tier == "chat"


def test_a_target_on_the_command_line_replaces_that_of_the_pool() -> None:
    demo = Path(__file__).resolve().parents[2] / "examples" / "demo-pool.yaml"
    tier_slos = slos_from_options(demo, ["chat:ttft=1s"])
    assert tier_slos is not None
    assert tier_slos.slos["chat"] == Slo(ttft_s=1.0)
    assert tier_slos.slos["coder"].ttft_slowdown == 5.0
    assert tier_slos.targets("coder", 1000).ttft_s is not None


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("chat", '--slo: "chat" is invalid; write for example chat:ttft=800ms,tpot=50ms'),
        (":ttft=5s", '--slo: ":ttft=5s" is invalid; write for example chat:ttft=800ms,tpot=50ms'),
        ("chat:ttft=5", '--slo chat: "5" has no unit; write 5s or 5000ms'),
        ("chat:tttf=5s", '--slo: "chat:tttf=5s" is invalid; write for example chat:ttft=800ms,tpot=50ms'),
        ("chat:tpot=1s,judge=best", "--slo chat: 'best' is not a valid Judge"),
    ],
)
def test_invalid_targets_are_refused(text: str, output: str) -> None:
    with pytest.raises(Failure) as error:
        slos_from_options(None, [text])
    assert error.value.lines == (output,)
    assert error.value.exit_code == 2


def test_tables_and_json_have_the_worst_tier_first_and_tiers_without_targets_last() -> None:
    tally = ReplayTally(frozenset({"batch"}))
    for tier, ending, kept in (
        ("batch", RequestEnding.BEST_EFFORT, True),
        ("good", RequestEnding.ADMITTED, True),
        ("bad", RequestEnding.ADMITTED, False),
        ("also-bad", RequestEnding.ADMITTED, False),
        ("fair", RequestEnding.BEST_EFFORT, True),
        ("fair", RequestEnding.REJECTED, False),
    ):
        tally.add(outcome(tier, ending, kept), late_s=0.0)
    report = Report("slos-serve", 2, span_s=10.0, tally=tally)
    shown = table(report, "")
    columns = [list(column.cells) for column in shown.columns]
    assert columns[0] == ["also-bad", "bad", "fair", "good", "batch", "all with targets"]
    assert columns[1] == ["1", "1", "2", "1", "1", "5"]
    assert columns[2] == ["0.0", "0.0", "50.0", "100.0", "–", "40.0"]
    assert columns[3] == ["0.0", "0.0", "50.0", "0.0", "–", "20.0"]
    assert columns[4] == ["0.0", "0.0", "–", "100.0", "–", "33.3"]
    batch = report.as_json()["tiers"]["batch"]
    assert (batch["attained_admitted"], batch["attained_promoted"]) == (None, None)


def test_a_single_tier_has_no_total_and_a_trace_of_one_moment_no_rate() -> None:
    tally = ReplayTally()
    tally.add(outcome("chat", RequestEnding.ADMITTED, kept=True), late_s=0.0)
    report = Report(None, None, span_s=0.0, tally=tally)
    assert (report.rate_rps, report.goodput_rps) == (None, None)
    assert list(table(report, "").columns[0].cells) == ["chat"]
    assert summary_line(report) == "At – requests/s 100.0 % of 1 requests met their tier's SLO."


def test_with_a_target_in_every_tier_the_total_has_all_requests() -> None:
    tally = ReplayTally(frozenset({"not-asked"}))
    for tier in ("chat", "coder"):
        tally.add(outcome(tier, RequestEnding.ADMITTED, kept=True), late_s=0.0)
    assert list(table(Report(None, None, 1.0, tally), "").columns[0].cells) == ["chat", "coder", "all"]


def test_a_tier_with_only_a_judging_rule_has_no_target() -> None:
    tier_slos = TierSlos({"a": Slo(judge=Judge.MAX), "b": Slo(e2e_s=9.0), "c": Slo()}, "a")
    assert tier_slos.tiers_without_targets == {"a", "c"}


def test_figures_are_to_the_right_of_names_on_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    tally = ReplayTally()
    tally.add(outcome("a tier with a name", RequestEnding.ADMITTED, kept=True), late_s=0.0)
    shown = table(Report(None, None, span_s=1.0, tally=tally), "")
    assert [column.justify for column in shown.columns[:3]] == ["left", "right", "right"]
    two_names = aligned("", ("policy", "scenario", "rate"), [], left=2)
    assert [column.justify for column in two_names.columns] == ["left", "left", "right"]
    Console(width=60).print(shown)
    assert len(capfd.readouterr().out.splitlines()) == 3  # two of heads, and one of the tier


@pytest.mark.parametrize(("columns", "width"), [("80", NARROWEST), ("129", NARROWEST), ("200", 200)])
def test_a_table_is_as_wide_as_the_terminal_and_never_too_narrow(
    monkeypatch: pytest.MonkeyPatch, columns: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for stderr in (False, True):
        console = console_for_tables(stderr=stderr)
        assert (console.width, console.stderr) == (width, stderr)
    assert not console_for_tables().stderr


def test_tokens_without_an_event_have_no_times() -> None:
    assert answer_of((USAGE % 3 + DONE, 1.0)).token_times_s() == []


def test_an_event_needs_no_space_before_its_data() -> None:
    assert answer_of((b'data:{"choices":[{"text":"a"}]}\n\ndata:[DONE]\n\n', 1.0)).done


def test_thinking_is_content_under_both_field_names() -> None:
    pieces = [
        (b'data: {"choices":[{"delta":{"%s":"hm"}}]}\n\n' % name, at_s)
        for name, at_s in ((b"reasoning_content", 1.0), (b"reasoning", 2.0), (b"content", 3.0))
    ]
    assert answer_of(*pieces).token_times_s() == [1.0, 2.0, 3.0]


def test_an_error_that_is_a_string_is_quoted_up_to_60_characters() -> None:
    with pytest.raises(StreamError, match=rf"^{'x' * 60}$"):
        answer_of((b'data: {"error":"%s"}\n\n' % (b"x" * 61), 1.0))
    with pytest.raises(StreamError, match=r"^server_error$"):
        answer_of((b'data: {"error":{"type":"server_error"}}\n\n', 1.0))
