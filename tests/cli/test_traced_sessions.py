"""Sessions of a trace: how they are read, and their conversion to closed loops."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from penstock_cli.failure import Failure
from penstock_cli.replay.schedule import Loop, ScheduleOptions, requests_and_span_s, schedule_of
from penstock_cli.traces import TraceError, TraceRequest, in_closed_loops, read_trace, summarise


def line(at_ms: float | None, session: str | None = "a", **more: Any) -> dict[str, Any]:
    timed = {} if at_ms is None else {"timestamp": at_ms}
    named = {} if session is None else {"session_id": session}
    return {**timed, "input_length": 100, "output_length": 10, **named, **more}


def written(tmp_path: Path, *lines: dict[str, Any]) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in lines))
    return path


def thoughts(requests: Sequence[TraceRequest]) -> list[tuple[str, float, float | None]]:
    return [(request.session, request.arrival_s, request.think_s) for request in requests]


def test_sessions_and_delays_are_read_from_mooncakes_format(tmp_path: Path) -> None:
    path = written(tmp_path, line(500), line(700, session=None), line(900, delay=250), line(None, delay=1500))
    assert [(r.arrival_s, r.session, r.stage, r.think_s) for r in read_trace(path)] == [
        (0.0, "a", 0, None),
        (pytest.approx(0.2), "", 0, None),
        (pytest.approx(0.4), "a", 1, 0.25),
        (pytest.approx(0.4), "a", 2, 1.5),
    ]
    summary = summarise(path)
    assert summary.has_sessions and summary.has_think_times


def test_a_sessions_first_delay_is_not_a_think_time(tmp_path: Path) -> None:
    (request,) = read_trace(written(tmp_path, line(500, delay=250)))
    assert request.think_s is None


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (line(None, delay=5), "has no timestamp"),
        (line(5, session=None, session_id=[1]), "session_id .* is not a name or a number"),
        (line(5, session=None, session_id=True), "session_id true is not a name or a number"),
    ],
)
def test_an_invalid_session_is_named(tmp_path: Path, row: dict[str, Any], what: str) -> None:
    with pytest.raises(TraceError, match=f"line 1, column .*{what}"):
        summarise(written(tmp_path, row))


def test_an_invalid_delay_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"line 2, column .*: delay -1 is not a number of milliseconds"):
        summarise(written(tmp_path, line(0), line(5, delay=-1)))


def test_a_numbered_session_is_named_by_its_number(tmp_path: Path) -> None:
    (request,) = read_trace(written(tmp_path, line(0, session=None, session_id=7)))
    assert request.session == "7"


def test_think_times_are_read_from_our_format(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens,tier,session,think_s\n0,1,1,t,a,\n5,1,1,t,a,2.5\n")
    assert [request.think_s for request in read_trace(path)] == [None, 2.5]


def test_a_closed_loop_has_all_turns_at_its_start_with_their_think_times() -> None:
    recorded = [
        TraceRequest(0.0, 1, 10, session="a"),
        TraceRequest(1.0, 1, 10, session="b"),
        TraceRequest(2.0, 1, 10),
        TraceRequest(7.0, 1, 10, session="a", think_s=3.0),
        TraceRequest(9.0, 1, 10, session="b", think_s=0.0),
    ]
    looped = list(in_closed_loops(recorded))
    assert thoughts(looped) == [
        ("a", 0.0, None),
        ("a", 0.0, 3.0),
        ("b", 1.0, None),
        ("b", 1.0, 0.0),
        ("", 2.0, None),
    ]
    assert [request.stage for request in looped] == [0, 1, 0, 1, 0]


def test_a_gap_is_split_into_answer_and_think_time_by_the_shortest_gaps() -> None:
    recorded = [
        TraceRequest(0.0, 1, 10, session="a"),
        TraceRequest(1.0, 1, 20, session="a"),  # a tenth of a second a token: the shortest gap
        TraceRequest(8.0, 1, 5, session="a"),
    ]
    assert [request.think_s for request in in_closed_loops(recorded)] == [None, 0.0, pytest.approx(5.0)]


def test_the_speed_is_that_of_the_shortest_hundredth_of_gaps() -> None:
    recorded = [TraceRequest(0.0, 1, 1, session="a")]
    for gap_s in range(1, 201):
        recorded.append(TraceRequest(recorded[-1].arrival_s + gap_s, 1, 1, session="a"))
    looped = list(in_closed_loops(recorded))
    assert [request.think_s for request in looped[:5]] == [None, 0.0, 0.0, 1.0, 2.0]


def sessions(tmp_path: Path) -> Path:
    return written(tmp_path, line(0), line(1000, "b"), line(2000), line(4000), line(5000, "c"))


def test_a_closed_loops_rate_is_all_requests_over_the_span_of_session_starts(tmp_path: Path) -> None:
    schedule, _ = schedule_of(ScheduleOptions(sessions(tmp_path), rate_rps=0.5, closed_loop=True))
    requests, span_s = requests_and_span_s(schedule)
    assert requests == 5 and span_s == pytest.approx(10.0)
    assert [request.arrival_s for request in schedule.requests()] == pytest.approx([0, 0, 0, 2, 10])
    thought_s = [request.think_s for request in schedule.requests() if request.think_s is not None]
    assert thought_s == pytest.approx([0.0, 0.0])  # thoughts keep their time


def test_without_think_times_a_session_is_sent_as_recorded(tmp_path: Path) -> None:
    schedule, _ = schedule_of(ScheduleOptions(sessions(tmp_path)))
    assert schedule.loop is Loop.RECORDED
    assert [request.arrival_s for request in schedule.requests()] == [0.0, 1.0, 2.0, 4.0, 5.0]


def test_a_trace_with_think_times_is_a_closed_loop_unless_set_to_open(tmp_path: Path) -> None:
    path = written(tmp_path, line(0), line(900, delay=250))
    assert schedule_of(ScheduleOptions(path))[0].loop is Loop.CLOSED
    opened, _ = schedule_of(ScheduleOptions(path, closed_loop=False))
    assert thoughts(list(opened.requests())) == [("a", 0.0, None), ("a", 0.9, None)]


def test_turns_without_a_recorded_time_cannot_be_sent_at_it(tmp_path: Path) -> None:
    path = written(tmp_path, line(0), line(10, "b"), line(None, delay=250))
    with pytest.raises(Failure, match=r"^--open-loop: request 2 by arrival of .* has no recorded time"):
        schedule_of(ScheduleOptions(path, closed_loop=False))


def test_a_rate_needs_starts_at_different_times(tmp_path: Path) -> None:
    path = written(tmp_path, line(0), line(900, delay=250))
    with pytest.raises(Failure, match=r"^--rate: all requests of .*trace.jsonl start at the same time$"):
        schedule_of(ScheduleOptions(path, rate_rps=2.0))


@pytest.mark.parametrize(("rate_rps", "duration_s"), [(1e-9, None), (1e-300, None), (5e-324, 60.0)])
def test_a_rate_may_not_stretch_a_trace_beyond_all_clocks(
    tmp_path: Path, rate_rps: float, duration_s: float | None
) -> None:
    path = written(tmp_path, line(0), line(900))
    with pytest.raises(Failure, match=r"^--rate .*: stretches .*trace.jsonl to more than 30 years$"):
        schedule_of(ScheduleOptions(path, rate_rps=rate_rps, duration_s=duration_s))
    bounded, _ = schedule_of(ScheduleOptions(path, rate_rps=1e-9, duration_s=60.0))
    assert len(list(bounded.requests())) == 1


def test_stages_order_turns_that_arrive_together(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    head = "arrival_s,prompt_tokens,output_tokens,session,stage,think_s\n"
    path.write_text(head + "0,2,1,a,1,7\n0,1,1,a,0,\n0,3,1,a,2,8\n")
    turns = list(in_closed_loops(read_trace(path)))
    assert [(turn.prompt_tokens, turn.think_s) for turn in turns] == [(1, None), (2, 7.0), (3, 8.0)]


def test_requests_keep_their_place_in_the_trace_in_closed_loops(tmp_path: Path) -> None:
    path = written(tmp_path, line(0), line(100, "b"), line(200), line(300, "b"))
    assert [turn.number for turn in in_closed_loops(read_trace(path))] == [0, 2, 1, 3]


def test_a_trace_without_sessions_is_not_a_closed_loop(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"^--closed-loop: .*trace.jsonl has no sessions$"):
        schedule_of(ScheduleOptions(written(tmp_path, line(0, None)), closed_loop=True))
