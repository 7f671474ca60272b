import socket
from pathlib import Path
from typing import Any

import pytest
from patience import eventually
from penstock_core.timing.time_model import BatchWork
from penstock_proto import replica_pb2 as wire
from penstock_proto.telemetry_pb2 import Drafting, PolicyFaults, StepReport
from penstock_runtime.serving import StartError
from penstock_sidecar.requests.client_body import ClientBody, read_body
from penstock_sidecar.telemetry.policy_faults import KINDS
from penstock_sidecar.telemetry.socket import Continuity, TelemetrySocket

from tests.sidecar.conftest import DONE, TOKEN, Engine, Exchange, Rig, Router


def report(sequence: int, instance: str = "first", **more: Any) -> StepReport:
    return StepReport(sequence=sequence, engine_instance=instance, **more)


def held(key: str, computed: int, generated: int, sequence: int = 1, **more: Any) -> StepReport:
    """A report of one running request."""
    rows: dict[str, Any] = {
        "request_ids": [key],
        "computed_tokens": [computed],
        "generated_tokens": [generated],
    }
    memory: dict[str, Any] = {"kv_blocks_total": 500, "kv_blocks_free": 400, "block_tokens": 16}
    return report(sequence, running=1, best_effort=[False], **rows, **memory, **more)


def is_there(path: Path) -> bool:
    return path.exists()


@pytest.mark.parametrize(
    ("sequences", "lost"),
    [([1, 2, 3], 0), ([5], 0), ([1, 4], 2), ([1, 3, 6], 3), ([4, 2], 0)],
)
def test_gaps_in_sequence_numbers_count_lost_reports(sequences: list[int], lost: int) -> None:
    follows = Continuity()
    assert sum(follows.lost_before(report(n)) for n in sequences) == lost


def test_a_new_engine_starts_over() -> None:
    follows = Continuity()
    assert follows.lost_before(report(9)) == 0
    assert follows.lost_before(report(4, "second")) == 0
    assert follows.lost_before(report(6, "second")) == 1


async def test_reports_arrive_oldest_first_and_invalid_ones_are_skipped(socket_path: Path) -> None:
    got: list[StepReport] = []
    receiver = TelemetrySocket(socket_path, got.extend)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as engine:
        engine.connect(str(socket_path))
        for data in (report(1).SerializeToString(), b"\xff\xff\xff", report(2).SerializeToString()):
            engine.send(data)
        await eventually(lambda: len(got) == 2)
        assert [r.sequence for r in got] == [1, 2]
    receiver.close()
    assert not is_there(socket_path)


async def test_a_stale_socket_is_replaced_and_one_in_use_is_not(socket_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(socket_path))
    receiver = TelemetrySocket(socket_path, lambda _: None)
    with pytest.raises(StartError, match=f"cannot receive telemetry at {socket_path}: taken"):
        TelemetrySocket(socket_path, lambda _: None)
    receiver.close()


async def test_a_path_that_is_not_a_socket_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    with pytest.raises(StartError, match="cannot receive telemetry"):
        TelemetrySocket(file, lambda _: None)
    assert file.read_text() == "kept"
    with pytest.raises(StartError, match="no such file or directory"):
        TelemetrySocket(tmp_path / "nowhere" / "s", lambda _: None)


async def test_admission_plans_with_the_engines_reports(rig: Rig, engine: Engine, router: Router) -> None:
    await router.submit(1, {"prompt": "x" * 400, "stream": True})
    exchange = await engine.asked()
    rig.reports.receive([held(exchange.key, 120, 1, next_duration_s=0.5)])
    await router.submit(2)
    await router.first(2)
    view = rig.policy.views[-1]
    (job,) = view.running
    assert (job.request.prompt_tokens, job.generated_tokens) == (120, 1)
    assert (view.kv.total_blocks, view.kv.free_blocks) == (500, 400)
    assert view.busy_until_s > view.now_s
    assert rig.estimates.prompt_tokens(exchange_body()) > 100  # fewer bytes a token than four


def exchange_body() -> ClientBody:
    return read_body(wire.ENDPOINT_COMPLETIONS, b'{"prompt": "' + b"x" * 400 + b'"}')


async def test_iterations_correct_the_time_model(rig: Rig) -> None:
    before_s = rig.estimates.model.seconds(BatchWork(100))
    for n in range(1, 80):
        rig.reports.receive([report(n, duration_s=0.04, tokens=100)])
    assert rig.estimates.model.seconds(BatchWork(100)) > 1.5 * before_s
    assert rig.metric("time_model_error_ratio_count") == 79
    assert rig.metric("telemetry_reports_total") == 79


async def test_each_of_several_reports_is_learned_from_and_the_last_is_the_state(rig: Rig) -> None:
    rig.reports.receive(
        [held("x", 10, 0, 1, duration_s=0.02, tokens=100), held("y", 20, 0, 2, duration_s=0.02, tokens=100)]
    )
    (job,) = rig.mirror.view(0.0, rig.estimates.model).running
    assert job.request.id == "y"
    assert rig.metric("time_model_error_ratio_count") == 2


async def test_an_idle_report_is_not_learned_from_and_an_invalid_one_is_ignored(rig: Rig) -> None:
    rig.reports.receive([report(1), report(2, duration_s=float("inf"), tokens=1), report(3, duration_s=-1.0)])
    rig.reports.receive([report(4, duration_s=float("nan"), tokens=5)])
    assert rig.metric("time_model_error_ratio_count") == 0


async def test_loss_and_restart_are_counted(rig: Rig) -> None:
    rig.reports.receive([report(1), report(5)])
    rig.reports.receive([report(1, "second"), report(2, "second")])
    assert rig.metric("telemetry_lost_total") == 3
    assert rig.metric("engine_restarts_total") == 1


async def test_a_report_older_than_the_last_one_is_ignored(rig: Rig) -> None:
    memory: dict[str, Any] = {"kv_blocks_total": 500, "block_tokens": 16, "caches_prefixes": True}
    rig.reports.receive([report(1, **memory), report(3, kv_blocks_free=300, **memory)])
    lost = rig.metric("telemetry_lost_total")
    rig.reports.receive([report(2, kv_blocks_free=200, **memory)])
    assert rig.mirror.view(0.0, rig.estimates.model).kv.free_blocks == 300
    rig.reports.receive([report(4, kv_blocks_free=100, **memory)])
    assert rig.mirror.view(0.0, rig.estimates.model).kv.free_blocks == 100
    assert rig.metric("telemetry_lost_total") == lost == 1


async def test_a_report_may_be_incremental(rig: Rig) -> None:
    rows: dict[str, Any] = {"running": 1, "waiting": 1, "kv_blocks_total": 500, "block_tokens": 16}
    rig.reports.receive(
        [
            report(
                1,
                request_ids=["x", "y"],
                computed_tokens=[10, 0],
                generated_tokens=[3, 0],
                best_effort=[True, False],
                **rows,
            ),
            report(2, since=1, further_tokens=1, kv_blocks_free=300, **rows),
            report(3, since=1, further_tokens=2, kv_blocks_free=200, **rows),
        ]
    )
    view = rig.mirror.view(0.0, rig.estimates.model)
    (running,), (waiting,) = view.running, view.waiting
    assert (running.request.id, running.computed_tokens, running.generated_tokens) == ("x", 12, 5)
    assert running.best_effort
    assert (waiting.request.id, waiting.computed_tokens) == ("y", 0)
    assert view.kv.free_blocks == 200
    assert rig.metric("telemetry_lost_total") == 0


@pytest.mark.parametrize(
    "named", [report(3, since=2), report(2, "second", since=1)], ids=["lost", "another's"]
)
async def test_an_increment_of_a_missing_report_is_ignored(rig: Rig, named: StepReport) -> None:
    rig.reports.receive([held("x", 10, 3)])
    before = rig.metric("telemetry_lost_total")
    rig.reports.receive([named])
    (job,) = rig.mirror.view(0.0, rig.estimates.model).running
    assert (job.request.id, job.computed_tokens) == ("x", 10)
    assert rig.metric("telemetry_lost_total") > before
    rig.reports.receive([held("x", 14, 7, 4)])
    (job,) = rig.mirror.view(0.0, rig.estimates.model).running
    assert job.computed_tokens == 14


async def test_faults_of_the_policy_are_counted_by_kind_over_restarts(rig: Rig) -> None:
    rig.reports.receive([report(1), report(2, policy_faults=PolicyFaults(raised=3, too_slow=1))])
    rig.reports.receive([report(3, policy_faults=PolicyFaults(raised=5, too_slow=1))])
    rig.reports.receive(
        [report(1, "second"), report(2, "second", policy_faults=PolicyFaults(raised=2, plugin=1))]
    )
    counted = {kind: rig.metric("policy_faults_total", fault=kind) for kind in KINDS}
    assert counted == {"raised": 7, "impossible": 0, "too_slow": 1, "plugin": 1}


async def test_answer_lengths_are_learned(rig: Rig, engine: Engine, router: Router) -> None:
    body = {"prompt": [1, 2, 3], "max_tokens": 400, "stream": True}
    for id in range(1, 61):
        await router.submit(id, body)
        exchange = await engine.asked(id)
        await exchange.begin()
        await exchange.send(TOKEN * 5 + DONE)
        await exchange.end()
        await router.ended(id)
    first, last = rig.policy.asked[0][0], rig.policy.asked[-1][0]
    assert last.output_tokens < first.output_tokens <= 400


async def test_an_event_counts_the_tokens_that_a_speculating_engine_reported(
    rig: Rig, engine: Engine, router: Router
) -> None:
    await router.submit(1)
    exchange = await engine.asked()
    await exchange.begin()
    drafting = Drafting(max_tokens=4, acceptance=0.7)
    for step, generated in enumerate((1, 4, 6), 1):
        rig.reports.receive([held(exchange.key, 2 + generated, generated, step, drafting=drafting)])
        await exchange.send(TOKEN)
        await eventually(lambda step=step: router.data(1) == TOKEN * step)  # type: ignore[misc]
    await exchange.send(TOKEN + DONE)
    await exchange.end()
    finished = (await router.ended(1)).finished
    assert [event.output.tokens for event in router.events[1] if event.HasField("output")] == [1, 3, 2, 0]
    assert finished.completion_tokens == 6
    assert rig.metric("draft_acceptance_ratio") == 0.7


async def test_the_end_of_thinking_is_reported_at_the_end(rig: Rig, engine: Engine, router: Router) -> None:
    """By the engine's reports; without them, by what the tokens of a chat carry."""
    chat = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    thought = b'data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}\n\n'
    said = b'data: {"choices":[{"delta":{"content":"yes"}}]}\n\n'
    for id in (1, 2):
        await router.submit(id, chat, endpoint=wire.ENDPOINT_CHAT_COMPLETIONS)
        exchange = await engine.asked(id)
        await exchange.begin()
        await exchange.send(thought * 3 + said * 2)
        await eventually(lambda id=id: len(router.data(id)) > 0)  # type: ignore[misc]
        if id == 2:
            rig.reports.receive([held(exchange.key, 20, 5, thinking_tokens=[4])])
        await exchange.send(DONE)
        await exchange.end()
        assert (await router.ended(id)).finished.thinking_tokens == {1: 3, 2: 4}[id]


WHOLE = b'{"choices": [{"text": "a"}], "usage": {"prompt_tokens": 3, "completion_tokens": %d}}'


async def answered_whole(exchange: Exchange, tokens: int) -> None:
    await exchange.begin(content_type="application/json")
    await exchange.send(WHOLE % tokens)
    await exchange.end()


async def test_a_whole_answers_tokens_are_timed_by_the_engines_reports(
    rig: Rig, engine: Engine, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    times_s = iter([100.0, 100.5, 101.0])
    await router.submit(1, {"prompt": [1, 2, 3]}, spent_s=0.25)
    exchange = await engine.asked()
    asked_s = rig.mirror.view(0.0, rig.estimates.model).waiting[0].request.arrival_s
    monkeypatch.setattr(rig.reports, "_now_s", lambda: asked_s + next(times_s))
    rig.reports.receive([held(exchange.key, 3, 1)])
    await answered_whole(exchange, 3)
    finished = (await router.ended(1)).finished
    assert len(finished.token_gaps_us) == 3
    assert finished.token_gaps_us[0] == pytest.approx(100.5e6)
    assert finished.ttft_s == pytest.approx(100.25)


async def test_an_answer_of_one_token_has_the_time_of_its_end(
    rig: Rig, engine: Engine, router: Router
) -> None:
    await router.submit(1, {"prompt": [1, 2, 3]}, spent_s=0.25)
    exchange = await engine.asked()
    rig.reports.receive([report(1)])
    await answered_whole(exchange, 1)
    (gap_us,) = (await router.ended(1)).finished.token_gaps_us
    assert gap_us > 0.25e6


async def test_without_reports_a_whole_answer_has_no_token_times(
    rig: Rig, engine: Engine, router: Router
) -> None:
    await router.submit(1, {"prompt": [1, 2, 3]})
    await answered_whole(await engine.asked(), 3)
    assert not (await router.ended(1)).finished.token_gaps_us


async def test_a_stream_is_timed_by_its_reader(rig: Rig, engine: Engine, router: Router) -> None:
    await router.submit(1)
    exchange = await engine.asked()
    rig.reports.receive([held(exchange.key, 3, 1)])
    await exchange.begin()
    await exchange.send(TOKEN + DONE)
    await exchange.end()
    assert not (await router.ended(1)).finished.token_gaps_us
