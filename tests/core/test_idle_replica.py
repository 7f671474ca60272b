"""Whether an idle replica could meet a request's SLO."""

from dataclasses import replace
from math import nextafter

from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, new_job
from penstock_core.domain.slo import Targets
from penstock_core.policies.slos_serve.idle_replica import possible_when_idle
from penstock_core.timing.admission_margin import AdmissionMargin, widened
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.time_model import BatchWork

OPT = time_model("slos-serve-opt-6.7b-a100")


def asks(name: str, prompt: int = 500, output: int = 50, ttft_s: float | None = 1.0) -> Job:
    return new_job(Request(name, "tier", 0.0, prompt, 4096, Targets(ttft_s, 0.1)), output, False)


def replica(blocks: int = 5000) -> ReplicaView:
    return ReplicaView(0.0, 0.0, (), (), KvCache(blocks, blocks, 16), Limits(), OPT)


def test_an_idle_replica_has_exactly_the_time_of_its_prompt() -> None:
    enough_s = OPT.prefill_seconds(500)
    assert possible_when_idle(asks("a", ttft_s=enough_s), replica())
    assert not possible_when_idle(asks("a", ttft_s=nextafter(enough_s, 0.0)), replica())
    later = asks("a", ttft_s=enough_s)
    came = later._replace(request=replace(later.request, arrival_s=5.0), due_s=5.0 + enough_s + 1e-9)
    assert possible_when_idle(came, replica())


def test_admissions_margin_does_not_decide_what_an_idle_replica_could_do() -> None:
    """Else a request that only has to wait would be answered as one that no replica can serve."""
    cautious = replace(replica(), model=widened(OPT, AdmissionMargin(3.0, 0.0), 0.0))
    job = asks("a", ttft_s=1.01 * OPT.prefill_seconds(500))._replace(
        tpot_s=1.01 * OPT.seconds(BatchWork(1, 549))
    )
    assert possible_when_idle(job, cautious)
    assert not possible_when_idle(job._replace(due_s=0.9 * job.due_s), cautious)
    assert not possible_when_idle(job._replace(tpot_s=0.9 * OPT.seconds(BatchWork(1, 549))), cautious)


def test_an_idle_replica_has_exactly_the_blocks_of_the_whole_answer() -> None:
    """The last token of an answer needs no place in the cache."""
    for generated in (0, 5):
        whole = asks("a", prompt=100, output=61)._replace(generated_tokens=generated)
        assert possible_when_idle(whole, replica(blocks=10))
        assert not possible_when_idle(whole._replace(output_tokens=62), replica(blocks=10))


def test_blocks_of_other_clients_do_not_decide_what_an_idle_replica_could_hold() -> None:
    busy = replace(replica(), kv=KvCache(2, 2, 16, others_blocks=8))
    whole, free = asks("a", prompt=100, output=61), asks("b", prompt=159)._replace(best_effort=True)
    assert possible_when_idle(whole, busy) and possible_when_idle(free, busy)
    assert not possible_when_idle(whole._replace(output_tokens=62), busy)
    assert not possible_when_idle(free._replace(generated_tokens=1), busy)


def test_an_idle_replica_holds_best_effort_until_its_next_token() -> None:
    free = asks("a", prompt=159, output=4000, ttft_s=1e-9)._replace(best_effort=True)
    assert possible_when_idle(free, replica(blocks=10))
    assert not possible_when_idle(free._replace(generated_tokens=1), replica(blocks=10))


def test_an_idle_replica_meets_exactly_the_tpot_of_its_own_longest_step() -> None:
    step_s = OPT.seconds(BatchWork(1, 500 + 49))

    def possible(tpot_s: float | None) -> bool:
        return possible_when_idle(asks("a")._replace(tpot_s=tpot_s), replica())

    assert possible(step_s)
    assert not possible(nextafter(step_s, 0.0))
    assert possible(None)
