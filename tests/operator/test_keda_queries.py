"""What KEDA's queries mean: asked of a real Prometheus, read as KEDA reads, decided as an HPA decides.

Every past is a namespace of its own in one Prometheus, written before it starts and asked as of one moment.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from keda.prometheus import prometheus
from keda.scaler import Keda
from penstock_operator.manifests.manifest import Manifest, PoolOwner
from penstock_operator.objects.pool_objects import desired
from penstock_operator.objects.render_context import RenderFacts
from penstock_operator.settings import OperatorSettings
from penstock_operator.tls.credentials import Credentials
from penstock_pool import Pool

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SCRAPED_S = 15
TIERS: list[dict[str, Any]] = [
    {"name": "chat", "slo": {"ttft": "1s", "tpot": "100ms"}},
    {"name": "coder", "slo": {"ttft": "1s", "tpot": "50ms"}},
    {"name": "batch", "bestEffort": True},
    {"name": "jobs", "bestEffort": True},
]
VERDICTS = ("admitted", "best-effort", "rejected", "never")
Rates = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Past:
    """Some minutes of a pool.

    rates: requests a second by tier and verdict. filled: of each replica. open: requests at the end.
    unseen: metrics that Prometheus did not get, by what they begin with.
    """

    ready: int = 2
    rates: Rates = field(default_factory=dict)
    filled: float = 0.5
    open: int = 10
    seconds: int = 300
    unseen: str = "none"


def mixed(**tiers: Mapping[str, float]) -> Rates:
    return tiers


QUIET = Past()
REFUSED = Past(rates=mixed(chat={"rejected": 3.0}), filled=1.0)
THIRD = Past(rates=mixed(chat={"admitted": 2.0, "best-effort": 1.0}), filled=0.8)
BATCH = Past(rates=mixed(chat={"admitted": 1.0}, batch={"best-effort": 1.0}, jobs={"best-effort": 3.0}))
FEW = Past(rates=mixed(chat={"admitted": 0.01, "rejected": 0.01}))
HELD = Past(ready=0, open=1)

PASTS: dict[str, tuple[Past, ...]] = {
    "quiet": (QUIET,),
    "refused": (REFUSED,),
    "served-best-effort": (replace(REFUSED, rates=mixed(chat={"best-effort": 3.0})),),
    "third": (THIRD,),
    "worst-tier": (replace(THIRD, ready=4, rates=mixed(chat={"admitted": 99.0}, coder=THIRD.rates["chat"])),),
    "within-target": (Past(rates=mixed(chat={"admitted": 97.0, "rejected": 3.0})),),
    "few": (FEW,),
    "never": (Past(rates=mixed(chat={"admitted": 1.0, "never": 9.0})),),
    "grown": (replace(REFUSED, rates=mixed(chat={"admitted": 2.0, "rejected": 2.0})),
              Past(ready=4, rates=mixed(chat={"admitted": 4.0}), filled=0.9, seconds=60)),
    "full": (Past(rates=mixed(chat={"admitted": 3.0}), filled=1.0),),
    "asleep": (Past(ready=0, open=0),),
    "held": (HELD,),
    "idle": (Past(filled=0.0, open=0),),
    "idle-with-batch": (Past(filled=0.0, open=5000, rates=BATCH.rates),),
    "no-routers": (replace(QUIET, ready=4, filled=0.1, unseen="penstock_router"),),
    "no-replicas": (replace(QUIET, ready=4, unseen="penstock_replica"),),
    "nothing": (replace(QUIET, ready=4, unseen="penstock"),),
} | {f"batch-{ready}": (replace(BATCH, ready=ready),) for ready in (1, 2, 4, 8)}  # fmt: skip


def samples(namespace: str, phases: tuple[Past, ...]) -> Iterator[str]:
    """Return the series that Prometheus scraped in all phases until now, in order of time."""
    series: dict[str, list[str]] = {}
    counts = {(tier["name"], verdict): 0.0 for tier in TIERS for verdict in VERDICTS}
    at_s = NOW.timestamp() - sum(past.seconds for past in phases)
    for past in phases:
        for _ in range(past.seconds // SCRAPED_S):
            at_s += SCRAPED_S
            for tier, verdict in counts:
                counts[tier, verdict] += past.rates.get(tier, {}).get(verdict, 0.0) * SCRAPED_S
            for name, value in scrape(namespace, past, counts).items():
                if not name.startswith(past.unseen):
                    series.setdefault(name, []).append(f"{name} {value:g} {at_s:.0f}")
    for lines in series.values():
        yield from lines


def scrape(namespace: str, past: Past, counts: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """One scrape of two routers, which share the requests, and of every replica, as behind a gateway."""
    found: dict[str, float] = {}
    for router in ("a", "b"):
        at = f'namespace="{namespace}",service="llama",pod="llama-router-{router}"'
        found[f"penstock_router_open_requests{{{at}}}"] = past.open / 2
        for (tier, verdict), count in counts.items():
            labels = f'{at},tier="{tier}",verdict="{verdict}"'
            found[f"penstock_router_verdicts_total{{{labels}}}"] = count / 2
        for number in range(past.ready):
            found[f'penstock_router_replica_ready{{{at},replica="llama-replica-{number}"}}'] = 1.0
    for number in range(past.ready):
        at = f'namespace="{namespace}",service="llama-replicas",pod="llama-replica-{number}"'
        found[f"penstock_replica_engine_ready{{{at}}}"] = 1.0
        found[f"penstock_replica_filled_ratio{{{at}}}"] = past.filled
        found[f"penstock_replica_http_open_requests{{{at}}}"] = past.open / past.ready
        for (tier, verdict), count in counts.items():
            labels = f'{at},tier="{tier}",verdict="{verdict}"'
            found[f"penstock_replica_http_verdicts_total{{{labels}}}"] = count / past.ready
    return found


@pytest.fixture(scope="module")
def keda(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keda]:
    folder: Path = tmp_path_factory.mktemp("prometheus")
    lines = (line for name, phases in PASTS.items() for line in samples(name, phases))
    with prometheus(folder, lines) as url:
        yield Keda(url, NOW)


Wanted = Callable[..., int]


@pytest.fixture
def wanted(
    keda: Keda, make_pool: Callable[..., Pool], settings: OperatorSettings, credentials: Credentials
) -> Wanted:
    """Return KEDA's number of replicas for a pool with this past and present number."""

    def replicas(past: str, now: int, gateway: str = "router", **autoscaling: Any) -> int:
        reported = {"minReplicas": 1, "maxReplicas": 16, "targetAttainment": 0.95} | autoscaling
        reported |= {"by": "keda", "prometheusUrl": keda.prometheus}
        made = desired(
            make_pool(tiers=TIERS, autoscaling=reported, gateway=gateway),
            PoolOwner("llama", past, "uid"),
            settings,
            RenderFacts(now, credentials),
        )
        return keda.replicas(scaled_object(made), now)

    return replicas


def scaled_object(made: tuple[Manifest, ...]) -> Manifest:
    (found,) = (one for one in made if one["kind"] == "ScaledObject")
    return found


@pytest.mark.parametrize("ready", [1, 2, 4, 8])
def test_best_effort_never_adds_a_replica(wanted: Wanted, ready: int) -> None:
    assert wanted(f"batch-{ready}", ready) <= ready


@pytest.mark.parametrize("past", ["refused", "served-best-effort"])
def test_if_all_requests_are_refused_the_replicas_are_doubled(wanted: Wanted, past: str) -> None:
    assert wanted(past, 2) == 5  # twice as many, 0.9 full


@pytest.mark.parametrize(
    ("past", "expected"), [("refused", 5), ("third", 4), ("full", 3), ("idle", 1), ("few", 2)]
)
@pytest.mark.parametrize("gateway", ["envoy", "inferencePool"])
def test_behind_another_gateway_the_sidecars_metrics_give_the_same_number(
    wanted: Wanted, gateway: str, past: str, expected: int
) -> None:
    assert wanted(past, 2, gateway) == expected


@pytest.mark.parametrize("past", ["no-replicas", "nothing"])
def test_no_replica_is_removed_behind_another_gateway_either(wanted: Wanted, past: str) -> None:
    assert wanted(past, 4, "envoy") == 4


def test_one_third_of_requests_refused_adds_half_as_many_replicas(wanted: Wanted) -> None:
    assert wanted("third", 2) == 4  # 3, 0.9 full


def test_the_worst_tier_decides_for_the_pool(wanted: Wanted) -> None:
    assert wanted("worst-tier", 4) == 7  # 6, 0.9 full


def test_a_share_within_the_target_adds_nothing(wanted: Wanted) -> None:
    assert wanted("within-target", 2) == 2
    assert wanted("within-target", 2, targetAttainment=0.99) == 3


def test_two_refusals_are_too_few_to_scale_up(wanted: Wanted) -> None:
    assert wanted("few", 2) == 2


def test_requests_that_no_replica_can_serve_add_no_replica(wanted: Wanted) -> None:
    assert wanted("never", 2) == 2


def test_rejections_by_fewer_replicas_add_none_to_the_present_ones(wanted: Wanted) -> None:
    """Half was refused by two until a minute ago, when two more came and took it all."""
    assert wanted("grown", 4) == 4


def test_full_replicas_add_more_before_a_request_is_refused(wanted: Wanted) -> None:
    assert wanted("full", 2) == 3


def test_unused_replicas_are_removed(wanted: Wanted) -> None:
    assert wanted("idle", 2) == 1
    assert wanted("idle", 2, minReplicas=0) == 0


def test_a_pool_scaled_to_zero_stays_there_until_a_request_is_held(wanted: Wanted) -> None:
    assert wanted("asleep", 0, minReplicas=0) == 0
    assert wanted("held", 0, minReplicas=0) == 1


def test_best_effort_keeps_one_replica_only(wanted: Wanted) -> None:
    assert wanted("idle-with-batch", 2, minReplicas=0) == 1


@pytest.mark.parametrize("past", ["no-routers", "no-replicas", "nothing"])
@pytest.mark.parametrize("least", [0, 1])
def test_no_replica_is_removed_if_prometheus_has_no_data(wanted: Wanted, past: str, least: int) -> None:
    assert wanted(past, 4, minReplicas=least) == 4
