"""The sidecar's mirror agrees with vLLM's own requests after each step's report."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from penstock_core.domain.engine_fields import LONGEST_STRING, from_fields, sequence_ids
from penstock_core.domain.replica_view import KvCache, Limits
from penstock_core.domain.request import Job
from penstock_proto.telemetry_pb2 import StepReport
from penstock_sidecar.mirror.replica_mirror import ReplicaMirror
from penstock_sidecar.telemetry.socket import Continuity
from penstock_sidecar.telemetry.whole_reports import WholeReports
from virtual.engine import Engine, Kind
from virtual.life import life
from virtual.wire import wired

STEPS = 700
SCARCE = Kind(blocks=100, batch_tokens=256, running=32)
KINDS = {
    "ample": Kind(),
    "scarce": SCARCE,
    "scarce and drafting": replace(SCARCE, drafts=4),
    "scarce and ahead": replace(SCARCE, ahead=True),
    "drafting and ahead": Kind(drafts=4, ahead=True),
    "with a prefix cache": Kind(prefix_caching=True),
}


def job_of(engine: Engine, request: Any) -> Job:
    """As the sidecar knows it."""
    return from_fields(
        request.sampling_params.extra_args,
        engine_id=request.request_id,
        prompt_tokens=request.num_prompt_tokens,
        max_output_tokens=request.max_tokens,
        now_s=engine.now_s,
    )


def expected(engine: Engine, requests: Iterable[Any], report: StepReport) -> list[tuple[str, int, int]]:
    """Return the sidecar's id, tokens in memory and generated tokens of each of vLLM's requests.

    Steps under way are left out, but for what they prefill.
    """
    ids = list(report.request_ids)
    chunks = {ids[row]: n for row, n in zip(report.prefilling, report.chunk_tokens, strict=True)}
    rows = []
    for request in requests:
        name = request.sampling_params.extra_args["penstock_id"]
        known = request.num_computed_tokens - request.num_in_flight_tokens + request.num_stale_output_tokens
        chunk, out = chunks.get(name, 0), request.num_output_tokens
        pending = request.num_prompt_tokens + out - known
        rows.append((name, known + min(chunk, pending), out + (chunk >= pending > 0)))
    return rows


@pytest.mark.parametrize("kind", KINDS)
def test_the_mirror_agrees_with_vllm_at_every_step(kind: str) -> None:
    engine_kind = KINDS[kind]
    mirror = ReplicaMirror(
        KvCache(1, 1, 1), Limits(engine_kind.batch_tokens, engine_kind.running), lambda job: 1
    )
    wire, continuity, wholes, lost, steps = None, Continuity(), WholeReports(), 0, 0
    known: set[str] = set()
    for moment in life(engine_kind, seed=2, steps=STEPS):
        engine = moment.engine
        if wire is None:
            wire = wired(engine)
            continue
        scheduler = engine.scheduler
        for name in scheduler.requests.keys() - known:
            mirror.accept(job_of(engine, scheduler.requests[name]), engine.now_s, prompt_known=True)
        known = set(scheduler.requests)
        output = wire.reports.pop()
        lost += continuity.lost_before(output)
        wholes.keep(output)
        report = wholes.restored(output)
        assert report is not None
        mirror.apply(report, engine.now_s)
        view = mirror.view(engine.now_s, engine.model)
        seen = [(job.request.id, job.computed_tokens, job.generated_tokens) for job in view.running]
        assert seen == expected(engine, scheduler.running, report)
        assert sorted(job.request.id for job in view.waiting) == sorted(
            request.sampling_params.extra_args["penstock_id"] for request in scheduler.waiting
        )
        memory = KvCache(engine_kind.blocks, engine.free_blocks, engine_kind.block_tokens)
        assert replace(view.kv, shared_blocks=None, shared_prefixes=None) == memory
        steps += 1
    assert lost == 0
    assert steps > STEPS / 2


def test_a_report_measures_the_step_that_has_ended() -> None:
    engine = Engine(Kind(policy="vllm"))
    wire = wired(engine)
    engine.add("r1", 100, 5, fields={"penstock_id": "p1"})
    engine.add("r2", 30, 5, fields={"penstock_id": "p2"})
    engine.step()
    began_s = engine.now_s
    engine.step()
    prefill, decodes = wire.reports
    assert (prefill.duration_s, list(prefill.chunk_tokens)) == (0.0, [100, 30])
    assert prefill.next_duration_s > 0
    assert (decodes.tokens, decodes.context_tokens) == (130, 0)
    assert decodes.prefill_work == 128 * 50 + 128 * 15
    assert decodes.duration_s == pytest.approx(began_s)
    engine.step()
    assert (wire.reports[-1].tokens, wire.reports[-1].context_tokens) == (2, 132)


def test_an_engine_without_requests_reports_it() -> None:
    engine = Engine(Kind(policy="vllm"))
    wire = wired(engine)
    engine.add("r1", 100, 3, fields={"penstock_id": "p1"})
    engine.drain()
    last = wire.reports[-1]
    assert (last.running, last.waiting, last.next_duration_s) == (0, 0, 0.0)
    assert last.kv_blocks_free == last.kv_blocks_total == engine.kind.blocks


def test_acceptance_is_measured_per_tier_and_reported() -> None:
    engine = Engine(Kind(policy="vllm", drafts=4), accepted=lambda drafts: drafts)
    wire = wired(engine)
    engine.add("r1", 100, 400, fields={"penstock_id": "p1", "penstock_tier": "coder"})
    engine.drain()
    drafting = wire.reports[-1].drafting
    assert drafting.max_tokens == 4
    assert drafting.by_tier["coder"] > drafting.acceptance > 0.7


CHAT = {"penstock_tier": "chat", "penstock_ttft_s": 5.0, "penstock_tpot_s": 0.2, "penstock_best_effort": 0}


@pytest.mark.parametrize("ahead", [False, True])
def test_answers_and_prompts_of_one_request_have_the_names_of_the_sidecar_s_jobs(ahead: bool) -> None:
    """vLLM makes a request of each and names it in its own way; all carry the fields of one."""
    engine, lengths = Engine(Kind(policy="slos-serve", ahead=ahead)), (40, 40, 90, 90)
    wire, ids = wired(engine), sequence_ids("p1", 4)
    mirror = ReplicaMirror(KvCache(1, 1, 1), Limits(512, 64), lambda job: 1)
    for at, prompt_tokens in enumerate(lengths):
        child = engine.add(
            f"{at % 2}_cmpl-{at // 2}", prompt_tokens, 5 + at, fields=CHAT | {"penstock_id": "p1"}
        )
        job = job_of(engine, child)
        longest = replace(job.request, id=ids[at], prompt_tokens=max(lengths))
        mirror.accept(job._replace(request=longest), 0.0)
    seen: set[str] = set()
    while engine.scheduler.has_requests():
        engine.step()
        mirror.apply(wire.reports[-1], engine.now_s)
        view = mirror.view(engine.now_s, engine.model)
        assert {job.request.tier for job in (*view.running, *view.waiting)} <= {"chat"}
        decoding = [job for job in view.running if job.generated_tokens]
        assert all(job.decoding for job in decoding), "each is known to have the prompt that it has"
        seen |= {job.request.id for job in decoding}
    assert seen == set(ids)


def test_an_answer_after_anothers_end_has_a_new_name() -> None:
    engine = Engine(Kind(policy="slos-serve"))
    wire = wired(engine)
    for name in ("0_r1", "1_r1"):
        engine.add(name, 20, 1, fields={"penstock_id": "p1"})
        engine.drain()
    reported = {request_id for report in wire.reports for request_id in report.request_ids}
    assert reported == set(sequence_ids("p1", 2))


def test_a_client_cannot_use_another_request_s_id() -> None:
    """A request that came past the sidecar may carry any."""
    engine = Engine(Kind(policy="slos-serve"))
    wire = wired(engine)
    engine.add("r1", 20, 5, fields={"penstock_id": "r2"})
    engine.add("r2", 20, 5)
    engine.add("r3", 20, 5, fields={"penstock_id": "r2~1"})
    engine.add("x" * 70_000, 20, 5)
    engine.step()
    *_, longest = names = list(wire.reports[-1].request_ids)
    assert names[:3] == ["r2", "r2~1", "r2~1~1"] and len(longest) == LONGEST_STRING
    engine.drain()
    assert engine.finished == set(engine.asked)
    assert engine.scheduler.faults.counted == {}
