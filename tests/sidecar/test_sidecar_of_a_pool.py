"""What a pool's file makes of the sidecar's picture before its engine has said a word."""

from pathlib import Path

import pytest
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.speculation import Speculation
from penstock_pool import load_pool
from penstock_sidecar.bounds import Bounds
from penstock_sidecar.engine.facts import named
from penstock_sidecar.requests.learned import Learned
from penstock_sidecar.sidecar import mirror_of
from penstock_sidecar.warm_up import warm_up

from tests.sidecar.conftest import TIERS, Everybody

POOL = """
apiVersion: penstock.dev/v1alpha1
kind: ServingPool
metadata: {{name: test}}
spec:
  model: {{name: tiny}}
  engine: {{type: simulated, timeModel: llama-3-8b-h100{more}}}
  tiers: [{{name: chat, slo: {{ttft: 1s, tpot: 100ms}}}}]
"""


@pytest.mark.parametrize(
    ("more", "speculation"),
    [
        ("", None),
        (", speculation: {maxTokens: 3, acceptance: 0.6}", Speculation(3, 0.6)),
        (", speculation: {}", Speculation(4, 0.7)),
    ],
    ids=["none", "given", "default"],
)
def test_drafts_are_expected_as_the_pool_says(
    more: str, speculation: Speculation | None, tmp_path: Path
) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text(POOL.format(more=more))
    model = time_model("llama-3-8b-h100")
    pool = load_pool(file)
    view = mirror_of(pool, named(pool).kv, Learned(model), Bounds()).view(0.0, model)
    assert view.speculation == speculation


def test_a_policy_has_decided_about_every_tier_before_anybody_comes(tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text(POOL.format(more=""))
    model = time_model("llama-3-8b-h100")
    pool = load_pool(file)
    mirror, policy = mirror_of(pool, named(pool).kv, Learned(model), Bounds()), Everybody()
    warm_up(policy, mirror.view(0.0, model), TIERS.values())
    ((chat, slow, batch),) = policy.asked
    assert (chat.request.targets.tpot_s, batch.best_effort) == (0.1, True)
    assert slow.request.targets.ttft_s == pytest.approx(5 * model.prefill_seconds(500))
    assert mirror.view(0.0, model).waiting == ()
