"""From a submit to the job that admission plans with."""

import orjson
import pytest
from penstock_core.domain.request import Job
from penstock_core.domain.slo import Slo, Targets, Tier
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.delivery_time import FEWEST
from penstock_core.timing.time_model import BatchWork
from penstock_proto import replica_pb2 as wire
from penstock_sidecar.requests.client_body import read_body
from penstock_sidecar.requests.estimates import Estimates
from penstock_sidecar.requests.job import LEAST_TARGET_S, job_of, less_delivery

MODEL = time_model("llama-3-8b-a100")


def new_job(tier: Tier, estimates: Estimates) -> Job:
    raw = orjson.dumps({"prompt": [1] * 1000, "max_tokens": 20})
    submit = wire.Submit(id=1, tier=tier.name, spent_s=0.2, endpoint=wire.ENDPOINT_COMPLETIONS, body=raw)
    body = read_body(wire.ENDPOINT_COMPLETIONS, raw)
    return job_of(submit, body, tier, estimates, key="a", context_tokens=8192, now_s=10.0)


def test_the_transit_time_is_subtracted_from_first_token_and_end() -> None:
    tier = Tier("chat", Slo(ttft_s=1.0, tpot_s=0.1, e2e_s=5.0))
    estimates = Estimates(MODEL, delivery_s=0.01)
    assert new_job(tier, estimates).request.targets == Targets(0.99, 0.1, 4.99)
    for _ in range(FEWEST):
        estimates.observe_delivery(0.04)
    assert new_job(tier, estimates).request.targets == Targets(0.96, 0.1, 4.96)
    assert estimates.learned_delivery_s == pytest.approx(0.03)


def test_a_target_that_the_transit_alone_exceeds_is_positive_and_cannot_be_met() -> None:
    tier = Tier("chat", Slo(ttft_s=0.02, e2e_s=0.02))
    job = new_job(tier, Estimates(MODEL, delivery_s=0.03))
    assert job.request.targets == Targets(LEAST_TARGET_S, None, LEAST_TARGET_S)
    assert MODEL.prefill_seconds(1) > LEAST_TARGET_S


def test_absent_targets_stay_absent() -> None:
    assert less_delivery(Targets(tpot_s=0.1), 0.01) == Targets(tpot_s=0.1)


def test_the_certain_length_of_an_answer_is_less_than_the_planned_one() -> None:
    estimates = Estimates(MODEL)
    for tokens in range(10, 20):
        estimates.observe_answer(new_job(Tier("chat"), estimates).request, 1000, tokens)
    job = new_job(Tier("chat"), estimates)
    assert 0 <= job.sure_tokens < job.output_tokens <= 20


def test_time_spent_before_the_sidecar_counts_against_the_deadline() -> None:
    job = new_job(Tier("chat", Slo(ttft_s=1.0)), Estimates(MODEL))
    assert (job.request.arrival_s, job.due_s) == (9.8, 10.8)


def test_a_slowdown_target_does_not_loosen_when_the_engine_becomes_slower() -> None:
    estimates = Estimates(MODEL)
    work = BatchWork(500)
    for _ in range(100):
        estimates.observe_step(work, 2 * MODEL.seconds(work))
    job = new_job(Tier("chat", Slo(ttft_slowdown=5)), estimates)
    assert estimates.model.scale > 1.8
    assert job.request.targets.ttft_s == pytest.approx(5 * MODEL.prefill_seconds(1000))
