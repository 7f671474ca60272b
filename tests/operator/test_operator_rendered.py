"""Whole pools as they were rendered last: any change to a pod's template restarts that pod in every pool.

A release that changes what it renders changes a file here, and whoever reads its diff sees what clusters of
users will do. To write a file anew, delete it and run this test.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from penstock_operator.manifests.manifest import Manifest
from penstock_operator.settings import OperatorSettings

RENDERED = Path(__file__).parent / "rendered"
INSTALLATION = {
    "image_pull_secrets": ("registry",),
    "redis_url_secret": "redis",
    "gpu_runtime_class": "nvidia",
}
POOLS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "least": ({}, {}),
    "everything": (
        INSTALLATION,
        {
            "model": {"name": "llama", "source": {"persistentVolumeClaim": "weights"}},
            "engine": {
                "type": "vllm",
                "tensorParallelSize": 2,
                "apiKey": {"secret": "engine-key"},
                "timeModel": "measured.json",
                "speculation": {"maxTokens": 3, "acceptance": 0.6},
            },
            "replicas": 3,
            "autoscaling": {"minReplicas": 2, "maxReplicas": 9, "by": "hpa", "scaleUp": {"maxStep": 2}},
            "applications": [
                {"name": "ide", "tier": "chat", "keys": {"secret": "ide-keys"}},
                {"name": "web", "tier": "chat", "keys": {"secret": "web-keys"}},
            ],
            "router": {"replicas": 4, "tls": {"secret": "api-tls"}},
            "ingress": {"host": "llama.example.com", "className": "traefik", "tlsSecret": "host-tls"},
            "monitoring": {"serviceMonitor": True, "labels": {"release": "prometheus"}},
        },
    ),
    "envoy": (
        {"redis_url_secret": "redis"},
        {
            "gateway": "envoy",
            "applications": [{"name": "ide", "tier": "chat", "keys": {"secret": "ide-keys"}}],
            "router": {"replicas": 3, "tls": {"secret": "api-tls"}},
            "monitoring": {"serviceMonitor": True},
        },
    ),
    "inference_pool": (
        {"gateway_namespaces": ("gateways",)},
        {
            "gateway": "inferencePool",
            "ingress": {"host": "llama.example.com", "kind": "HTTPRoute", "gateway": {"name": "public"}},
        },
    ),
    "keda": (
        {"tls": False},
        {
            "engine": {"type": "openai", "image": "engine:1", "timeModel": "auto", "args": ["--flag"]},
            "autoscaling": {
                "minReplicas": 0,
                "maxReplicas": 9,
                "by": "keda",
                "prometheusUrl": "http://p:9090",
            },
            "ingress": {"host": "llama.example.com", "kind": "HTTPRoute", "gateway": {"name": "public"}},
        },
    ),
}


@pytest.mark.parametrize("name", POOLS)
def test_a_rendered_pool_equals_the_recorded_one(
    name: str, want: Callable[..., dict[str, Manifest]], settings: OperatorSettings
) -> None:
    installation, spec = POOLS[name]
    objects = want(settings=replace(settings, **installation), **spec).values()
    text = yaml.safe_dump_all(map(without_keys, objects), sort_keys=False, width=150, default_flow_style=None)
    file = RENDERED / f"{name}.yaml"
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        pytest.fail(f"{file} is new: read it before you commit it")
    assert list(yaml.safe_load_all(file.read_text())) == list(yaml.safe_load_all(text)), "pods would restart"


def without_keys(manifest: Manifest) -> Manifest:
    """Return the object without fields that differ in every run."""
    if manifest["kind"] != "Secret":
        return manifest
    reported = {name: "" for name in manifest["data"]}
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": {}}, "data": reported}
