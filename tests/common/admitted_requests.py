"""Requests and replicas for tests of what slos-serve admits."""

from dataclasses import replace

from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, deadline_order, new_job
from penstock_core.domain.slo import Targets
from penstock_core.policies.slos_serve.workload import AdmittedSet
from penstock_core.timing.builtin_models import time_model

OPT = time_model("slos-serve-opt-6.7b-a100")


def asks(
    name: str, prompt: int = 500, output: int = 50, ttft_s: float | None = 1.0, value: float = 1.0
) -> Job:
    request = Request(name, "tier", 0.0, prompt, 4096, Targets(ttft_s, 0.1), value)
    return new_job(request, output, False)


def decodes(count: int, prompt: int = 300, output: int = 60) -> list[Job]:
    return [advance(asks(f"d{i}", prompt, output), prompt, 1, 0.0) for i in range(count)]


def admitted(view: ReplicaView, jobs: list[Job]) -> AdmittedSet:
    prompts = sorted([job for job in jobs if not job.decoding], key=deadline_order)
    return AdmittedSet(view, [job for job in jobs if job.decoding], prompts)


def replica(blocks: int = 5000, *, slots: int = 256, scale: float = 1.0, busy_s: float = 0.0) -> ReplicaView:
    kv = KvCache(blocks, blocks, 16)
    return ReplicaView(0.0, busy_s, (), (), kv, Limits(8192, slots), replace(OPT, scale=scale))
