"""The sidecar's state from the pool file, before the first report of its engine."""

from pathlib import Path

import pytest
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.speculation import Speculation
from penstock_pool import load_pool
from penstock_proto.telemetry_pb2 import StepReport
from penstock_runtime.serving import StartError
from penstock_sidecar.bounds import Bounds
from penstock_sidecar.engine.facts import builtin_facts
from penstock_sidecar.options import parse
from penstock_sidecar.requests.estimates import Estimates
from penstock_sidecar.sidecar import bounds_of, identity_of, mirror_of, root_port, tickets_of
from penstock_sidecar.warm_up import warm_up

from tests.sidecar.conftest import TIERS, AdmitsAll

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
def test_the_pools_acceptance_rate_is_used(
    more: str, speculation: Speculation | None, tmp_path: Path
) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text(POOL.format(more=more))
    model = time_model("llama-3-8b-h100")
    pool = load_pool(file)
    view = mirror_of(pool, builtin_facts(pool).kv, Estimates(model), Bounds()).view(0.0, model)
    assert view.speculation == speculation


@pytest.mark.parametrize(("order", "reads"), [("round-robin", False), ("best-fit", True), ("prefix", True)])
def test_routers_get_fresh_snapshots_if_the_pools_order_reads_them(
    order: str, reads: bool, tmp_path: Path
) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text(POOL.format(more="") + f"  routing: {{order: {order}}}\n")
    assert bounds_of(load_pool(file)).fresh_snapshots is reads


def test_a_policy_is_warmed_up_with_every_tier(tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text(POOL.format(more=""))
    model = time_model("llama-3-8b-h100")
    pool = load_pool(file)
    mirror, policy = mirror_of(pool, builtin_facts(pool).kv, Estimates(model), Bounds()), AdmitsAll()
    warm_up(policy, mirror.view(0.0, model), TIERS.values())
    ((chat, slow, batch),) = policy.asked
    assert (chat.request.targets.tpot_s, batch.best_effort) == (0.1, True)
    assert slow.request.targets.ttft_s == pytest.approx(5 * model.prefill_seconds(500))
    assert mirror.view(0.0, model).waiting == ()


@pytest.mark.parametrize(
    ("url", "plain", "tls"),
    [
        ("http://127.0.0.1:8000", 8000, 0),
        ("http://127.0.0.1", 80, 0),
        ("http://127.0.0.1:8000/", 8000, 0),
        ("http://127.0.0.1:8000/under", 0, 0),
        ("https://127.0.0.1:8000", 0, 8000),
        ("https://127.0.0.1", 0, 443),
        ("https://127.0.0.1/under", 0, 0),
    ],
)
def test_routers_get_the_engines_root_url(url: str, plain: int, tls: int) -> None:
    assert (root_port(url, "http"), root_port(url, "https")) == (plain, tls)


@pytest.mark.parametrize(
    ("more", "telemetry", "reached"),
    [("", True, False), (", answerPath: direct", True, True), (", answerPath: direct", False, False)],
    ids=["through the sidecar", "direct", "without reports"],
)
def test_routers_reach_engines_only_with_tickets(
    more: str, telemetry: bool, reached: bool, tmp_path: Path
) -> None:
    file, steps = tmp_path / "pool.yaml", tmp_path / "steps.sock"
    file.write_text(POOL.format(more=more))
    pool, model = load_pool(file), time_model("llama-3-8b-h100")
    listens = ["--listen", "127.0.0.1:0", "--engine", "http://127.0.0.1:8000"]
    reports = ["--telemetry", str(steps)] if telemetry else []
    options = parse(["-f", str(file), "--name", "r0", *listens, *reports])
    mirror = mirror_of(pool, builtin_facts(pool).kv, Estimates(model), Bounds())
    tickets = tickets_of(pool, options, mirror)
    assert identity_of(options, pool, None, None).engine_port == (8000 if reached else 0)
    assert Path(f"{steps}.ticket-key").exists() is reached
    assert not tickets.admit_routers  # no report has stated that they are checked
    mirror.apply(StepReport(checks_tickets=True), 0.0)
    assert tickets.admit_routers is reached
    mirror.lose_reports()
    assert not tickets.admit_routers


def test_a_key_that_cannot_be_written_is_logged_at_start(tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text(POOL.format(more=", answerPath: direct"))
    pool, model = load_pool(file), time_model("llama-3-8b-h100")
    flags = ["--engine", "http://127.0.0.1:8000", "--telemetry", str(tmp_path / "none" / "steps.sock")]
    options = parse(["-f", str(file), "--name", "r0", "--listen", "127.0.0.1:0", *flags])
    mirror = mirror_of(pool, builtin_facts(pool).kv, Estimates(model), Bounds())
    with pytest.raises(StartError, match="cannot write the ticket key"):
        tickets_of(pool, options, mirror)
