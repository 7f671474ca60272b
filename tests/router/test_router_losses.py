"""Replicas that are lost, fall silent or hand requests back, and the effect on each request."""

import asyncio
from time import monotonic

import pytest
from loop_time import skip
from patience import eventually
from penstock_core.routing import outlier_detection, progress
from penstock_core.routing.retry_budget import RetryBudget
from penstock_proto import replica_pb2 as wire
from penstock_routing.replicas import ejection, replica_link, replica_set
from penstock_routing.replicas.link_state import LinkState
from scripted.replica import (
    VERDICT_TIMEOUT_S,
    Part,
    Script,
    ScriptedReplica,
    answers,
    chat_chunk,
    exceeds_verdict_timeout,
    is_silent,
)
from scripted.router import RunningRouter, running_router


class Clock:
    """The clock of ejections, which a test moves on."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return monotonic() + self.ahead_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (ejection, replica_link, replica_set):
        monkeypatch.setattr(module, "monotonic", made)
    monkeypatch.setattr(outlier_detection, "FIRST_S", outlier_detection.LONGEST_S)
    return made


def killed_by_requests(count: int) -> list[ScriptedReplica]:
    """Return replicas that end with their first request."""
    replicas = [ScriptedReplica(f"r{n}") for n in range(count)]
    for replica in replicas:
        replica.script = dies(replica)
    return replicas


def dies(replica: ScriptedReplica) -> Script:
    async def script(part: Part) -> None:
        asyncio.get_running_loop().create_task(replica.die())

    return script


async def returns(part: Part) -> None:
    part.fail(wire.FAILURE_RETURNED, 503)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_that_crashes_replicas_reaches_two_of_them_at_most(stream: bool) -> None:
    replicas = killed_by_requests(4)
    async with running_router(*replicas) as router:
        reply = await router.chat({"x-request-id": "mine"}, stream=stream)
    assert reply.status_code == 502
    assert reply.json()["error"]["code"] == "replica_lost"
    assert reply.headers["x-should-retry"] == "false"
    assert reply.headers["x-request-id"] == "mine"
    assert [len(replica.parts) for replica in replicas] == [1, 1, 0, 0]


async def test_engines_lost_with_a_request_count_as_well() -> None:
    async def loses_its_engine(part: Part) -> None:
        part.admit()
        part.fail(wire.FAILURE_ENGINE_LOST, 502)

    replicas = [ScriptedReplica(f"r{n}", loses_its_engine) for n in range(3)]
    async with running_router(*replicas) as router:
        assert (await router.chat()).status_code == 502
        assert await router.metric('penstock_router_failovers_total{tier="chat"}') == 2
        await router.counted('penstock_router_requests_total{ending="failed",reason="replica_lost"')
    assert [len(replica.parts) for replica in replicas] == [1, 1, 0]


async def test_returned_requests_try_the_next_replica_and_count_as_no_loss() -> None:
    replicas = [*(ScriptedReplica(f"r{n}", returns) for n in range(3)), ScriptedReplica("r3")]
    async with running_router(*replicas) as router:
        reply = await router.chat()
        assert (reply.status_code, reply.headers["x-penstock-replica"]) == (200, "r3")
        assert reply.headers["x-penstock-hops"] == "1"
        assert await router.metric('penstock_router_failovers_total{tier="chat"}') == 0
        assert await router.metric("penstock_router_replays_left") == RetryBudget().left


async def test_a_request_returned_by_all_replicas_may_be_retried() -> None:
    async with running_router(ScriptedReplica("r0", returns)) as router:
        reply = await router.chat()
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_replicas")
    assert reply.headers["retry-after"] == "1"


async def test_without_retry_budget_a_loss_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = killed_by_requests(3)
    async with running_router(*replicas) as router:
        monkeypatch.setattr(router.replica_set, "_budget", RetryBudget(0.0))
        reply = await router.chat()
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "replica_lost")
    assert reply.headers["retry-after"] == "1"
    assert "x-should-retry" not in reply.headers
    assert [len(replica.parts) for replica in replicas] == [1, 0, 0]


async def test_a_loss_is_paid_by_the_retry_budget_and_requests_fill_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    r0, r1 = killed_by_requests(1)[0], ScriptedReplica("r1")
    async with running_router(r0, r1) as router:
        monkeypatch.setattr(router.replica_set, "_budget", RetryBudget(10.0))
        assert (await router.chat()).status_code == 200
        assert await router.metric("penstock_router_replays_left") == pytest.approx(9.2)


async def test_a_silent_replica_is_ejected_and_comes_back(clock: Clock) -> None:
    r0, r1 = ScriptedReplica("r0", exceeds_verdict_timeout), ScriptedReplica("r1")
    async with running_router(r0, r1) as router:
        await until_ejected(router, "r0")
        assert len(r0.parts) == outlier_detection.CONSECUTIVE
        assert await router.metric('penstock_router_replica_ejected{replica="r0"}') == 1
        assert await router.metric('penstock_router_ejections_total{replica="r0"}') == 1
        r0.script = answers
        clock.ahead_s += outlier_detection.LONGEST_S
        assert len(router.replica_set.loads()) == 2
        await served_by(router, "r0")
        assert await router.metric('penstock_router_replica_ejected{replica="r0"}') == 0
        assert r0.sessions == 1


async def test_a_half_open_replica_that_stays_silent_costs_one_request(clock: Clock) -> None:
    r0, r1 = ScriptedReplica("r0", exceeds_verdict_timeout), ScriptedReplica("r1")
    async with running_router(r0, r1) as router:
        await until_ejected(router, "r0")
        r0.script = is_silent
        clock.ahead_s += outlier_detection.LONGEST_S
        assert len(router.replica_set.loads()) == 2
        asking = [asyncio.create_task(router.chat()) for _ in range(8)]
        await eventually(lambda: sum(task.done() for task in asking) == 7)
        await skip(VERDICT_TIMEOUT_S)
        replies = await asyncio.gather(*asking)
        assert {reply.headers["x-penstock-replica"] for reply in replies} == {"r1"}
        assert len(r0.parts) == outlier_detection.CONSECUTIVE + 1


async def test_the_last_replica_is_never_ejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is moved past what a description may take, which would end the session."""
    monkeypatch.setattr(replica_link, "DESCRIBE_INTERVAL_S", 3600.0)
    replica = ScriptedReplica("r0", exceeds_verdict_timeout)
    async with running_router(replica) as router:
        for _ in range(outlier_detection.CONSECUTIVE + 2):
            assert (await router.chat()).status_code == 503
        assert len(replica.parts) == outlier_detection.CONSECUTIVE + 2
        replica.script = answers
        assert (await router.chat()).status_code == 200


async def test_a_process_that_hangs_with_an_open_connection_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_link, "DESCRIBE_INTERVAL_S", 0.02)
    monkeypatch.setattr(replica_link, "CONNECT_S", 0.05)

    async def begins(part: Part) -> None:
        part.admit()
        part.output(chat_chunk("one"))

    replica = ScriptedReplica("r0", begins)
    async with running_router(replica) as router:
        streaming = asyncio.create_task(router.chat(stream=True))
        await eventually(lambda: len(replica.parts) == 1)
        replica.hangs = True
        assert '"code":"replica_lost"' in (await streaming).text
        await eventually(lambda: router.replica_set["r0"].state is LinkState.LOST)
        replica.hangs = False
        await router.all_in(LinkState.READY)


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas may be silent about a request for milliseconds."""
    monkeypatch.setattr(replica_link, "SWEEP_S", 0.01)
    monkeypatch.setattr(progress, "SHORTEST_S", 0.05)
    monkeypatch.setattr(progress, "TIMES_FORECAST", 0.0)


@pytest.mark.usefixtures("short_timeouts")
@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_without_messages_fails_over_to_another_replica(stream: bool) -> None:
    async def admits_and_forgets(part: Part) -> None:
        part.admit()

    r0, r1 = ScriptedReplica("r0", admits_and_forgets), ScriptedReplica("r1")
    async with running_router(r0, r1) as router:
        reply = await router.chat(stream=stream)
        assert (reply.status_code, reply.headers["x-penstock-replica"]) == (200, "r1")
        await r0.parts[0].cancelled.wait()
        assert await router.metric('penstock_router_stalled_requests_total{replica="r0"}') == 1


@pytest.mark.usefixtures("short_timeouts")
async def test_a_stream_without_further_messages_ends_with_an_error_event() -> None:
    async def begins_and_forgets(part: Part) -> None:
        part.admit()
        part.output(chat_chunk("one"))

    replica = ScriptedReplica("r0", begins_and_forgets)
    async with running_router(replica) as router:
        text = (await router.chat(stream=True)).text
        await replica.parts[0].cancelled.wait()
    assert text.count("data: ") == 2
    assert '"code":"replica_lost"' in text


async def until_ejected(router: RunningRouter, name: str) -> None:
    while name in [load.name for load in router.replica_set.loads()]:
        assert (await router.chat()).status_code == 200


async def served_by(router: RunningRouter, name: str) -> None:
    while (reply := await router.chat()).headers["x-penstock-replica"] != name:
        assert reply.status_code == 200
