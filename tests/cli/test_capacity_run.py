"""Trials of several searches on several processes, their progress, and curves around their results."""

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from penstock_cli.capacity import progress
from penstock_cli.capacity.progress import TRIALS_GUESSED, share_done, show_progress
from penstock_cli.capacity.question import Question, SearchConditions
from penstock_cli.capacity.run import SearchProgress, run_all, workers
from penstock_cli.capacity.sampled_question import NO_MISS_LIMIT, Trials
from penstock_cli.capacity.search import CapacityResult
from penstock_cli.capacity.setting import PolicySetting
from penstock_cli.capacity.sweep import SHARES_OF_CAPACITY, sweep
from penstock_cli.capacity.trial import Trial, TrialResult
from penstock_cli.capacity.trial_log import TrialLog, _contents, code_digest
from penstock_cli.failure import Failure
from penstock_cli.plots.series import Curve, Spot
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.simulation import LengthKnowledge
from rich.console import Console

CONDITIONS = SearchConditions(1, 0.9, LengthKnowledge.KNOWN, TruthKind.EXACT, 1, "round-robin")


def trial(rate_rps: float) -> Trial:
    return Trial("coder", "vllm", 512, 0, 1, "round-robin", "known", "exact", rate_rps, 0, NO_MISS_LIMIT)


def at_once(name: str, *rates_rps: float) -> Trials[str]:
    """A search whose trials may run together."""
    tallies = yield [trial(rate_rps) for rate_rps in rates_rps]
    return f"{name}: {[tally.missed for tally in tallies]}"


def missing_its_rate(one: Trial) -> TrialResult:
    return TrialResult(100, round(one.rate_rps), complete=True)


class Waiting(Executor):
    """An executor that runs nothing until it is awaited, and then the latest call."""

    def __init__(self) -> None:
        self.calls: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.most = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.calls.append((future, lambda: fn(*args, **kwargs)))
        self.most = max(self.most, len(self.calls))
        return future

    def wait(self, running: Any, return_when: str) -> Any:
        future, call = self.calls.pop()
        future.set_result(call())
        return type("Waited", (), {"done": {future}})


@pytest.mark.parametrize("jobs", [1, 2, 9])
def test_as_many_trials_run_as_there_are_processes(monkeypatch: pytest.MonkeyPatch, jobs: int) -> None:
    executor = Waiting()

    @contextmanager
    def waiting(jobs: int) -> Iterator[Executor]:
        yield executor

    monkeypatch.setattr("penstock_cli.capacity.run.workers", waiting)
    monkeypatch.setattr("penstock_cli.capacity.run.wait", executor.wait)
    watch, counts, reported = SearchProgress(), list[tuple[int, int]](), list[str]()
    watch.ended = lambda: counts.append((watch.trials, watch.searches))
    with TrialLog(None) as memory:
        searches = [at_once("one", 1, 2, 3), at_once("other", 4)]
        found = run_all(searches, missing_its_rate, jobs, memory, watch, report=reported.append)
        assert memory.lookup(trial(3)) == TrialResult(100, 3, complete=True)
    assert found == ["one: [1, 2, 3]", "other: [4]"]
    assert sorted(reported) == found
    assert executor.most == min(jobs, 4)
    assert [trials for trials, _ in counts] == [0, 1, 2, 3, 4]
    assert (counts[0], counts[-1]) == ((0, 0), (4, 2))


def test_a_recorded_trial_is_not_run_again() -> None:
    ran: list[Trial] = []

    def work(one: Trial) -> TrialResult:
        ran.append(one)
        return missing_its_rate(one)

    with TrialLog(None) as memory:
        memory.record(trial(2), TrialResult(100, 7, complete=True))
        assert run_all([at_once("one", 1, 2)], work, 1, memory, SearchProgress()) == ["one: [1, 7]"]
    assert ran == [trial(1)]


def test_workers_ignore_ctrl_c_and_end_with_the_main_process() -> None:
    with workers(2) as executor:
        assert executor.submit(signal.getsignal, signal.SIGINT).result() == signal.SIG_IGN
        processes = list(executor._processes.values())  # type: ignore[attr-defined]
    assert processes and not any(process.is_alive() for process in processes)


DEATH_SIGNAL = """
(lambda c, found: (c.CDLL(None).prctl(2, c.byref(found)), found.value)[1])(
    c := __import__("ctypes"), c.c_int()
)
"""
"""The signal that a process gets when its parent dies: PR_GET_PDEATHSIG."""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals children when their parent dies")
def test_workers_end_with_a_main_process_that_is_killed() -> None:
    with workers(2) as executor:
        assert executor.submit(eval, DEATH_SIGNAL.strip()).result() == signal.SIGTERM


def test_an_error_kills_the_workers() -> None:
    def failing() -> None:
        with workers(2) as executor:
            executor.submit(signal.pause)
            executor.submit(abs, 1).result()
            processes.extend(executor._processes.values())  # type: ignore[attr-defined]
            threads.append(executor._executor_manager_thread)  # type: ignore[attr-defined]
            raise ZeroDivisionError

    processes, threads = list[Any](), list[Thread]()
    with pytest.raises(ZeroDivisionError):
        failing()
    threads[0].join()  # it asks for the exit codes as well, and each can be had once
    assert [process.exitcode for process in processes] == [-signal.SIGKILL] * 2


def test_the_completed_share_is_estimated_until_searches_have_ended() -> None:
    def share(trials: int, searches: int, of: int = 4) -> float:
        return share_done(SearchProgress(trials=trials, searches=searches), of)

    assert share(10, 0) == 10 / (TRIALS_GUESSED * 4)
    assert share(10, 1) == 10 / (TRIALS_GUESSED * 4)
    assert share(60, 2) == 60 / (30 * 4)
    assert share(200, 1) == pytest.approx(200 / (200 + TRIALS_GUESSED * 3 / 2))
    assert share(3, 4) == 1.0


def test_progress_is_printed_at_intervals_with_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = iter([0.0, 14.0, 15.0, 20.0, 29.5, 30.0])
    monkeypatch.setattr(progress, "monotonic", lambda: next(now))
    with show_progress(Console(width=100), 4, "capacities") as watch:
        for trials in (0, 30, 30, 30, 60):
            watch.trials = trials
            watch.ended()
    assert capsys.readouterr().out.splitlines() == [
        "0 of 4 capacities, 30 simulations, about 45 s left",
        "0 of 4 capacities, 60 simulations, about 30 s left",
    ]


def test_before_the_first_simulation_no_progress_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = iter([0.0, 60.0])
    monkeypatch.setattr(progress, "monotonic", lambda: next(now))
    with show_progress(Console(width=100), 4, "capacities") as watch:
        watch.ended()
    assert capsys.readouterr().out == ""


def test_a_terminal_gets_a_bar() -> None:
    console = Console(file=StringIO(), force_terminal=True, width=120, record=True)
    with show_progress(console, 4, "capacities") as watch:
        watch.trials, watch.searches = 60, 2
        watch.ended()
        watch.trials, watch.searches = 120, 4
        bar = console.export_text()
        watch.ended()
    assert "searching" in bar and " 0 simulations," in bar
    ended = console.export_text()
    assert "4 of 4 capacities" in ended and "120 simulations," in ended
    assert f" {'━' * 40} " in ended and "about 0:00:00 left" in ended


def found(policy: str = "vllm", low_rps: float = 2.0) -> CapacityResult:
    return CapacityResult(Question("coder", policy, CONDITIONS), PolicySetting(512), low_rps, 2.04, 900, 90)


def swept(answer: CapacityResult, tallies: Sequence[TrialResult]) -> tuple[list[Trial], Any]:
    search = sweep(answer)
    requested = list(next(search))
    with pytest.raises(StopIteration) as end:
        search.send(tallies)
    return requested, end.value.value


def test_a_curve_is_the_first_sample_at_rates_around_the_capacity() -> None:
    tallies = [
        TrialResult(100, missed, True, (("coder", missed / 10, missed / 20),))
        for missed in range(len(SHARES_OF_CAPACITY))
    ]
    requested, drawn = swept(found(), tallies)
    rates_rps = (1.0, 1.5, 1.8, 2.0, 2.2, 2.5, 3.0)
    assert requested == [trial(rate_rps) for rate_rps in rates_rps]
    attained = pytest.approx((1.0, 0.99, 0.98, 0.97, 0.96, 0.95, 0.94))
    assert drawn.curve == Curve("coder", "vllm", rates_rps, attained)  # type: ignore[arg-type]
    assert drawn.paths == {"coder": tuple(Spot(missed / 10, missed / 20) for missed in range(7))}


@pytest.mark.parametrize("answer", [found("oracle"), found(low_rps=0.0)], ids=["bound", "no capacity"])
def test_a_bound_and_a_policy_without_capacity_have_no_curve(answer: CapacityResult) -> None:
    with pytest.raises(StopIteration) as end:
        next(sweep(answer))
    assert end.value.value is None


def test_the_code_version_covers_all_files_except_compiled_ones(tmp_path: Path) -> None:
    (tmp_path / "data" / "__pycache__").mkdir(parents=True)
    for name in ("a.py", "data/b.csv", "data/__pycache__/c.pyc"):
        (tmp_path / name).write_text(name)
    assert sorted(_contents(tmp_path, "p")) == [("p/a.py", b"a.py"), ("p/data/b.csv", b"data/b.csv")]
    assert len(code_digest()) == 64
    assert code_digest() == code_digest()


def test_a_result_is_written_immediately_and_a_truncated_last_line_dropped(tmp_path: Path) -> None:
    path = tmp_path / "all" / "logs" / "memory.jsonl"
    spotted = TrialResult(100, 7, True, (("coder", 0.5, 0.25),), promoted=3)
    with TrialLog(path) as memory:
        memory.record(trial(2), spotted)
        assert path.read_bytes().count(b"\n") == 1
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"key": "br')
    with TrialLog(path) as memory:
        assert memory.lookup(trial(2)) == spotted
        assert memory.lookup(trial(3)) is None
    assert path.read_bytes() == whole


def test_results_of_other_code_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "memory.jsonl"
    with TrialLog(path) as memory:
        memory.record(trial(2), TrialResult(100, 7, complete=True))
    monkeypatch.setattr("penstock_cli.capacity.trial_log.code_digest", lambda: "other")
    with TrialLog(path) as memory:
        assert memory.lookup(trial(2)) is None


def test_a_log_that_cannot_be_opened_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Failure, match=r"--resume .*memory: (Not a directory|File exists)") as error:
        TrialLog(tmp_path / "file" / "memory").__enter__()
    assert error.value.exit_code == 2
