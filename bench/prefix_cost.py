"""What prefixes cost router and sidecar: CPU time for a prompt of 100,000 tokens, by part.

    .venv/bin/python bench/prefix_cost.py

A chat of 201 messages, 400 kB, the next turn of one of 300 sessions that 16 replicas hold. Median and p99 of
each part over 200 requests, the sum of the medians, and what is added for an engine of type `openai`.
"""

import json
from collections.abc import Callable
from statistics import median
from time import process_time_ns

from penstock_proto import replica_pb2 as wire
from penstock_proto.telemetry_pb2 import CachedPrompt, StepReport
from penstock_routing.replicas.cached_prefixes import CachedPrefixes
from penstock_routing.request.cache_salt import with_application_salt
from penstock_runtime.engine.sse import EngineUsage
from penstock_runtime.prompt_marks import PromptMarks, prompt_marks
from penstock_sidecar.mirror.learned_prefixes import LearnedPrefixes
from penstock_sidecar.mirror.prefix_index import PrefixIndex

REQUESTS, SESSIONS, REPLICAS, PROMPT_TOKENS = 200, 300, 16, 100_000
WORDS = "lorem ipsum dolor " * 110


def body(session: int, turns: int) -> bytes:
    messages = [{"role": "user", "content": f"{session} {turn} {WORDS}"} for turn in range(turns)]
    return json.dumps({"model": "m", "messages": messages}).encode()


def serve(index: PrefixIndex, name: str, marks: PromptMarks) -> None:
    """A prompt comes, and the engine reports that it is cached."""
    index.add(name, marks)
    prompt = CachedPrompt(request_id=name, prompt_tokens=PROMPT_TOKENS, cached_tokens=PROMPT_TOKENS - 16)
    report = StepReport(engine_instance="e", caches_prefixes=True, block_tokens=16, cached_prompts=[prompt])
    index.take(report, 0)


def learn(learned: LearnedPrefixes, name: str, marks: PromptMarks) -> None:
    """A prompt is planned, sent and answered by an engine that reports nothing but its cached tokens."""
    learned.cached_tokens(marks)
    learned.sent(name, marks)
    learned.answered(name, EngineUsage(PROMPT_TOKENS, 100, PROMPT_TOKENS - 16))
    learned.ended(name)


def measured(part: Callable[[int], object]) -> tuple[float, float]:
    """Median and p99, in ms."""
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
        prefixes.holder(f"r{number}").update(wire.CachedPrefixes(added=reported, anew=True))
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
    learned = LearnedPrefixes(PrefixIndex(), lambda: 4 * PROMPT_TOKENS)
    middle, high = measured(lambda number: learn(learned, str(number), marks))
    print(f"{'more, engine of type openai':32} {middle:7.3f} ms  p99 {high:7.3f} ms")


if __name__ == "__main__":
    main()
