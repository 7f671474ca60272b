"""The cached prefix that a policy plans with is the one that vLLM finds when it starts the request."""

from dataclasses import replace
from typing import Any

import pytest
from penstock_core.domain.shared_prefixes import SharedPrefixes, common_with, shared_prefixes
from penstock_proto.telemetry_pb2 import StepReport
from penstock_sidecar.mirror.report_rows import shared_of
from penstock_sidecar.telemetry.whole_reports import WholeReports
from penstock_vllm.reports import BoundaryRecorder, UniformBoundary
from virtual.engine import Engine, Kind
from virtual.life import watched
from virtual.sessions import COUNTS, Started, cached_life
from virtual.wire import wired

SCARCE = Kind(blocks=120, batch_tokens=256, running=16, prefix_caching=True)
KINDS = {
    "scarce": SCARCE,
    "ample": replace(SCARCE, blocks=2000),
    "ahead": replace(SCARCE, ahead=True),
    "drafting": replace(SCARCE, drafts=3),
    "preempting": replace(SCARCE, policy="vllm", blocks=50),
}
ONE = Kind(blocks=100, batch_tokens=512, running=1, prefix_caching=True)
CHAT: dict[str, Any] = {
    "penstock_tier": "chat",
    "penstock_ttft_s": 9.0,
    "penstock_tpot_s": 1.0,
    "penstock_best_effort": 0,
}


def pins_of(engine: Engine) -> dict[str, list[Any]]:
    pins: dict[str, list[Any]] = engine.scheduler._prefixes._pins
    return pins


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_planned_cached_tokens_equal_those_that_vllm_finds(kind: str, seed: int) -> None:
    starts: list[Started] = []
    engine, preemptions = None, 0
    for engine, started in cached_life(KINDS[kind], seed, 500):
        starts += started
        assert not engine.scheduler.faults.counted
        waiting = {name for name, held in engine.scheduler.ledger.by_id.items() if not held.running}
        assert pins_of(engine).keys() <= waiting
        assert all(block.ref_cnt > 0 for blocks in pins_of(engine).values() for block in blocks)
        preemptions = engine.scheduler.ledger.preemptions
    assert engine is not None
    for start in starts:
        assert start.found_tokens >= start.planned_tokens
        if start.alone and not start.again:
            assert start.found_tokens == start.planned_tokens, start
    assert sum(start.planned_tokens > 0 for start in starts) > 20
    assert preemptions or kind != "preempting"
    assert not pins_of(engine)
    assert engine.free_blocks == KINDS[kind].blocks, "no block is left held"


def prompt(number: int, blocks: int) -> list[int]:
    return [number * 100 + at for at in range(blocks * 16 + 1)]


def served(kind: Kind = ONE) -> Engine:
    """Return an engine that has computed only prompt 1, of 30 of its 100 blocks."""
    engine, _ = watched(kind)
    engine.add("first", 0, 1, prompt=prompt(1, 30), fields=CHAT)
    engine.drain()
    return engine


def found_behind_another(engine: Engine, **fields: Any) -> int:
    """Cached tokens of prompt 1 for a request that waits while another one takes most of the memory."""
    engine.add("long", 0, 3, prompt=prompt(2, 60), fields=CHAT | {"penstock_output_tokens": 3})
    engine.step()
    engine.add("again", 0, 1, prompt=prompt(1, 30), fields=CHAT | fields)
    engine.add("other", 0, 1, prompt=prompt(3, 35), fields=CHAT | {"penstock_ttft_s": 0.1})
    for _ in range(40):
        output = engine.step()
        for new in output.scheduled_new_reqs:
            if new.req_id == "again":
                return int(new.num_computed_tokens)
    raise AssertionError("it was never started")


def test_a_request_admitted_for_its_prefix_keeps_it_while_waiting() -> None:
    assert found_behind_another(served()) < 30 * 16, "others have evicted some of it"
    engine = served()
    assert found_behind_another(engine, **{COUNTS: True}) == 30 * 16
    engine.drain()
    assert engine.free_blocks == ONE.blocks


def test_a_planned_start_does_not_evict_the_prefix_of_the_next_one() -> None:
    engine, _ = watched(replace(ONE, running=4, batch_tokens=1024))
    for number in (1, 2, 3):
        engine.add(f"r{number}", 0, 1, prompt=prompt(number, 30), fields=CHAT)
        engine.drain()
    engine.add("new", 0, 1, prompt=prompt(4, 35), fields=CHAT | {"penstock_ttft_s": 0.1})
    engine.add("again", 0, 1, prompt=prompt(1, 30), fields=CHAT)
    started = {new.req_id: new.num_computed_tokens for new in engine.step().scheduled_new_reqs}
    assert started == {"new": 0, "again": 30 * 16}
    engine.drain()
    assert engine.free_blocks == ONE.blocks


def test_best_effort_pins_no_prefix() -> None:
    engine = served()
    engine.add("long", 0, 3, prompt=prompt(2, 60), fields=CHAT)
    engine.step()
    engine.add("again", 0, 1, prompt=prompt(1, 30), fields={"penstock_best_effort": 1, COUNTS: True})
    assert not pins_of(engine)


def test_a_request_that_ends_releases_its_prefix() -> None:
    engine = served()
    engine.add("long", 0, 3, prompt=prompt(2, 60), fields=CHAT)
    engine.step()
    free = engine.free_blocks
    engine.add("again", 0, 1, prompt=prompt(1, 30), fields=CHAT | {COUNTS: True})
    assert engine.free_blocks == free - 30
    engine.abort(["again"])
    assert engine.free_blocks == free
    assert not pins_of(engine)


def test_running_requests_are_not_preempted_for_a_pin() -> None:
    engine = served(replace(ONE, blocks=64))
    engine.add("long", 0, 200, prompt=prompt(2, 28), fields=CHAT | {"penstock_output_tokens": 1})
    engine.step()
    engine.add("again", 0, 1, prompt=prompt(1, 30), fields=CHAT | {COUNTS: True})
    assert pins_of(engine)
    for _ in range(150):
        engine.step()
    assert not pins_of(engine)
    assert engine.scheduler.ledger.preemptions == 0
    engine.drain()
    assert engine.free_blocks == 64


def test_pins_are_released_if_no_request_can_progress() -> None:
    engine = served()
    engine.scheduler.policy_calls._policy.answer = lambda view: type(
        engine.scheduler.policy_calls._policy.step_wanted
    )()
    engine.add("again", 0, 1, prompt=prompt(1, 30), fields=CHAT | {COUNTS: True})
    assert pins_of(engine)
    engine.step()
    assert not pins_of(engine)


def test_a_reset_empties_the_cache_even_if_a_waiting_request_needs_it() -> None:
    engine = served()
    wire = wired(engine)
    engine.add("again", 0, 1, prompt=prompt(1, 30), fields=CHAT | {COUNTS: True})
    assert engine.scheduler.reset_prefix_cache()
    assert engine.step().scheduled_new_reqs[0].num_computed_tokens == 0
    assert wire.reports[-1].cache_resets == 1


def test_a_reset_that_vllm_refuses_has_no_effect() -> None:
    engine = served()
    wire = wired(engine)
    engine.add("long", 0, 9, prompt=prompt(2, 60), fields=CHAT)
    engine.step()
    assert not engine.scheduler.reset_prefix_cache()
    engine.step()
    assert wire.reports[-1].cache_resets == 0


def test_an_error_around_a_step_releases_pins() -> None:
    engine = served()
    engine.add("long", 0, 3, prompt=prompt(2, 60), fields=CHAT)
    engine.step()
    engine.add("again", 0, 1, prompt=prompt(1, 30), fields=CHAT | {COUNTS: True})
    engine.scheduler._contain(ValueError("a fault"))
    engine.step()
    assert not pins_of(engine)
    engine.drain()
    assert engine.free_blocks == ONE.blocks


def cached_by(reports: list[StepReport]) -> dict[str, int]:
    """What reports, the oldest first, have said of prompts since the cache was last reset."""
    last = [one for one in reports if one.cache_resets == reports[-1].cache_resets]
    return {prompt.request_id: prompt.cached_tokens for one in last for prompt in one.cached_prompts}


def test_reports_have_the_cached_prefixes_of_served_and_waiting_prompts() -> None:
    engine, _ = watched(ONE)
    wire = wired(engine)
    engine.add("r1", 0, 1, prompt=prompt(1, 30), fields=CHAT | {"penstock_id": "p1"})
    engine.drain()
    engine.add("r2", 0, 3, prompt=prompt(2, 60), fields=CHAT | {"penstock_id": "p2"})
    engine.step()
    engine.add("r3", 0, 3, prompt=prompt(1, 30), fields=CHAT | {"penstock_id": "p3"})
    engine.step()
    said = wire.reports[-1]
    assert said.caches_prefixes
    assert cached_by(wire.reports)["p1"] == 30 * 16
    assert list(said.request_ids) == ["p2", "p3"]
    assert (list(said.computed_tokens)[1], list(said.cached_tokens)) == (0, [30 * 16])
    assert list(said.unheld_blocks) == [30]
    engine.add("r4", 0, 1, prompt=prompt(4, 60), fields=CHAT | {"penstock_id": "p4", "penstock_ttft_s": 0.01})
    engine.drain()
    assert cached_by(wire.reports)["p1"] in (0, 30 * 16)


@pytest.mark.parametrize("kind", ["scarce", "ahead"])
def test_reported_prompts_converge_to_the_cached_prefixes(kind: str) -> None:
    wire: Any = None
    engine = None
    for engine, _ in cached_life(KINDS[kind], seed=3, steps=300):
        wire = wire or wired(engine)
    assert engine is not None
    for number in range(200):  # no block is evicted while so little is computed
        engine.add(f"idle{number}", 1, 1, prompt=[1], fields=CHAT)
        engine.drain()
    said, prefixes = cached_by(wire.reports), engine.scheduler._prefixes
    served = prefixes._served._served
    assert len(served) > 3
    for name, one in served.items():
        assert said[name] == prefixes._cached_of(one.keys).blocks * 16
    assert all(not tokens for name, tokens in said.items() if name not in served)


def held_by(engine: Engine) -> dict[str, list[int]]:
    """The blocks of each request by the KV cache manager, and of each that holds some before it starts."""
    [layers] = engine.scheduler.kv_cache_manager.coordinator.single_type_managers
    blocks = {**layers.req_to_blocks, **pins_of(engine)}
    names = {engine_id: held.job.request.id for engine_id, held in engine.scheduler.ledger.by_id.items()}
    return {names[one]: [block.block_id for block in of] for one, of in blocks.items() if of}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_planned_and_reported_shared_blocks_are_those_of_the_kv_cache_manager(kind: str, seed: int) -> None:
    wire, said, wholes, reported, planned = None, None, WholeReports(), 0, 0
    for engine, _ in cached_life(KINDS[kind], seed, 400):
        wire = wire or wired(engine)
        assert not engine.scheduler.faults.counted
        truth = shared_prefixes(held_by(engine))
        seen = engine.scheduler._prefixes.shared_prefixes(engine.scheduler.ledger)
        assert in_common(seen) == in_common(truth)
        planned += len(truth.ids)
        for report in wire.reports:
            wholes.keep(report)
            whole = wholes.restored(report)
            assert whole is not None
            said = shared_of(whole)
        if wire.reports:  # the last one is of the step that has just begun
            assert said is not None
            assert in_common(said) == in_common(truth)
            reported += len(said.ids)
        wire.reports.clear()
    assert planned > 100
    assert reported > 100


def in_common(shared: SharedPrefixes) -> dict[tuple[str, str], int]:
    """The leading blocks that any two requests have in common."""
    return {
        (one, other): blocks
        for one in shared.ids
        for other, blocks in common_with(shared, one, 1 << 30).items()
        if one != other
    }


class AlwaysWhole(BoundaryRecorder):
    """Asks for a complete boundary in place of every repeated step."""

    def repeat(self, changes: int, now: UniformBoundary, now_s: float) -> bool:
        return False


def test_evictions_by_a_repeated_step_are_in_the_complete_report() -> None:
    engine, _ = watched(ONE)
    wire = wired(engine)
    recorder = engine.scheduler._boundaries.recorder
    engine.scheduler._boundaries.recorder = AlwaysWhole(recorder._reports, recorder._queue)
    engine.add("first", 0, 1, prompt=prompt(1, 30), fields=CHAT | {"penstock_id": "first"})
    engine.drain()
    assert cached_by(wire.reports)["first"] == 30 * 16
    engine.add("long", 0, 300, prompt=prompt(2, 60), fields=CHAT | {"penstock_id": "long"})
    repeated = 0
    while engine.scheduler.requests:
        engine.step()
        repeated += engine.scheduler._repeated is not None
    assert repeated > 200
    assert cached_by(wire.reports)["first"] == 0, "its blocks were taken for the long answer"


def test_an_engine_without_a_prefix_cache_reports_no_prefixes() -> None:
    engine, _ = watched(replace(ONE, prefix_caching=False))
    wire = wired(engine)
    engine.add("r1", 20, 1, fields=CHAT | {COUNTS: True})
    engine.drain()
    assert not wire.reports[-1].caches_prefixes
