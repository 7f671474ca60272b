"""Objects for those outside a pool: clients, Prometheus, autoscalers."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from penstock_operator.manifests.manifest import Manifest

Want = Callable[..., dict[str, Manifest]]
HOST = "llama.example.com"
NGINX = "nginx.ingress.kubernetes.io"


def test_an_ingress_routes_only_the_api(want: Want) -> None:
    spec = want(ingress={"host": HOST})["Ingress/llama"]["spec"]
    assert spec == {
        "rules": [
            {
                "host": HOST,
                "http": {
                    "paths": [
                        {
                            "path": "/v1",
                            "pathType": "Prefix",
                            "backend": {"service": {"name": "llama", "port": {"name": "http"}}},
                        }
                    ]
                },
            }
        ]
    }


def test_an_ingress_has_the_specs_class_and_certificate(want: Want) -> None:
    named = {"host": HOST, "className": "traefik", "tlsSecret": "cert"}
    spec = want(ingress=named)["Ingress/llama"]["spec"]
    assert (spec["ingressClassName"], spec["tls"]) == ("traefik", [{"hosts": [HOST], "secretName": "cert"}])


def test_nginx_streams_unbuffered_unless_the_pool_has_other_annotations(want: Want) -> None:
    mine = {f"{NGINX}/proxy-read-timeout": "60", "cert-manager.io/cluster-issuer": "letsencrypt"}
    ingress = want(ingress={"host": HOST, "annotations": mine}, router={"maxBodyBytes": 1024})
    annotations = ingress["Ingress/llama"]["metadata"]["annotations"]
    assert annotations[f"{NGINX}/proxy-buffering"] == "off"
    assert annotations[f"{NGINX}/proxy-body-size"] == "1024"
    assert annotations.items() >= mine.items()


@pytest.mark.parametrize("namespace", [None, "gateways"])
def test_a_route_has_its_gateway_as_parent_and_no_timeout(want: Want, namespace: str | None) -> None:
    gateway = {"name": "public", **({"namespace": namespace} if namespace else {})}
    spec = want(ingress={"host": HOST, "kind": "HTTPRoute", "gateway": gateway})["HTTPRoute/llama"]["spec"]
    (rule,) = spec["rules"]
    assert (spec["parentRefs"], spec["hostnames"]) == ([gateway], [HOST])
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/v1"}}]
    assert rule["backendRefs"] == [{"name": "llama", "port": 80}]
    assert set(rule["timeouts"].values()) == {"0s"}


def test_a_monitor_selects_routers_and_replicas_and_has_the_specs_labels(want: Want) -> None:
    objects = want(monitoring={"serviceMonitor": True, "labels": {"release": "prometheus"}})
    monitor = objects["ServiceMonitor/llama"]
    ports = {
        port["name"]
        for name in ("Service/llama-admin", "Service/llama-replicas")
        for port in objects[name]["spec"]["ports"]
    }
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} == {"admin", "metrics"} <= ports
    selected = monitor["spec"]["selector"]["matchLabels"].items()
    assert objects["Service/llama"]["metadata"]["labels"].items() >= selected


SCALING = {
    "minReplicas": 1,
    "maxReplicas": 8,
    "scaleUp": {"stabilizationWindow": "15s", "maxStep": 2},
    "scaleDown": {"stabilizationWindow": "2h"},
}


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"by": "hpa"}, "HorizontalPodAutoscaler/llama"),
        ({"by": "keda", "prometheusUrl": "http://prometheus:9090"}, "ScaledObject/llama"),
    ],
    ids=["hpa", "keda"],
)
def test_external_autoscalers_scale_the_pool_and_never_its_parts(
    want: Want, more: dict[str, Any], name: str
) -> None:
    spec = want(autoscaling={**SCALING, **more})[name]["spec"]
    assert spec["scaleTargetRef"] == {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ServingPool",
        "name": "llama",
    }


def test_an_hpa_has_the_pools_bounds_and_rates(want: Want) -> None:
    spec = want(autoscaling={**SCALING, "by": "hpa"})["HorizontalPodAutoscaler/llama"]["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (1, 8)
    assert spec["behavior"] == {
        "scaleUp": {
            "stabilizationWindowSeconds": 15,
            "policies": [{"type": "Pods", "value": 2, "periodSeconds": 15}],
        },
        "scaleDown": {"stabilizationWindowSeconds": 3600},
    }


def test_queries_of_keda_and_hpa_read_documented_metrics(want: Want) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text()
    reported = {**SCALING, "minReplicas": 0, "by": "keda", "prometheusUrl": "http://prometheus:9090"}
    triggers = want(autoscaling=reported)["ScaledObject/llama"]["spec"]["triggers"]
    metrics = want(autoscaling={**SCALING, "by": "hpa"})["HorizontalPodAutoscaler/llama"]["spec"]["metrics"]
    read = [trigger["metadata"]["query"] for trigger in triggers]
    read += [metric["pods"]["metric"]["name"] for metric in metrics]
    assert all(f"`{name}`" in page for query in read for name in re.findall(r"penstock_\w+", query))


@pytest.mark.parametrize(("least", "questions"), [(1, 2), (0, 3)])
def test_keda_queries_prometheus_for_this_pool_only(want: Want, least: int, questions: int) -> None:
    reported = {**SCALING, "minReplicas": least, "by": "keda", "prometheusUrl": "http://prometheus:9090"}
    spec = want(autoscaling=reported)["ScaledObject/llama"]["spec"]
    requested = [trigger["metadata"] for trigger in spec["triggers"]]
    assert (spec["minReplicaCount"], len(requested)) == (least, questions)
    for each in requested:
        assert each["serverAddress"] == "http://prometheus:9090"
        assert each["ignoreNullValues"] == "false"
        assert each["query"].count("{") == each["query"].count('namespace="apps",service="llama')
        assert each["query"].count("(") == each["query"].count(")")
