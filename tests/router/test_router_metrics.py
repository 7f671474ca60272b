"""A router's metrics: the present state of replicas, and judged answers."""

from typing import Any

import pytest
from histogram_buckets import documented, exported
from penstock_core.domain.slo import Slo, Targets, Tier
from penstock_proto import replica_pb2 as wire
from penstock_router.observability.metrics import Metrics
from penstock_routing.discovery.endpoints import Fixed
from penstock_routing.replicas.replica_link import ReplicaLink
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_routing.request.outcome import Ending, Outcome
from scripted.router import make_link


class Counted:
    """The metrics of a router whose replica is not connected, as Prometheus reads them."""

    def __init__(self) -> None:
        self.tier = Tier("chat", Slo(1.0, tpot_s=0.1, e2e_s=10.0))
        self.replica_set = ReplicaSet(make_link)
        self.link: ReplicaLink = make_link("r0", "127.0.0.1:1")
        self.replica_set._links["r0"] = self.link
        self.metrics = Metrics({"chat": self.tier}, self.replica_set)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"penstock_router_{name}", labels)

    def answered(self, stream: bool, *times_s: float, gaps_us: Any = ()) -> None:
        outcome = Outcome(self.tier, Targets(), 100.0, stream, ending=Ending.ANSWERED, ended_s=102.0)
        outcome.token_times_s, outcome.hops = list(times_s), 1
        outcome.finished = wire.Finished(completion_tokens=2, token_gaps_us=gaps_us)
        self.metrics.ended(outcome, None)


async def test_metrics_have_the_state_of_replicas() -> None:
    counted = Counted()
    of = {"replica": "r0"}
    names = (
        "replica_ready",
        "replica_ejected",
        "ejections_total",
        "stalled_requests_total",
        "replica_malformed_total",
    )
    assert [counted.value(name, **of) for name in names] == [0] * 5
    counted.link.stalled, counted.link.malformed = 3, 4
    for _ in range(3):
        counted.link.ejection.failed()
    counted.link._state = type(counted.link.state).READY
    assert [counted.value(name, **of) for name in names] == [1, 1, 1, 3, 4]


async def test_metrics_have_the_retry_budget_and_the_source_of_replicas() -> None:
    counted = Counted()
    assert counted.value("discovery_connected") == 0
    assert counted.value("discovery_malformed_total") == 0
    full = counted.value("replays_left")
    assert counted.replica_set.take_replay()
    left = counted.value("replays_left")
    assert full is not None
    assert left == full - 1
    source = Fixed({})
    source.malformed = 2
    counted.replica_set._source = source
    assert (counted.value("discovery_connected"), counted.value("discovery_malformed_total")) == (1, 2)


def test_every_verdict_is_a_series_from_the_start() -> None:
    counted = Counted()
    for verdict in ("admitted", "best-effort", "rejected", "never"):
        assert counted.value("verdicts_total", tier="chat", verdict=verdict) == 0


@pytest.mark.parametrize(
    ("stream", "times_s", "gaps_us", "untimed"),
    [
        (True, (100.5, 100.55), (), None),
        (False, (), (500_000, 50_000), None),
        (False, (), (), 1),
        (True, (), (), None),
    ],
    ids=["a stream", "a whole answer", "one of an engine that does not report", "a stream of nothing"],
)
def test_answers_without_token_times_are_counted(
    stream: bool, times_s: tuple[float, ...], gaps_us: tuple[int, ...], untimed: float | None
) -> None:
    counted = Counted()
    counted.answered(stream, *times_s, gaps_us=gaps_us)
    assert counted.value("untimed_answers_total", tier="chat") == untimed
    assert counted.value("e2e_seconds_sum", tier="chat") == 2.0
    assert counted.value("ttft_seconds_sum", tier="chat") == (0.5 if times_s or gaps_us else None)
    assert counted.value("slo_met_total", tier="chat") == 1


@pytest.mark.parametrize(
    "name",
    [
        "faults_total",
        "held_bytes",
        "held_requests",
        "open_requests",
        "redis_connected",
        "placements_received_total",
        "placements_malformed_total",
        "limits_decided_locally_total",
        "limits_shared",
    ],
)
def test_counters_start_at_zero(name: str) -> None:
    assert Counted().value(name) == 0


def test_histograms_have_the_buckets_that_the_docs_name() -> None:
    counted = Counted()
    counted.answered(True, 101.0, 101.5)
    assert exported(counted.metrics.registry) == documented("penstock_router_")
