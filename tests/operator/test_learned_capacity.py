"""What autoscaling has learned of a pool, kept where a restarted operator finds it."""

from collections.abc import Callable
from typing import Any

import pytest
from penstock_operator.manifests.manifest import Manifest, PoolOwner
from penstock_operator.objects.config_maps import learned_capacity_rps
from penstock_operator.objects.pool_objects import desired
from penstock_operator.objects.render_context import RenderFacts
from penstock_operator.settings import OperatorSettings
from penstock_operator.tls.credentials import Credentials
from penstock_pool import Pool


def learned(
    make_pool: Callable[..., Pool],
    settings: OperatorSettings,
    credentials: Credentials,
    capacity_rps: float | None,
) -> list[Manifest]:
    facts = RenderFacts(2, credentials, capacity_rps)
    made = desired(make_pool(), PoolOwner("llama", "apps", "uid"), settings, facts)
    return [one for one in made if one["metadata"]["name"] == "llama-learned"]


def test_a_capacity_is_written_and_read_again(
    make_pool: Callable[..., Pool], settings: OperatorSettings, credentials: Credentials
) -> None:
    (made,) = learned(make_pool, settings, credentials, 3.14159)
    assert made["data"] == {"capacityRps": "3.14"}
    assert learned_capacity_rps("llama", [made]) == 3.14


def test_no_config_map_is_written_before_a_capacity_is_learned(
    make_pool: Callable[..., Pool], settings: OperatorSettings, credentials: Credentials
) -> None:
    assert learned(make_pool, settings, credentials, None) == []
    assert learned_capacity_rps("llama", []) is None


@pytest.mark.parametrize(
    "data", [{}, None, {"capacityRps": "much"}, {"capacityRps": "-1"}, {"capacityRps": "inf"}]
)
def test_an_unreadable_capacity_is_learned_again(data: Any) -> None:
    found = {"kind": "ConfigMap", "metadata": {"name": "llama-learned"}, "data": data}
    assert learned_capacity_rps("llama", [found]) is None


def test_a_capacity_of_any_size_is_read_from_the_pools_config_map() -> None:
    def config_map(name: str, rps: str, kind: str = "ConfigMap") -> Manifest:
        return {"kind": kind, "metadata": {"name": name}, "data": {"capacityRps": rps}}

    others = [config_map("llama-router", "7"), config_map("llama-learned", "8", kind="Secret")]
    assert learned_capacity_rps("llama", others) is None
    assert learned_capacity_rps("llama", [*others, config_map("llama-learned", "0.05")]) == 0.05
