"""The example pools for a cluster are pools, and become what their comments say."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from penstock_operator.manifests.manifest import PoolOwner
from penstock_operator.objects.pool_objects import desired
from penstock_operator.objects.render_context import RenderFacts
from penstock_operator.settings import OperatorSettings
from penstock_operator.tls.credentials import Credentials
from penstock_pool import parse_pool

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "kubernetes"


def engine_pod(name: str, settings: OperatorSettings, credentials: Credentials) -> dict[str, Any]:
    """Of a replica of the only pool in a file."""
    (document,) = (
        each for each in yaml.safe_load_all((EXAMPLES / name).read_text()) if each["kind"] == "ServingPool"
    )
    pool = parse_pool(document, name)
    owner = PoolOwner(pool.metadata.name, "apps", "uid")
    manifests = desired(pool, owner, settings, RenderFacts(pool.spec.replicas, credentials))
    (replicas,) = (each for each in manifests if each["kind"] == "StatefulSet")
    spec: dict[str, Any] = replicas["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_every_example_is_a_pool_that_runs(
    name: str, settings: OperatorSettings, credentials: Credentials
) -> None:
    pod = engine_pod(name, settings, credentials)
    assert pod["initContainers"][-1]["name"] == "engine"


def test_the_example_of_gpus_spans_two_of_them(settings: OperatorSettings, credentials: Credentials) -> None:
    pod = engine_pod("gpus.yaml", settings, credentials)
    engine = pod["initContainers"][-1]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert engine["args"][engine["args"].index("--tensor-parallel-size") + 1] == "2"
    assert engine["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert "runtimeClassName" not in pod  # a fact about the cluster, not about the pool
    assert {variable["name"] for variable in engine["env"]} >= {"HF_TOKEN", "HOME", "PYTHONPATH"}
    assert volumes["engine-cache"]["persistentVolumeClaim"] == {"claimName": "llama3-70b-cache"}
    assert "emptyDir" not in volumes["engine-cache"]
    assert volumes["shared-memory"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
