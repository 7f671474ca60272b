"""Measures the cost of prefixes for router and sidecar: CPU time for a prompt of 100,000 tokens, by part.

    .venv/bin/python bench/prefix_cost.py

A chat of 201 messages, 400 kB, the next turn of one of 300 sessions that 16 replicas hold. Median and p99 of
each part over 200 requests, the sum of the medians, and the addition for an engine of type `openai`. Then a
whole admission, from the request's body to the verdict of `slos-serve`, with 20 running requests whose
prompts have their first 96,000 tokens in common.
"""

import json
from collections.abc import Callable
from statistics import median
from time import process_time_ns

from penstock_core.domain.replica_view import KvCache, Limits
from penstock_core.domain.request import Job, Request, new_job
from penstock_core.domain.slo import Targets
from penstock_core.domain.verdict import Verdict
from penstock_core.policies.slos_serve.policy import SlosServe
from penstock_core.timing.builtin_models import builtin
from penstock_proto import replica_pb2 as wire
from penstock_proto.sse import EngineUsage
from penstock_proto.telemetry_pb2 import CachedPrompt, StepReport
from penstock_routing.replicas.cached_prefixes import CachedPrefixes
from penstock_routing.request.cache_salt import with_application_salt
from penstock_runtime.prompt_marks import PromptMarks, prompt_marks
from penstock_sidecar.mirror.learned_prefixes import LearnedPrefixes
from penstock_sidecar.mirror.prefix_index import PrefixIndex
from penstock_sidecar.mirror.replica_mirror import ReplicaMirror

REQUESTS, SESSIONS, REPLICAS, PROMPT_TOKENS = 200, 300, 16, 100_000
MODEL = builtin("llama-3-8b-a100").model
WORDS = "lorem ipsum dolor " * 110


def body(session: int, turns: int) -> bytes:
    messages = [{"role": "user", "content": f"{session} {turn} {WORDS}"} for turn in range(turns)]
    return json.dumps({"model": "m", "messages": messages}).encode()


def serve(index: PrefixIndex, name: str, marks: PromptMarks) -> None:
    """Serve a prompt, and let the engine report it as cached."""
    index.add(name, marks)
    prompt = CachedPrompt(request_id=name, prompt_tokens=PROMPT_TOKENS, cached_tokens=PROMPT_TOKENS - 16)
    report = StepReport(engine_instance="e", caches_prefixes=True, block_tokens=16, cached_prompts=[prompt])
    index.take(report, 0)


def learn(estimates: LearnedPrefixes, name: str, marks: PromptMarks) -> None:
    """Plan, send and answer a prompt, for an engine that reports cached tokens only."""
    estimates.cached_tokens(marks)
    estimates.sent(name, marks)
    estimates.answered(name, EngineUsage(PROMPT_TOKENS, 100, PROMPT_TOKENS - 16))
    estimates.ended(name)


RUNNING, COMMON_TOKENS = 20, 96_000
KV = KvCache(400_000, 100_000, 16)


def mirror_of(marks: PromptMarks) -> ReplicaMirror:
    """Return the mirror of an engine that runs requests with one long prefix."""
    mirror = ReplicaMirror(KV, Limits(), lambda job: job.output_tokens + 100)
    names = [f"r{number}" for number in range(RUNNING)]
    for name in names:
        mirror.prefixes.add(name, marks)
        mirror.accept(candidate(name), 0.0, prompt_known=True)
    report = StepReport(engine_instance="e", caches_prefixes=True, running=RUNNING, request_ids=names)
    report.kv_blocks_total, report.kv_blocks_free, report.block_tokens = KV.total_blocks, KV.free_blocks, 16
    report.computed_tokens.extend([PROMPT_TOKENS + 9] * RUNNING)
    report.generated_tokens.extend([10] * RUNNING)
    report.best_effort.extend([False] * RUNNING)
    report.sharing.extend(range(RUNNING))
    report.common_blocks.extend([0, *[COMMON_TOKENS // 16] * (RUNNING - 1)])
    for name in names:
        cached = {"prompt_tokens": PROMPT_TOKENS, "cached_tokens": COMMON_TOKENS}
        report.cached_prompts.add(request_id=name, held_tokens=COMMON_TOKENS, **cached)
    mirror.prefixes.take(report, 0)
    mirror.apply(report, 0.0)
    return mirror


def candidate(name: str) -> Job:
    request = Request(name, "chat", 0.0, PROMPT_TOKENS, 4096, Targets(60.0, 0.5))
    return new_job(request, 300, best_effort=False)


def admission(mirror: ReplicaMirror, policy: SlosServe, raw: bytes) -> Verdict:
    """Decide about a request as a sidecar does."""
    job = mirror.candidate(candidate("new"), prompt_marks(raw))
    (verdict,) = policy.admit(mirror.view(0.01, MODEL), [job])
    return verdict


def measured(part: Callable[[int], object]) -> tuple[float, float]:
    """Return median and p99 of a part, in ms."""
    taken = []
    for number in range(REQUESTS):
        began = process_time_ns()
        part(number)
        taken.append((process_time_ns() - began) / 1e6)
    return median(taken), sorted(taken)[int(0.99 * REQUESTS)]


def main() -> None:
    index, prefixes = PrefixIndex(), CachedPrefixes()
    for session in range(SESSIONS):
        serve(index, str(session), prompt_marks(body(session, 200 if session < 4 else 20)))
    reported = [change.key for change in index.reported.all()]
    for number in range(REPLICAS):
        prefixes.holder(f"r{number}").update(wire.CachedPrefixes(added=reported, complete=True))
    raw = body(1, 201)
    marks = prompt_marks(raw)
    parts: dict[str, Callable[[int], object]] = {
        "router: the application's salt": lambda _: with_application_salt(raw, "ide", b"null"),
        "router: marks": lambda _: prompt_marks(raw),
        "router: look-up": lambda _: prefixes.cached_tokens(marks),
        "sidecar: marks": lambda _: prompt_marks(raw),
        "sidecar: look-ups": lambda _: (index.longest(marks), index.longest(marks)),
        "sidecar: index": lambda number: serve(index, f"new {number}", marks),
    }
    total = 0.0
    for name, part in parts.items():
        middle, high = measured(part)
        total += middle
        print(f"{name:32} {middle:7.3f} ms  p99 {high:7.3f} ms")
    print(f"{'all':32} {total:7.3f} ms")
    estimates = LearnedPrefixes(PrefixIndex(), lambda: 4 * PROMPT_TOKENS)
    middle, high = measured(lambda number: learn(estimates, str(number), marks))
    print(f"{'more, engine of type openai':32} {middle:7.3f} ms  p99 {high:7.3f} ms")
    mirror, policy = mirror_of(prompt_marks(body(1, 200))), SlosServe()
    middle, high = measured(lambda _: admission(mirror, policy, raw))
    print(f"{'an admission as a whole':32} {middle:7.3f} ms  p99 {high:7.3f} ms")
    print(admission(mirror, policy, raw))


if __name__ == "__main__":
    main()
