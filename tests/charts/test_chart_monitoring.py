"""Alerts and dashboard speak of metrics and labels that there are, in PromQL that Prometheus reads."""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import promql_parser
import pytest
from chart.rendered import CHART, PROMETHEUS, ROOT, Manifest, of_kind, rendered, template, the
from chart.tables import README
from promql_parser import AggregateExpr, MatrixSelector, VectorSelector

MONITORS = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
GRAFANA = {"$__rate_interval": "5m"}
ADDED_BY_SCRAPING = {"namespace", "pod", "pool", "job", "le"}
"""Labels that no process writes: of the target, of a histogram, and the pool's, which the monitors add."""


class Read(NamedTuple):
    """What an expression reads."""

    metrics: set[str]
    labels: set[str]


def read(expression: str) -> Read:
    """Raises ValueError for invalid PromQL."""
    found = Read(set(), set())

    def visit(node: Any) -> None:
        if isinstance(node, MatrixSelector):
            visit(node.vector_selector)
        elif isinstance(node, VectorSelector):
            found.metrics.add(re.sub(r"_(bucket|sum|count)$", "", node.name or ""))
            found.labels.update(matcher.name for matcher in node.matchers.matchers)
        elif isinstance(node, AggregateExpr) and node.modifier:
            found.labels.update(node.modifier.labels)

    for variable, value in GRAFANA.items():
        expression = expression.replace(variable, value)
    promql_parser.walk(promql_parser.parse(expression), visit)
    return found


def exported() -> Read:
    """Metrics and labels of the page, whose own test holds its names to the code."""
    found = Read(set(), set(ADDED_BY_SCRAPING))
    for line in (ROOT / "docs" / "metrics.md").read_text().splitlines():
        if line.startswith("| `penstock_"):
            _, names, labels, *_ = line.split("|")
            found.metrics.update(re.findall(r"`(penstock_\w+)`", names))
            found.labels.update(word.strip() for word in labels.split(",") if word.strip())
    return found


def rules(manifests: list[Manifest]) -> list[dict[str, Any]]:
    groups = the(manifests, "PrometheusRule")["spec"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CHART / "files" / "dashboard.json").read_text())
    return found


def panel_expressions() -> Iterator[tuple[str, str]]:
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def test_alerts_read_exported_metrics() -> None:
    found, known = rules(rendered("ha")), exported()
    metrics = known.metrics | {rule["record"] for rule in found if "record" in rule} | {"up"}
    for rule in found:
        reads = read(rule["expr"])
        assert reads.metrics, rule["expr"]
        assert reads.metrics <= metrics, rule["expr"]
        assert reads.labels <= known.labels, rule["expr"]


def test_panels_read_exported_metrics() -> None:
    known = exported()
    for title, expression in panel_expressions():
        reads = read(expression)
        assert reads.metrics, title
        assert reads.metrics <= known.metrics, title
        assert reads.labels <= known.labels, title


def test_the_dashboard_shows_attainment_latency_and_capacity_of_a_pool() -> None:
    read_there = {metric for _, expression in panel_expressions() for metric in read(expression).metrics}
    assert read_there >= {
        "penstock_router_slo_met_total",
        "penstock_router_ttft_seconds",
        "penstock_router_tpot_seconds",
        "penstock_router_requests_total",
        "penstock_router_hops",
        "penstock_replica_kv_used_ratio",
        "penstock_router_replica_ready",
    }
    assert len({panel["id"] for panel in dashboard()["panels"]}) == len(dashboard()["panels"])


def test_the_dashboard_is_in_the_config_map_that_grafana_reads() -> None:
    (carried,) = [
        m for m in of_kind(rendered("ha"), "ConfigMap") if m["metadata"]["name"].endswith("dashboard")
    ]
    assert carried["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(carried["data"]["penstock.json"]) == dashboard()


def test_every_alert_has_a_severity_and_a_description() -> None:
    for alert in (rule for rule in rules(rendered("ha")) if "alert" in rule):
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert alert["labels"]["team"] == "inference"
        assert {"summary", "description"} <= alert["annotations"].keys()


def test_the_readme_names_every_alert_and_no_other() -> None:
    named = re.findall(r"^\| `(Penstock\w+)`", README.read_text(), re.MULTILINE)
    assert named == list(dict.fromkeys(rule["alert"] for rule in rules(rendered("ha")) if "alert" in rule))


def test_an_error_budget_spent_too_fast_in_both_windows_fires_an_alert() -> None:
    flags = ["--set-json", "monitoring.rules.objective=0.95"]
    fast, slow = (
        r["expr"] for r in rules(rendered("ha", flags)) if r.get("alert") == "PenstockErrorBudgetBurn"
    )
    assert "ratio_rate1h > 0.72" in fast
    assert "ratio_rate5m > 0.72" in fast
    assert "ratio_rate6h > 0.3" in slow
    assert "judged_total[6h])) >= 20" in slow


def test_an_alert_that_can_never_fire_is_refused() -> None:
    done = template("ha", ["--set-json", "monitoring.rules.objective=0.9"])
    assert "factor 14.4 with objective 0.9 fires when 1.44 of all requests miss" in done.stderr


@pytest.mark.parametrize(
    ("flags", "there"),
    [
        ([], set()),
        (("--api-versions", "monitoring.coreos.com/v1/ServiceMonitor"), {"ServiceMonitor"}),
        (PROMETHEUS, MONITORS - {"PodMonitor"}),
        ([*PROMETHEUS, "--set", "monitoring.podMonitor=auto"], MONITORS),
        ([*PROMETHEUS, "--set", "monitoring.rules.enabled=false"], {"ServiceMonitor"}),
        (["--set", "monitoring.serviceMonitor=true"], {"ServiceMonitor"}),
    ],
)
def test_monitors_are_created_if_the_cluster_has_the_kind_or_on_request(
    flags: list[str], there: set[str]
) -> None:
    assert {m["kind"] for m in rendered(flags=flags)} & MONITORS == there


def test_scraped_metrics_have_their_pods_pool() -> None:
    for endpoint in the(rendered("ha"), "PodMonitor")["spec"]["podMetricsEndpoints"]:
        assert {
            "sourceLabels": ["__meta_kubernetes_pod_label_penstock_dev_pool"],
            "targetLabel": "pool",
        } in endpoint["relabelings"]


def test_only_watched_namespaces_are_scraped() -> None:
    flags = ["--set", "monitoring.podMonitor=true"]
    assert the(rendered("ha"), "PodMonitor")["spec"]["namespaceSelector"] == {"any": True}
    monitor = the(rendered("locked-down", flags), "PodMonitor")
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["default"]}
