"""Everything that any pool wants is valid to the API server, with every field known to it."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from lightkube import KubeConfig
from operating.process import IMAGES
from operating.world import World, pool_document
from penstock_operator.cluster.api_client import Api
from penstock_operator.reconcile.actions import decide
from penstock_operator.reconcile.desired_state import desired_state, owner_of, parse_spec
from penstock_operator.reconcile.reconciler import new_key
from penstock_operator.settings import read_settings
from penstock_operator.tls.credentials import StoredCredentials, renew_credentials
from penstock_pool import Pool

ROUTE = {"host": "chat.example", "kind": "HTTPRoute", "gateway": {"name": "public", "namespace": "edge"}}

POOLS: dict[str, dict[str, Any]] = {
    "simulated": {},
    "vllm": {
        "engine": {
            "type": "vllm",
            "image": "vllm/vllm-openai:v0.33.0",
            "timeModel": "llama-3-8b-a100",
            "tensorParallelSize": 2,
            "resources": {"limits": {"nvidia.com/gpu": "2"}, "requests": {"memory": "40Gi"}},
            "args": ["--enable-prefix-caching"],
            "podTemplate": {"spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}},
        },
        "model": {"name": "llama", "source": {"persistentVolumeClaim": "weights"}},
    },
    "openai": {"engine": {"type": "openai", "image": "sglang:1", "timeModel": "llama-3-8b-a100"}},
    "image volume": {"model": {"name": "llama", "source": {"image": "registry.example/llama3:1"}}},
    "ingress": {"ingress": {"host": "chat.example", "className": "traefik", "tlsSecret": "chat-tls-public"}},
    "keys": {"applications": [{"name": "ide", "tier": "chat", "keys": {"secret": "ide-keys"}}]},
    "scaled to zero": {"replicas": 0, "autoscaling": {"minReplicas": 0, "maxReplicas": 4}},
    "envoy": {
        "gateway": "envoy",
        "applications": [{"name": "ide", "tier": "chat", "keys": {"secret": "ide-keys"}}],
        "router": {"tls": {"secret": "api-tls"}},
    },
    "inference pool": {"gateway": "inferencePool", "ingress": ROUTE},
    "inference pool that checks keys": {
        "gateway": "inferencePool",
        "applications": [{"name": "ide", "tier": "chat", "keys": {"secret": "ide-keys"}}],
    },
    "route": {"ingress": ROUTE},
    "keda": {
        "autoscaling": {"minReplicas": 1, "maxReplicas": 4, "by": "keda", "prometheusUrl": "http://p:9090"}
    },
    "hpa": {"autoscaling": {"minReplicas": 1, "maxReplicas": 4, "by": "hpa"}},
    "all at once": {
        "ingress": {"host": "all.example"},
        "monitoring": {"serviceMonitor": True},
        "router": {"replicas": 3},
        "replicas": 5,
    },
}


@pytest.fixture
async def api(apiserver: Path) -> AsyncIterator[Api]:
    access = KubeConfig.from_file(apiserver).get()
    assert access is not None
    api = Api(access)
    yield api
    await api.close()


@pytest.mark.usefixtures("upstream")
@pytest.mark.parametrize("tls", ["on", "off"])
@pytest.mark.parametrize("spec", POOLS.values(), ids=POOLS)
async def test_every_object_is_valid_and_is_stored_unchanged(
    spec: dict[str, Any], tls: str, world: World, api: Api
) -> None:
    document = world.make("ServingPool", pool_document(**spec))
    pool = parse_spec(document)
    assert isinstance(pool, Pool), pool
    settings = read_settings(IMAGES | {"PENSTOCK_TLS": tls})
    keys = (
        renew_credentials(StoredCredentials(), "chat-replicas.team.svc", datetime.now(UTC), new_key)
        if tls == "on"
        else None
    )
    planned = desired_state(pool, document, (), settings, keys)
    assert planned.objects is not None
    made = [await api.apply(manifest, dry_run=True) for manifest in planned.objects]
    assert decide(planned.objects, made, owner_of(document)) == ()
