"""Requests that a replica has accepted: their places, what is learned from them, and their ends."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import orjson
import pytest
from penstock_core.domain.replica_view import KvCache, Limits
from penstock_core.domain.request import Job, Request, new_job, with_cached_prefix
from penstock_core.domain.request_lifecycle import State
from penstock_core.domain.slo import Targets
from penstock_core.domain.verdict import Admitted, BestEffort
from penstock_core.forecast.overdue import Expected, Signs
from penstock_core.forecast.snapshot import Snapshot
from penstock_core.timing.delivery_time import FEWEST
from penstock_core.timing.time_model import Term, TimeModel
from penstock_proto import replica_pb2 as wire
from penstock_proto.sse import EngineUsage
from penstock_proto.telemetry_pb2 import StepReport
from penstock_sidecar.frames.outbox import Outbox
from penstock_sidecar.metrics import Metrics
from penstock_sidecar.mirror.replica_mirror import ReplicaMirror
from penstock_sidecar.replica import accepted_requests
from penstock_sidecar.replica.accepted_requests import AcceptedRequests
from penstock_sidecar.requests.client_body import ClientBody, read_body
from penstock_sidecar.requests.estimates import Estimates
from penstock_sidecar.requests.faults import Faults
from penstock_sidecar.requests.gate import OpenGate
from penstock_sidecar.requests.replica_request import ReplicaRequest
from prometheus_client import CollectorRegistry


class Mirror(ReplicaMirror):
    """A mirror that records its calls."""

    def __init__(self, longer: Callable[[Job], int]) -> None:
        super().__init__(KvCache(1000, 1000, 16), Limits(), longer)
        self.reported: list[tuple[str, float, bool, bool]] = []

    def accept(self, job: Job, now_s: float, prompt_known: bool = False, timed: bool = False) -> None:
        self.reported.append((job.request.id, now_s, prompt_known, timed))
        super().accept(job, now_s, prompt_known, timed)


class Taught(Estimates):
    """A predictor that records its observations: tokens of prompts, and of answers with their prompts."""

    def __init__(self) -> None:
        super().__init__(TimeModel("test", (Term(0.0001, 0.01),)))
        self.prompts: list[int] = []
        self.answers: list[tuple[int, int]] = []

    def observe_prompt(self, body: ClientBody, prompt_tokens: int) -> None:
        self.prompts.append(prompt_tokens)

    def observe_answer(self, request: Request, prompt_tokens: int, output_tokens: int) -> None:
        self.answers.append((prompt_tokens, output_tokens))


class Keeper(OpenGate):
    """A gate that holds the requests that a test names, and records their ends."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.over: list[tuple[str, bool]] = []

    def holds(self, key: str) -> bool:
        return key in self.held

    def ended(self, key: str, engine_full: bool) -> None:
        self.over.append((key, engine_full))


class Desk:
    """The replica around them, and the session that they came by."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        metrics = Metrics(self.registry)
        self.estimates, self.gate = Taught(), Keeper()
        self.mirror = Mirror(self.estimates.longer_output_tokens)
        self.accepted = AcceptedRequests(
            self.mirror, self.estimates, self.gate, metrics=metrics, faults=Faults(metrics.faults)
        )
        self.outbox = cast(Outbox, self)
        self.discarded: list[bool] = []

    def put(self, *_: object, **__: object) -> None:
        """It has no reader."""

    output = put

    def forget(self, request: ReplicaRequest) -> None:
        """Do nothing: no state is kept."""

    def accept(
        self, key: str, best_effort: bool = False, targets: Targets = Targets(), **fields: Any
    ) -> ReplicaRequest:
        """A request for one streamed answer to three token ids, unless given otherwise."""
        submit = wire.Submit(id=7, request_id=key, endpoint=wire.ENDPOINT_COMPLETIONS, tier="chat")
        request = ReplicaRequest(submit, key, self, self._ended, 100.0)
        raw = orjson.dumps({"prompt": [1, 2, 3], "stream": True, **fields})
        job = new_job(Request(key, "chat", 99.5, 3, 500, targets), 50, best_effort=False)
        request.planned(read_body(wire.ENDPOINT_COMPLETIONS, raw), job)
        self.accepted.add(request, best_effort=best_effort, now_s=100.25)
        request.decided(BestEffort() if best_effort else Admitted(0.25, 0.05))
        return request

    def _ended(self, request: ReplicaRequest) -> None:
        self.discarded.append(self.accepted.discard(request))

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"penstock_replica_{name}", labels)

    @property
    def in_mirror(self) -> list[str]:
        view = self.mirror.view(101.0, self.estimates.model)
        return [job.request.id for job in (*view.running, *view.waiting)]


def test_every_requested_answer_is_held_until_its_request_ends() -> None:
    desk = Desk()
    one, three = desk.accept("a"), desk.accept("b", n=3)
    assert (len(desk.accepted), desk.accepted.sequences, desk.accepted.best_effort) == (2, 4, 0)
    assert desk.in_mirror == ["a", *three.keys]
    three.cancelled()
    assert (len(desk.accepted), desk.accepted.sequences, desk.in_mirror) == (1, 1, ["a"])
    one.cancelled()
    assert (len(desk.accepted), desk.accepted.sequences, desk.in_mirror) == (0, 0, [])
    assert desk.gate.over == [("b", False), ("a", False)]


def test_best_effort_is_counted_by_answers() -> None:
    desk = Desk()
    desk.accept("a")
    best_effort = desk.accept("b", best_effort=True, n=2)
    assert desk.accepted.best_effort == 2
    assert best_effort.job is not None and best_effort.job.best_effort
    best_effort.cancelled()
    assert desk.accepted.best_effort == 0


@pytest.mark.parametrize(
    ("fields", "counted", "timed"),
    [
        ({}, True, False),
        ({"stream": False}, True, True),
        ({"prompt": "text"}, False, False),
        ({"prompt": [[1], [2, 3]]}, False, False),
    ],
    ids=["token ids", "not streamed", "text", "several prompts"],
)
def test_a_counted_prompt_is_exact_and_tokens_of_unread_answers_are_timed(
    fields: dict[str, Any], counted: bool, timed: bool
) -> None:
    desk = Desk()
    request = desk.accept("a", **fields)
    assert desk.mirror.reported == [(key, 100.25, counted, timed) for key in request.keys]


def test_a_request_that_was_never_accepted_frees_no_place() -> None:
    desk = Desk()
    request = desk.accept("a")
    request.cancelled()
    assert not desk.accepted.discard(request)
    assert desk.discarded == [True]
    assert desk.gate.over == [("a", False)]


def test_an_engine_without_capacity_is_counted_and_passed_to_the_gate() -> None:
    desk = Desk()
    desk.accept("a").engine_full()
    desk.accept("b").engine_lost()
    assert desk.metric("engine_full_total") == 1
    assert desk.gate.over == [("a", True), ("b", False)]


def test_length_and_speed_are_learned_from_a_whole_answer() -> None:
    desk = Desk()
    request = desk.accept("a")
    request.output(b"x", 1, 0, 101.0)
    request.output(b"x", 1, 0, 101.5)
    request.finished(EngineUsage(3, 2), (), 0)
    assert (desk.estimates.prompts, desk.estimates.answers) == ([3], [(3, 2)])
    assert (desk.metric("ttft_seconds_sum", tier="chat"), desk.metric("tpot_seconds_sum", tier="chat")) == (
        1,
        0.5,
    )


@pytest.mark.parametrize(
    ("targets", "met"),
    [
        (Targets(), True),
        (Targets(ttft_s=1.0, tpot_s=0.5, e2e_s=1.5), True),
        (Targets(ttft_s=0.9), False),
        (Targets(tpot_s=0.4), False),
        (Targets(tpot_s=0.4, answer_tpot_s=0.6), True),
        (Targets(e2e_s=1.4), False),
    ],
)
def test_a_missed_slo_of_an_admitted_request_widens_the_margin(targets: Targets, met: bool) -> None:
    desk = Desk()
    request = desk.accept("a", targets=targets)
    request.output(b"x", 1, 0, 101.0)
    request.output(b"x", 1, 0, 101.5)
    request.finished(EngineUsage(3, 2), (), 0)
    assert (desk.estimates.admission_model(101.5) == desk.estimates.model) is met


def report(keys: Sequence[str], generated_tokens: int = 0, step_s: float = 0.05) -> StepReport:
    """A report of requests that wait until they have generated a token."""
    running = len(keys) if generated_tokens else 0
    return StepReport(
        next_duration_s=step_s,
        running=running,
        waiting=len(keys) - running,
        request_ids=keys,
        computed_tokens=[3 if running else 0 for _ in keys],
        generated_tokens=[generated_tokens for _ in keys],
        best_effort=[False for _ in keys],
    )


def streamed(desk: Desk, busy: bool) -> None:
    """A stream that is accepted at 100.25 s, while the engine is idle, or in a step that ends at 100.5 s."""
    desk.mirror.apply(report([], step_s=0.5 if busy else 0.0), 100.0)
    request = desk.accept("a")
    if busy:
        desk.mirror.apply(report([]), 100.5)
    desk.mirror.apply(report(["a"]), 100.75)
    desk.mirror.apply(report(["a"], 1), 101.0)
    request.output(b"x", 1, 0, 101.125)
    request.output(b"x", 1, 0, 102.0)
    request.finished(EngineUsage(3, 2), (), 0)


@pytest.mark.parametrize(("busy", "seconds"), [(False, 0.5 + 0.125), (True, 0.25 + 0.125)])
def test_the_time_outside_of_iterations_is_learned_from_streams(busy: bool, seconds: float) -> None:
    desk = Desk()
    for _ in range(FEWEST):
        streamed(desk, busy)
    assert desk.estimates.delivery_s == pytest.approx(seconds)
    assert desk.registry.get_sample_value("penstock_replica_delivery_seconds") == pytest.approx(seconds)


def test_nothing_is_learned_from_answers_whose_first_token_nobody_saw() -> None:
    desk = Desk()
    for _ in range(2 * FEWEST):
        desk.mirror.apply(report([], step_s=0.0), 100.0)
        request = desk.accept("a", stream=False)
        desk.mirror.apply(report(["a"]), 100.75)
        desk.mirror.apply(report(["a"], 1), 101.0)
        request.output(b"x", 2, 0, 103.0)
        request.finished(EngineUsage(3, 2), (), 0)
    assert desk.estimates.delivery_s == 0.0


def test_nothing_is_learned_while_reports_do_not_list_all_that_wait() -> None:
    desk = Desk()
    for _ in range(2 * FEWEST):
        desk.mirror.apply(report([], step_s=1.0), 100.0)
        request = desk.accept("a")
        unlisted = report([])
        unlisted.waiting = 1
        desk.mirror.apply(unlisted, 100.5)
        desk.mirror.apply(report(["a"]), 105.0)
        desk.mirror.apply(report(["a"], 1), 106.0)
        request.output(b"x", 1, 0, 106.0)
        request.output(b"x", 1, 0, 107.0)
        request.finished(EngineUsage(3, 2), (), 0)
    assert desk.estimates.delivery_s == 0.0


@pytest.mark.parametrize(("learned_s", "met"), [(0.0, False), (0.25, True)])
def test_a_request_is_judged_by_its_clients_target(learned_s: float, met: bool) -> None:
    desk = Desk()
    request = desk.accept("a", targets=Targets(ttft_s=0.8, e2e_s=1.3))  # the client's are 0.25 s longer
    request.learned_delivery_s = learned_s
    request.output(b"x", 1, 0, 101.0)
    request.output(b"x", 1, 0, 101.5)
    request.finished(EngineUsage(3, 2), (), 0)
    assert (desk.estimates.admission_model(101.5) == desk.estimates.model) is met


def test_a_best_effort_request_never_changes_the_margin() -> None:
    desk = Desk()
    request = desk.accept("a", best_effort=True, targets=Targets(ttft_s=0.1))
    request.output(b"x", 1, 0, 101.0)
    request.finished(EngineUsage(3, 1), (), 0)
    assert desk.estimates.admission_model(101.0) == desk.estimates.model


def test_an_answer_of_one_token_has_no_tpot() -> None:
    desk = Desk()
    request = desk.accept("a")
    request.output(b"x", 1, 0, 101.0)
    request.finished(EngineUsage(3, 1), (), 0)
    assert desk.metric("ttft_seconds_count", tier="chat") == 1
    assert not desk.metric("tpot_seconds_count", tier="chat")


def test_of_several_answers_one_is_learned_and_of_several_prompts_none() -> None:
    desk = Desk()
    request = desk.accept("a", prompt=[[1], [2, 3]], n=2)
    request.output(b"x", 8, 0, 101.0)
    request.finished(EngineUsage(6, 8), (), 0)
    assert (desk.estimates.prompts, desk.estimates.answers) == ([], [(3, 2)])


def test_planned_and_found_cached_tokens_are_counted_if_the_engine_reports_them() -> None:
    desk = Desk()
    for planned, found in ((32, 32), (32, 16), (0, 48), (32, None)):
        request = desk.accept("a")
        assert request.job is not None
        if planned:
            request.job = with_cached_prefix(request.job, planned, 2)
        request.output(b"x", 1, 0, 101.0)
        request.finished(EngineUsage(60, 1, found), (), 0)
    counted = [desk.metric(f"cached_tokens_{name}_total") for name in ("planned", "found", "missing")]
    assert (counted, desk.metric("prompt_tokens_total")) == ([64, 96, 16], 180)


def test_a_request_that_ended_otherwise_is_not_learned_from() -> None:
    desk = Desk()
    request = desk.accept("a")
    request.output(b"x", 1, 0, 101.0)
    request.engine_lost()
    assert (desk.estimates.prompts, desk.estimates.answers) == ([], [])
    assert not desk.metric("ttft_seconds_count", tier="chat")


def test_a_prompt_that_the_engine_has_reported_is_learned_once() -> None:
    desk = Desk()
    request, several = desk.accept("a"), desk.accept("b", prompt=[[1], [2, 3]])
    for key in ("a", "b", "unknown"):
        desk.accepted.prompt_known(key, 30)
    assert (request.prompt_reported, several.prompt_reported) == (True, False)
    request.output(b"x", 1, 0, 101.0)
    request.finished(EngineUsage(31, 1), (), 0)
    assert desk.estimates.prompts == [30]


def held(*rows: tuple[str, int]) -> StepReport:
    """Return a report in which the engine has these requests, with their generated tokens."""
    names, generated = zip(*rows, strict=True)
    return StepReport(
        sequence=1,
        running=len(rows),
        request_ids=names,
        computed_tokens=[3] * len(rows),
        generated_tokens=generated,
        best_effort=[False] * len(rows),
    )


def test_a_drain_returns_requests_that_the_engine_has_not_started() -> None:
    desk = Desk()
    streaming, begun, waiting, held_back = (desk.accept(key) for key in "abcd")
    desk.mirror.apply(held(("a", 1), ("b", 0), ("d", 1)), 100.5)
    streaming.output(b"x", 1, 0, 101.0)
    desk.gate.held.add("d")
    desk.accepted.return_waiting()
    assert [request.ended for request in (streaming, begun, waiting, held_back)] == [False, False, True, True]
    assert waiting.state is State.RETURNED
    assert desk.metric("returned_total") == 2


def test_without_reports_an_answer_that_is_not_streamed_may_have_begun() -> None:
    desk = Desk()
    whole, stream = desk.accept("a", stream=False), desk.accept("b")
    desk.accepted.return_waiting()
    assert (whole.ended, stream.ended) == (False, True)


@pytest.mark.parametrize("all_lost", [True, False])
def test_a_missing_engine_ends_lost_and_held_requests(all_lost: bool) -> None:
    desk = Desk()
    inside, held_back = desk.accept("a"), desk.accept("b")
    desk.mirror.apply(held(("a", 1)), 100.5)
    desk.gate.held.add("b")
    desk.accepted.engine_down(all_lost)
    assert (inside.ended, held_back.ended) == (all_lost, True)
    assert not desk.mirror.check(100.5)


def test_closing_cancels_all_requests() -> None:
    desk = Desk()
    both = desk.accept("a"), desk.accept("b")
    desk.accepted.cancel_all()
    assert [request.state for request in both] == [State.CANCELLED] * 2
    assert len(desk.accepted) == 0


def ended_overdue(desk: Desk, monkeypatch: pytest.MonkeyPatch, *overdue: str) -> tuple[bool, list[Expected]]:
    """What `end_overdue` returns where these answers are overdue, and what was expected of each."""
    requested: list[Expected] = []

    def signs(request_id: str, shows_output: bool) -> Signs | None:
        found = ReplicaMirror.signs(desk.mirror, request_id, shows_output)
        assert found is not None
        return found._replace(own_s=0.0 if request_id in overdue else 200.0)

    def is_overdue(signs: Signs, expected: Expected, now_s: float, silence_s: float) -> bool:
        requested.append(expected)
        assert (now_s, silence_s) == (200.0, 5.0)
        return signs.own_s == 0.0

    monkeypatch.setattr(desk.mirror, "signs", signs)
    monkeypatch.setattr(accepted_requests, "is_overdue", is_overdue)
    now = Snapshot(step_s=0.01, work_s=3.0)
    return desk.accepted.end_overdue(now, 200.0, 5.0), requested


def test_requests_without_progress_are_ended_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    stuck, going = desk.accept("a"), desk.accept("b")
    assert ended_overdue(desk, monkeypatch, "a")[0]
    assert (stuck.ended, going.ended) == (True, False)
    assert desk.metric("stalled_total", tier="chat", at="queued") == 1


def test_while_all_requests_progress_none_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    request = desk.accept("a")
    assert ended_overdue(desk, monkeypatch) == (False, [Expected(0.25, 0.05, 3.0, 500)])
    assert not request.ended


def test_one_progressing_answer_of_several_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    one, other = desk.accept("a", n=2), desk.accept("b", n=2)
    assert ended_overdue(desk, monkeypatch, *one.keys, other.keys[1])[0]
    assert (one.ended, other.ended) == (True, False)


def test_requests_held_by_the_gate_are_not_expected_to_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    request = desk.accept("a")
    desk.gate.held.add("a")
    assert not ended_overdue(desk, monkeypatch, "a")[0]
    assert not request.ended


def test_best_effort_is_expected_to_progress_at_the_replica_s_own_speed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk()
    desk.accept("a", best_effort=True)
    assert ended_overdue(desk, monkeypatch)[1] == [Expected(0.0, 0.01, 3.0, 500)]
