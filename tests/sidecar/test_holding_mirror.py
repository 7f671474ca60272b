"""The mirror of an engine that schedules by itself: its snapshot is current after any sequence of events."""

import json
from random import Random

import pytest
from penstock_core.domain.replica_view import KvCache, Limits
from penstock_core.domain.request import Request, new_job
from penstock_core.domain.slo import Targets
from penstock_core.forecast.snapshot import snapshot
from penstock_core.timing.time_model import Term, TimeModel
from penstock_proto.sse import EngineUsage
from penstock_runtime.prompt_marks import PromptMarks, prompt_marks
from penstock_sidecar.engine.metrics import EngineLoad
from penstock_sidecar.mirror.holding_mirror import EngineCount, HoldingMirror

MODEL = TimeModel("round", (Term(1e-4, 0.010),))
NOW_S = 100.0


def mirror(slots: int = 6) -> HoldingMirror:
    return HoldingMirror(KvCache(200, 200, 16), Limits(2048, slots), lambda job: 100)


def accept(held: HoldingMirror, name: str, random: Random) -> None:
    targets = random.choice((Targets(), Targets(2.0, 0.1), Targets(e2e_s=9.0)))
    request = Request(name, "chat", NOW_S - random.random(), random.randint(1, 300), 500, targets)
    held.accept(new_job(request, random.randint(1, 80), best_effort=random.random() < 0.3), NOW_S)


def happen(held: HoldingMirror, names: list[str], random: Random) -> None:
    """Let something happen. names: requests held or released."""
    inside = [job.request.id for job in (*held.in_engine.decodes, *held.in_engine.prefills)]
    outside = [name for name in names if name not in inside]
    match random.choice(("accept", "released", "passed", "forget", "promote", "full", "load", "no load")):
        case "released" if outside:
            held.released(random.choice(outside), NOW_S)
        case "passed" if inside:
            held.passed(random.choice(inside), random.randint(1, 3), NOW_S)
        case "forget" if names:
            held.forget(names.pop(random.randrange(len(names))))
        case "promote" if names:
            held.promote([random.choice(names)])
        case "full" if inside:
            held.engine_full()
        case "load":
            load = EngineLoad(random.randint(0, 9), random.randint(0, 3), random.random(), None)
            held.engine_load(load, held.count, held.count)
        case "no load":
            held.engine_load(None, held.count, held.count)
        case _:
            names.append(f"r{random.random()}")
            accept(held, names[-1], random)


@pytest.mark.parametrize("seed", range(25))
def test_the_snapshot_is_always_current(seed: int) -> None:
    random, held, names = Random(seed), mirror(), list[str]()
    for _ in range(40):
        happen(held, names, random)
        assert held.snapshot(NOW_S, MODEL) == snapshot(held.view(NOW_S, MODEL))


def test_requests_of_other_clients_take_slots_and_blocks_and_leave_one_slot() -> None:
    held = mirror(slots=6)
    accept(held, "a", Random(1))
    held.engine_load(EngineLoad(4, 0, 0.25, None), EngineCount(1, 10), EngineCount(2, 20))
    view = held.held_view(NOW_S, MODEL)
    assert (view.limits.running, view.kv.total_blocks, view.kv.free_blocks) == (4, 170, 170)
    assert held.view(NOW_S, MODEL).kv.idle_blocks == 200
    assert [job.request.id for job in view.waiting] == ["a"]
    held.engine_load(EngineLoad(40, 0, 1.0, None), EngineCount(0, 0), EngineCount(0, 0))
    view = held.held_view(NOW_S, MODEL)
    assert (view.limits.running, view.kv.total_blocks, view.kv.idle_blocks) == (1, 0, 200)
    held.engine_load(None, EngineCount(0, 0), EngineCount(0, 0))
    assert held.held_view(NOW_S, MODEL).kv.total_blocks == 200


def chat(turns: int) -> PromptMarks:
    messages = [{"role": "user", "content": f"turn {number}"} for number in range(turns)]
    return prompt_marks(json.dumps({"messages": messages}).encode())


def test_tokens_shown_to_be_cached_count_as_computed_until_the_engine_is_lost() -> None:
    held = mirror()
    for turns, cached in ((1, 0), (2, 96), (3, 192)):
        held.prompt_sent(str(turns), chat(turns))
        held.answered(str(turns), EngineUsage(100 * turns, 10, cached))
    job = new_job(Request("d", "chat", NOW_S, 400, 10), 10, best_effort=False)
    seen = held.candidate(job, chat(4))
    assert seen.unheld_blocks == seen.computed_tokens // 16
    assert 250 <= seen.computed_tokens <= 288
    held.accept(seen, NOW_S)
    held.released("d", NOW_S)
    [inside] = held.in_engine.prefills
    assert (inside.computed_tokens, inside.unheld_blocks) == (seen.computed_tokens, None)
    held.lose_reports()
    assert held.candidate(job, chat(4)).computed_tokens == 0


def test_the_pool_decides_whether_prompts_are_compared() -> None:
    held = mirror()
    held.set_prefix_caching(possible=False)
    assert not held.prefixes.wanted
    held.set_prefix_caching(possible=True)
    assert held.prefixes.wanted
    assert not held.prefixes.used, "until an answer shows it"
