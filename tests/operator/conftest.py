"""Fixtures for tests of objects: pools and their desired objects."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from penstock_operator.manifests.manifest import Manifest, PoolOwner
from penstock_operator.objects.pool_objects import desired
from penstock_operator.objects.render_context import RenderFacts
from penstock_operator.settings import OperatorSettings
from penstock_operator.tls.credentials import Credentials, StoredCredentials, renew_credentials
from penstock_pool import Pool, parse_pool

MakePool = Callable[..., Pool]
Want = Callable[..., dict[str, Manifest]]


@pytest.fixture(scope="session")
def make_pool() -> MakePool:
    """A small valid pool; keyword arguments are parts of its spec, `engine` over a simulated one's."""

    def make(name: str = "llama", **spec: Any) -> Pool:
        whole = {
            "model": {"name": "meta-llama/Llama-3.1-8B-Instruct"},
            "engine": {"type": "simulated", "timeModel": "llama-3-8b-a100"},
            "tiers": [{"name": "chat", "slo": {"ttft": "800ms", "tpot": "50ms"}}],
            **spec,
        }
        document = {"apiVersion": "penstock.dev/v1alpha1", "kind": "ServingPool", "metadata": {"name": name}}
        return parse_pool({**document, "spec": whole}, "pool")

    return make


@pytest.fixture(scope="session")
def owner() -> PoolOwner:
    return PoolOwner("llama", "apps", "uid-of-llama")


@pytest.fixture(scope="session")
def settings() -> OperatorSettings:
    return OperatorSettings(
        router_image="router:1",
        picker_image="picker:1",
        envoy_image="envoy:1",
        sidecar_image="sidecar:1",
        simulator_image="simulator:1",
        vllm_image="vllm:1",
        vllm_plugin_image="plugin:1",
    )


@pytest.fixture(scope="session")
def credentials() -> Credentials:
    return renew_credentials(
        StoredCredentials(),
        "llama-replicas.apps.svc",
        datetime(2026, 1, 1, tzinfo=UTC),
        lambda: ec.generate_private_key(ec.SECP256R1()),
    )


@pytest.fixture(scope="session")
def want(make_pool: MakePool, settings: OperatorSettings, credentials: Credentials) -> Want:
    """Objects of a pool by `Kind/name`. decided: replicas to run, where not as the spec says."""

    def wanted(
        *, name: str = "llama", settings: OperatorSettings = settings, decided: int | None = None, **spec: Any
    ) -> dict[str, Manifest]:
        pool = make_pool(name, **spec)
        facts = RenderFacts(
            pool.spec.replicas if decided is None else decided, credentials if settings.tls else None
        )
        manifests = desired(pool, PoolOwner(name, "apps", f"uid-of-{name}"), settings, facts)
        return {f"{each['kind']}/{each['metadata']['name']}": each for each in manifests}

    return wanted
