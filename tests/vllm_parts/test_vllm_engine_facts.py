"""Facts read from vLLM: bounds, memory, steps in progress and their durations, drafts, names, adapters."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.domain.engine_fields import from_fields
from penstock_core.domain.replica_view import KvCache, Limits
from penstock_core.domain.request import Job, advance
from penstock_core.timing.acceptance_rate import Drafted
from penstock_core.timing.correction import Correction, corrected, observe
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import BatchWork, Term, TimeModel, chunk_work
from penstock_vllm.answer_names import MOST_REMEMBERED, AnswerNames
from penstock_vllm.drafts import cut_drafts, drafted
from penstock_vllm.engine_facts import bounds_of, can_be_steered, generates_one_token_per_step, memory_of
from penstock_vllm.estimates import MOST_NOTED, EngineEstimates
from penstock_vllm.ledger import HeldRequest
from penstock_vllm.pipeline import MeasuredStep, Pipeline
from penstock_vllm.plan import with_a_lora_in_use, within_loras
from penstock_vllm.repeated_plan import RepeatedPlan, next_work, steps_to_first_end
from penstock_vllm.settings import PluginSettings
from penstock_vllm.step_in_progress import (
    StepInProgress,
    computes_one_each,
    decoded,
    generated_one_each,
    step_in_progress,
)
from penstock_vllm.view import (
    KvMemory,
    StepBounds,
    StepsInProgress,
    after_steps_in_progress,
    may_continue,
    view_of,
)

MODEL = TimeModel("round", (Term(1e-3, 0.010),), 1e-5, 1e-8)


def anything(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


def job(name: str = "a", prompt: int = 100, computed: int = 0, generated: int = 0) -> Job:
    made = from_fields({}, engine_id=name, prompt_tokens=prompt, max_output_tokens=50, now_s=0.0)
    if generated:
        made = advance(made, 0, generated, 0.0)
    return made._replace(computed_tokens=computed)


def held(name: str = "a", *, lora: int = 0, of: Job | None = None, **fields: Any) -> HeldRequest:
    adapter = anything(lora_int_id=lora) if lora else None
    return HeldRequest(anything(request_id=f"engine-{name}", lora_request=adapter, **fields), of or job(name))


# vLLM's configuration.


def scheduler(**other: Any) -> Any:
    fields: dict[str, Any] = {
        "vllm_config": anything(
            speculative_config=None,
            model_config=anything(is_encoder_decoder=False, is_diffusion=False),
            parallel_config=anything(pipeline_parallel_size=1),
        ),
        "scheduler_config": anything(max_num_batched_tokens=512, enable_chunked_prefill=True),
        "max_num_scheduled_tokens": 600,
        "max_num_running_reqs": 16,
        "max_num_active_reqs": 20,
        "max_model_len": 4096,
        "num_sampled_tokens_per_step": 1,
        "num_spec_tokens": 0,
        "connector": None,
        "block_size": 16,
        "kv_cache_config": anything(kv_cache_groups=[1]),
        "kv_cache_manager": anything(block_pool=anything(num_gpu_blocks=101, get_num_free_blocks=lambda: 7)),
    }
    return anything(**(fields | other))


SETTINGS = PluginSettings(MODEL)


def test_bounds_are_vllms_own_or_lower_configured_ones() -> None:
    assert bounds_of(scheduler(), SETTINGS) == StepBounds(512, 20, 4095)
    assert bounds_of(scheduler(max_num_scheduled_tokens=100), SETTINGS).batch_tokens == 100
    low = PluginSettings(MODEL, max_batch_tokens=64, max_running=3)
    assert bounds_of(scheduler(), low) == StepBounds(64, 3, 4095)
    high = PluginSettings(MODEL, max_batch_tokens=9999, max_running=9999)
    assert bounds_of(scheduler(), high) == StepBounds(512, 20, 4095)


@pytest.mark.parametrize(("slots", "tokens"), [(0, 512), (1, 512 - 16), (31, 16), (32, 600), (40, 600)])
def test_a_drafters_share_of_a_batch_is_reserved_while_the_batch_has_room(slots: int, tokens: int) -> None:
    config = anything(speculative_config=anything(max_num_new_slots_for_drafting=slots))
    assert bounds_of(scheduler(vllm_config=config), SETTINGS).batch_tokens == tokens
    one_more = anything(max_num_batched_tokens=16 * slots + 1)
    left_one = scheduler(vllm_config=config, scheduler_config=one_more)
    assert bounds_of(left_one, SETTINGS).batch_tokens == 1


def test_memory_is_all_blocks_but_the_null_block() -> None:
    assert memory_of(scheduler())() == KvMemory(100, 7, 16, 1)
    assert memory_of(scheduler(kv_cache_config=anything(kv_cache_groups=[])))().groups == 1
    two = memory_of(scheduler(kv_cache_config=anything(kv_cache_groups=[1, 2])))()
    assert (two.groups, two.kv) == (2, KvCache(50, 3, 16))


def test_unsupported_models_are_left_to_vllm_with_a_logged_reason(caplog: pytest.LogCaptureFixture) -> None:
    assert can_be_steered(scheduler())
    assert not caplog.messages
    for config, why in (
        (anything(is_encoder_decoder=True, is_diffusion=False), "the model is an encoder and a decoder"),
        (anything(is_encoder_decoder=False, is_diffusion=True), "the model is a diffusion model"),
    ):
        assert not can_be_steered(scheduler(vllm_config=anything(model_config=config)))
        assert caplog.messages[-1] == f"penstock: vLLM schedules by its own rules, because {why}"
    whole = anything(max_num_batched_tokens=512, enable_chunked_prefill=False)
    assert not can_be_steered(scheduler(scheduler_config=whole))


def test_a_plain_engine_generates_one_token_per_step() -> None:
    assert generates_one_token_per_step(scheduler())
    assert not generates_one_token_per_step(scheduler(num_spec_tokens=1))
    assert not generates_one_token_per_step(scheduler(connector=anything()))
    stages = anything(parallel_config=anything(pipeline_parallel_size=2))
    assert not generates_one_token_per_step(scheduler(vllm_config=stages))


# A repeated plan.


def repeated(**other: int) -> RepeatedPlan:
    fields = {"membership": 5, "least_blocks": 3, "steps_left": 1} | other
    return RepeatedPlan(**fields, running=2, work=BatchWork(2, 50), seconds=0.5, increase_s=0.25)


def test_a_plan_is_repeated_while_the_same_requests_have_blocks_and_steps_left() -> None:
    assert repeated().holds(5, KvMemory(100, 3, 16))
    assert not repeated().holds(6, KvMemory(100, 3, 16))
    assert not repeated().holds(5, KvMemory(100, 2, 16))
    assert not repeated().holds(5, KvMemory(100, 5, 16, 2))
    assert repeated().holds(5, KvMemory(100, 6, 16, 2))
    assert not repeated(steps_left=0).holds(5, KvMemory(100, 9, 16))


def test_each_step_of_a_repeated_plan_reads_one_more_token_of_each_request() -> None:
    plan = repeated(steps_left=9)
    plan.advance()
    assert (plan.steps_left, plan.work, plan.seconds) == (8, BatchWork(2, 52), 0.75)
    assert next_work(BatchWork(3, 10, 5.0, 1), 3) == BatchWork(3, 13)


def test_a_plan_is_repeated_until_the_first_request_must_stop() -> None:
    running: Any = [
        anything(num_prompt_tokens=10, max_tokens=5, num_computed_tokens=11),
        anything(num_prompt_tokens=90, max_tokens=50, num_computed_tokens=96),
    ]
    assert steps_to_first_end(running, 1000) == 3
    assert steps_to_first_end(running, 98) == 2
    assert steps_to_first_end(running[1:], 1000) == 43


# Steps under way.


def step(requested_s: float = 0.0, predicted_s: float = 0.5, tokens: int = 1) -> StepInProgress:
    output: Any = anything(num_scheduled_tokens={"a": tokens} if tokens else {})
    return StepInProgress(output, requested_s, BatchWork(tokens), predicted_s, {})


def test_the_next_step_starts_when_the_earlier_ones_end() -> None:
    line = Pipeline()
    assert (line.free_s(0.5, MODEL), line.left_s(0.5)) == (0.5, 0.0)
    first, second = step(1.0, 0.5, 10), step(1.25, 0.25, 20)
    line.begin(first)
    line.begin(second)
    assert line.free_s(1.0, MODEL) == pytest.approx(1.0 + 0.020 + 0.030)
    assert line.free_s(2.0, MODEL) == 2.0
    assert (line.left_s(1.0), line.left_s(1.5), line.left_s(9.0)) == (0.75, 0.25, 0.0)
    assert line.take(first.output) is first
    assert line.end(first, 1.5, more_work=True) == MeasuredStep(BatchWork(10), 0.5)
    assert line.left_s(1.5) == 0.25


def test_a_steps_time_counts_from_its_request_or_the_previous_end() -> None:
    line, one = Pipeline(), step(1.0)
    line.begin(one)
    assert line.end(one, 3.0, more_work=True) == MeasuredStep(one.work, 2.0)
    assert line.end(step(2.5), 4.0, more_work=False) == MeasuredStep(BatchWork(1), 1.0)
    assert line.end(step(6.0), 6.5, more_work=True) == MeasuredStep(BatchWork(1), 0.5)
    line.pause()
    assert line.end(step(8.0), 8.25, more_work=True) == MeasuredStep(BatchWork(1), 0.25)
    assert line.end(step(9.0), 8.25, more_work=True) is None


def test_steps_that_never_ended_are_dropped_and_empty_ones_ignored() -> None:
    line, lost, found, empty = Pipeline(), step(), step(), step(tokens=0)
    line.begin(lost)
    line.begin(found)
    assert line.take(empty.output) is None
    assert line.take(found.output) is found
    assert line.take(found.output) is None
    assert not line.steps


def test_draft_tokens_in_progress_are_those_of_every_step_that_has_not_ended() -> None:
    line, ended = Pipeline(), step()
    for one, drafts in ((ended, {"a": [1]}), (step(), {"a": [1, 2], "b": [3]}), (step(), {"a": [4]})):
        one.output.scheduled_spec_decode_tokens = drafts
        line.begin(one)
    assert line.drafts() == {"a": 4, "b": 1}
    line.take(ended.output)
    assert line.drafts() == {"a": 3, "b": 1}


def request(tokens: int = 101, output: int = 1, computed: int = 101) -> Any:
    return anything(num_tokens=tokens, num_output_tokens=output, num_computed_tokens=computed)


def test_a_step_is_a_decode_once_all_prompts_are_prefilled() -> None:
    assert decoded(request(101, 1), 100) and decoded(request(101, 1), 101)
    assert not decoded(request(101, 1), 99)
    assert not decoded(request(100, 0), 99)
    assert decoded(request(100, 0), 100)


def test_the_work_of_a_step_is_tokens_context_and_attention() -> None:
    there = {"d": HeldRequest(request(computed=101), job()), "p": HeldRequest(request(500, 0, 140), job())}
    output: Any = anything(
        num_scheduled_tokens={"d": 1, "p": 40},
        scheduled_spec_decode_tokens={"d": [1, 2]},
        total_num_scheduled_tokens=41,
    )
    made = step_in_progress(output, there, 2.0, MODEL, None)
    work = BatchWork(41, 101, chunk_work(40, 100), 2)
    assert made == StepInProgress(output, 2.0, work, MODEL.seconds(work), {"p": 40})
    both: Any = anything(
        num_scheduled_tokens={"d": 1, "e": 1}, scheduled_spec_decode_tokens={}, total_num_scheduled_tokens=2
    )
    known = step_in_progress(both, {}, 2.0, MODEL, [job(computed=100), job(computed=50)])
    assert known == StepInProgress(both, 2.0, BatchWork(2, 152), MODEL.seconds(BatchWork(2, 152)), {})


def test_a_step_is_uniform_only_with_one_token_of_every_running_request() -> None:
    def computes(tokens: dict[str, int], running: int = 2) -> bool:
        output: Any = anything(num_scheduled_tokens=tokens, total_num_scheduled_tokens=sum(tokens.values()))
        return computes_one_each(output, running)

    assert computes({"a": 1, "b": 1})
    assert not computes({"a": 1, "b": 2})
    assert not computes({"a": 2})
    assert not computes({"a": 1, "b": 1}, running=3)


def test_a_steps_outcome_is_uniform_or_not() -> None:
    output: Any = anything(num_scheduled_tokens={"a": 1, "b": 1})

    def brought(*tokens: list[int]) -> bool:
        reported: Any = anything(sampled_token_ids=tokens)
        return generated_one_each(output, reported)

    assert brought([1], [2])
    assert not brought([1], [2], [3])
    assert not brought([1], [])
    assert not brought([1, 2], [3])


# The picture that a policy sees.


def asked(**other: int) -> Any:
    fields = {
        "num_output_placeholders": 0,
        "num_computed_tokens": 100,
        "num_prompt_tokens": 100,
        "max_tokens": 5,
        "next_decode_eligible_step": 0,
    }
    return anything(**(fields | other))


def test_a_request_continues_unless_its_last_token_is_in_progress_or_it_waits_for_input() -> None:
    assert may_continue(asked(), 200, 3)
    assert may_continue(asked(num_computed_tokens=104), 200, 3)
    last = asked(num_computed_tokens=104, num_output_placeholders=1)
    assert not may_continue(last, 200, 3)
    assert may_continue(asked(num_computed_tokens=103, num_output_placeholders=1), 200, 3)
    assert not may_continue(asked(num_computed_tokens=105, num_output_placeholders=2), 200, 3)
    assert may_continue(asked(), 101, 3) and not may_continue(asked(), 100, 3)
    assert may_continue(asked(next_decode_eligible_step=3), 200, 3)
    assert not may_continue(asked(next_decode_eligible_step=4), 200, 3)


def test_a_running_job_is_predicted_with_every_draft_rejected() -> None:
    decodes = job(computed=100, generated=1)
    still = HeldRequest(asked(), decodes)
    assert after_steps_in_progress(still, 9.0) is decodes
    drafting = HeldRequest(
        asked(num_computed_tokens=104, num_output_placeholders=4), decodes, drafts_in_progress=3
    )
    ahead = after_steps_in_progress(drafting, 9.0)
    assert (ahead.computed_tokens, ahead.generated_tokens) == (101, 2)
    prefilling = HeldRequest(asked(num_computed_tokens=60), job(computed=20))
    assert (
        after_steps_in_progress(prefilling, 9.0).computed_tokens,
        after_steps_in_progress(prefilling, 9.0).generated_tokens,
    ) == (60, 0)


def test_requests_that_vllm_will_not_compute_keep_their_slots() -> None:
    going = held("a", of=job("a", computed=100, generated=1), **vars(asked()))
    ending = held("b", of=job("b", computed=100, generated=1), **vars(asked(next_decode_eligible_step=9)))
    others = held("c", of=job("c"), **vars(asked()))
    others.planned = False

    def seen(in_progress: StepsInProgress, running: int = 8) -> Any:
        return view_of(
            [going, ending, others],
            (job("w"),),
            memory=KvMemory(100, 40, 16, 2),
            bounds=StepBounds(512, running, 200),
            model=MODEL,
            speculation=Speculation(2, 0.5),
            step=3,
            start_s=7.0,
            in_progress=in_progress,
        )

    idle = seen(StepsInProgress.NONE)
    assert ([one.request.id for one in idle.running], idle.limits) == (["a", "b"], Limits(512, 7))
    assert (idle.now_s, idle.busy_until_s, idle.kv) == (7.0, 7.0, KvCache(50, 20, 16))
    assert [one.request.id for one in idle.waiting] == ["w"]
    each = seen(StepsInProgress.ONE_TOKEN_EACH)
    assert ([one.generated_tokens for one in each.running], each.limits) == ([2], Limits(512, 6))
    more = seen(StepsInProgress.OTHER)
    assert ([one.generated_tokens for one in more.running], more.limits) == ([1], Limits(512, 6))
    assert seen(StepsInProgress.OTHER, running=1).limits.running == 0


# Drafts and learned rates.


def test_drafts_are_cut_to_the_plan_and_to_those_that_the_worker_kept() -> None:
    names = ("a", "b", "c", "none")
    there = {f"engine-{name}": held(name, spec_token_ids=[1, 2, 3]) for name in names}
    there["engine-none"].request.spec_token_ids = []
    cut_drafts([one.request for one in there.values()], {"a": 2, "b": 5}, there, None)
    assert [len(there[f"engine-{name}"].request.spec_token_ids) for name in names] == [2, 3, 0, 0]
    there["engine-a"].request.spec_token_ids = [1, 2, 3]
    cut_drafts([there["engine-a"].request], {"a": 2}, there, {"engine-b": 1})
    assert there["engine-a"].request.spec_token_ids == []
    there["engine-b"].request.spec_token_ids = [1, 2, 3]
    cut_drafts([there["engine-b"].request], {"b": 2}, there, {"engine-b": 1})
    assert there["engine-b"].request.spec_token_ids == [1, 2]


def accepted(
    drafts: list[int], sampled: list[list[int]], *, with_worker: bool = False, here: bool = True
) -> list[Drafted]:
    output: Any = anything(scheduled_spec_decode_tokens={"engine-a": drafts})
    brought: Any = anything(req_id_to_index={"engine-a": 0} if here else {}, sampled_token_ids=sampled)
    return drafted(output, brought, {"engine-a": held()}, with_worker=with_worker)


def test_all_tokens_but_one_are_accepted_drafts() -> None:
    assert accepted([5, 6, 7], [[5, 6, 9]]) == [Drafted("direct", 3, 2)]
    assert accepted([5, 6, 7], [[9]]) == [Drafted("direct", 3, 0)]
    assert accepted([5], [[5, 6, 7]]) == [Drafted("direct", 1, 1)]
    assert accepted([5], [[]]) == [] == accepted([5], []) == accepted([5], [[5, 6]], here=False)
    assert accepted([-1, -1], [[5, 6]]) == []
    assert accepted([-1, -1], [[5, 6]], with_worker=True) == [Drafted("direct", 2, 1)]
    assert accepted([0, 1], [[0, 1, 2]]) == [Drafted("direct", 2, 2)]


def test_steps_are_evaluated_on_demand_or_when_many_are_recorded() -> None:
    work = BatchWork(100)
    once = observe(Correction(), MODEL, work, 0.2)
    asked_for = EngineEstimates(MODEL, None)
    assert asked_for.model == corrected(MODEL, Correction())
    asked_for.step(MeasuredStep(work, 0.2))
    assert asked_for.model == corrected(MODEL, once)
    assert asked_for.model is asked_for.model
    noted = EngineEstimates(MODEL, None)
    for _ in range(MOST_NOTED - 1):
        noted.step(MeasuredStep(work, 0.2))
    assert len(noted._noted) == MOST_NOTED - 1
    noted.step(MeasuredStep(work, 0.2))
    assert not noted._noted
    drafter = Speculation(3, 0.6)
    learned = EngineEstimates(MODEL, drafter)
    learned.drafts([])
    assert learned.speculation is drafter
    learned.drafts([Drafted("chat", 3, 3)] * 100)
    assert learned.speculation is not None and learned.speculation.acceptance > 0.8
    nothing = EngineEstimates(MODEL, None)
    nothing.drafts([Drafted("chat", 3, 3)])
    assert nothing.speculation is None


# Names and adapters.


def test_answers_of_one_request_are_counted_past_those_that_have_ended() -> None:
    names, taken = AnswerNames(), set[str]()
    for expected in ("r", "r~1", "r~2"):
        assert names.of("r", taken) == expected
    assert names.of("other", {"other", "other~1"}) == "other~2"
    assert names.of("r", taken) == "r~3"
    assert names.of("a\x00b" + "x" * 300, taken) == "a?b" + "x" * 197


def test_names_are_remembered_for_a_bounded_number_of_requests() -> None:
    names = AnswerNames()
    names.of("first", ())
    for number in range(MOST_REMEMBERED - 1):
        names.of(f"n{number}", ())
    assert names.of("first", ()) == "first~1"
    names.of("one more", ())
    assert names.of("n0", ()) == "n0"
    assert names.of("first", ()) == "first~2"


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=6), st.integers(1, 3))
def test_adapters_in_use_are_bounded(start: list[int], running: list[int], most: int) -> None:
    candidates = [held(f"s{at}", lora=lora) for at, lora in enumerate(start)]
    there = [held(f"r{at}", lora=lora) for at, lora in enumerate(running)]
    used = set(running) - {0}
    if len(used) > most:
        return
    chosen = within_loras(candidates, there, most)
    assert list(chosen) == candidates[: len(chosen)]
    assert len(used | set(start[: len(chosen)]) - {0}) <= most
    if len(chosen) < len(start):
        assert len(used | set(start[: len(chosen) + 1]) - {0}) > most
    could = with_a_lora_in_use(candidates, there, most)
    fits = [one for one, lora in zip(candidates, start, strict=True) if not lora or lora in used]
    assert list(could) == (candidates if len(used) < most else fits)
