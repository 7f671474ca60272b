"""The engine continues for any fields of requests and any exception in Penstock's code."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from penstock_vllm.faults import Fault
from virtual.engine import Engine, Kind
from virtual.life import TIERS, watched
from virtual.wire import wired

KIND = Kind(blocks=60, batch_tokens=64, running=8)
KINDS = {"in turn": KIND, "ahead": replace(KIND, ahead=True), "drafting": replace(KIND, drafts=3)}

HERE = "penstock_vllm.scheduler."
PLUG_IN_METHODS = [
    *[f"{HERE}{name}" for name in ("step_in_progress", "steps_to_first_end", "generated_one_each")],
    *[
        f"{HERE}EngineLedger.{name}"
        for name in ("add", "start", "drop", "preempt", "advance", "advance_all", "unblock")
    ],
    *[f"{HERE}{name}" for name in ("Pipeline.begin", "Pipeline.take", "Pipeline.end", "Pipeline.free_s")],
    *[f"{HERE}{name}" for name in ("RepeatedPlan.advance", "RepeatedPlan.holds")],
    "penstock_vllm.boundaries.rows_of",
    "penstock_vllm.estimates.EngineEstimates.step",
    "penstock_vllm.step_planning.view_of",
    "penstock_vllm.step_planning.PolicyCalls.plan",
    "penstock_vllm.plan_execution.cut_drafts",
    "penstock_vllm.plan_execution.PlanExecution._held_running",
    "penstock_vllm.plan_execution.PlanExecution._offered",
]
"""Methods of the plug-in that are called around vLLM's own."""


class InjectedError(Exception):
    """The error that the plug-in's code raises in these tests."""


def raising_every(call: Callable[..., Any], raised: Counter[str], every: int = 4) -> Callable[..., Any]:
    calls = 0

    def failing(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % every == 1:
            raised["here"] += 1
            raise InjectedError("as it happens")
        return call(*args, **named)

    return failing


NAMES = sorted(
    {name for fields in TIERS for name in fields} | {"penstock_id", "penstock_value", "penstock_spent_s"}
)
NAMES += ["penstock_output_tokens", "penstock_sure_tokens", "penstock_answer_tpot_s", "penstock_of_tomorrow"]

ODD: st.SearchStrategy[Any] = st.sampled_from(
    [
        nan,
        inf,
        -inf,
        -1,
        0,
        1e300,
        10**400,
        -(10**400),
        "",
        "nan",
        "inf",
        "x" * 10_000,
        "\ud800",
        "p0",
        "r0",
        "\0",
    ]
)
SCALAR = st.none() | st.booleans() | st.integers() | st.floats() | st.text("ab~\0é", max_size=5) | ODD
ANYTHING = SCALAR | st.lists(SCALAR, max_size=2) | st.fixed_dictionaries({"a": SCALAR})


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.dictionaries(st.sampled_from(NAMES), ANYTHING), min_size=1, max_size=4))
@example([{"penstock_id": ["p0"]}])
@example([{"penstock_output_tokens": inf, "penstock_best_effort": 0}])
@example([{"penstock_spent_s": nan, "penstock_best_effort": 0, "penstock_ttft_s": 1.0}])
@example([{"penstock_id": "r9"}, {"penstock_id": "other-1"}])
@example([{"penstock_tier": "\ud800", "penstock_id": "\ud800"}])
def test_invalid_fields_of_a_request_do_not_affect_others(written: list[dict[str, Any]]) -> None:
    """Another request with sound fields is planned and served as if it were alone with best effort."""
    engine, _ = watched(KIND)
    wire = wired(engine)
    engine.add("other", 40, 20, fields=TIERS[0] | {"penstock_id": "other-1"})
    for number, fields in enumerate(written):
        engine.add(f"odd{number}", 40, 10, fields=fields)
    engine.add("r9", 40, 10)
    job = engine.scheduler.ledger.by_id["other"].job
    assert (job.request.id, job.best_effort, job.request.tier) == ("other-1", False, "chat")
    engine.drain(300)
    assert engine.finished == set(engine.asked)
    assert engine.scheduler.faults.counted == {}
    assert engine.scheduler.ledger.by_name == engine.scheduler.ledger.by_id == {}
    assert all(report.ByteSize() < 5000 for report in wire.reports)


def test_deeply_nested_fields_do_not_affect_others() -> None:
    engine = Engine(KIND)
    for name in NAMES:
        engine.add(name, 20, 5, fields={name: deep(100_000)})
    engine.drain()
    assert engine.finished == set(NAMES)
    assert engine.scheduler.faults.counted == {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_with_invalid_fields_is_best_effort_and_others_keep_their_plan(kind: str) -> None:
    sound = {"penstock_ttft_s": 1.0, "penstock_tpot_s": 0.05, "penstock_best_effort": 0}
    engine, policy = watched(KINDS[kind])
    for name, fields in (("odd", sound | {"penstock_tpot_s": nan}), ("sound", sound)):
        engine.add(name, 30, 10, fields=fields)
    engine.step()
    assert policy.view is not None
    assert {job.request.id: job.best_effort for job in policy.view.waiting} == {"odd": True, "sound": False}
    engine.drain()
    assert engine.finished == {"odd", "sound"}
    assert engine.scheduler.faults.counted == {}


def serve(engine: Engine) -> None:
    """Some decode for a while, more come, some together and some later, one goes away, the rest end."""
    for number in range(3):
        engine.add(f"first{number}", 20, 60, fields={"penstock_ttft_s": 5.0, "penstock_best_effort": 0})
    for _ in range(25):
        engine.step()
    for number in range(12):
        engine.add(
            f"r{number}",
            20 + 9 * number,
            5 + 6 * number,
            fields=TIERS[number % len(TIERS)] | {"penstock_id": f"p{number}"},
        )
        if number % 2:
            engine.step()
    engine.abort(["r11"])
    engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    engine.drain(1000)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", PLUG_IN_METHODS)
def test_an_internal_error_loses_one_plan_and_affects_no_request(
    where: str, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine, policy = watched(KINDS[kind])
    wired(engine)
    raised: Counter[str] = Counter()
    owner, name = where.rsplit(".", 1)
    monkeypatch.setattr(where, raising_every(_found(owner, name), raised))
    with caplog.at_level("ERROR", logger="vllm.penstock"):
        serve(engine)
    assert engine.finished == set(engine.asked) - {"r11"}
    assert engine.free_blocks == KIND.blocks
    assert raised["here"] or (name == "cut_drafts") != (kind == "drafting"), "only with drafts, or without"
    assert engine.scheduler.faults.counted.get(Fault.PLUGIN, 0) == raised["here"]
    assert len(caplog.records) == bool(raised["here"]), "logged once"
    monkeypatch.undo()
    before = policy.asked
    engine.add("after", 20, 5, fields=TIERS[0])
    engine.drain()
    assert policy.asked > before, "plans are made again"
    assert not engine.scheduler.ledger.by_id and not engine.scheduler.ledger.by_name


def _found(owner: str, name: str) -> Callable[..., Any]:
    from pydoc import locate

    found: Callable[..., Any] = getattr(locate(owner), name)
    return found
