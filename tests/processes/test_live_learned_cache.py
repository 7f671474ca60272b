"""A sidecar learns the prefix cache of an engine without reports, with real processes."""

import re
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import httpx2
import pytest
from live.open_pool import OpenPool
from live.pool import LivePool
from live.pool_file import MODEL, write_pool
from live.process import Process, Started
from patience import until

ENGINE: dict[str, Any] = {"kvCacheTokens": 2800, "maxModelLen": 2000, "prefixCaching": True}
SESSIONS, REQUESTS, LEARNING = 8, 110, 20
LONGEST = 20
"""Messages of a session, after which another begins: all sessions have twice what the cache keeps."""


def start(name: str, command: list[str], log: Path) -> Started:
    """The engine has a pool of its own: for the sidecar it is any engine."""
    kind, _, replica = name.partition(" ")
    if kind == "engine":
        file = write_pool(log.parent / f"engine-{replica}.yaml", engine=ENGINE)
        reports = command.index("--telemetry")
        return Process(name, [command[0], "-f", str(file), *command[3:reports], *command[reports + 2 :]], log)
    if kind == "sidecar":
        return Process(name, [*command, "--metrics-port", "0"], log)
    return Process(name, command, log)


class Planned(NamedTuple):
    """Tokens of a request: its prompt, those planned as cached, and those that the engine found."""

    prompt: int
    cached: int
    found: int


class Counters:
    """Return the sidecar's counts of prompts with complete answers."""

    def __init__(self, pool: LivePool) -> None:
        address = re.search(r"\bmetrics=(\S+)", pool.process("sidecar", "r0").printed_text)
        assert address is not None
        self._url, self._seen = f"http://{address[1]}/metrics", Planned(0, 0, 0)

    def next(self) -> Planned:
        """Return those of the next answer, once it is counted."""
        before, counts = self._seen, until(self._changed, "the sidecar counts the answer")
        self._seen = counts
        return Planned(*(after - earlier for after, earlier in zip(counts, before, strict=True)))

    def _changed(self) -> Planned | None:
        page = httpx2.get(self._url, timeout=10).text
        names = ("prompt_tokens", "cached_tokens_planned", "cached_tokens_found")
        found = [re.search(rf"^penstock_replica_{name}_total\S* (\S+)$", page, re.M) for name in names]
        counts = Planned(*(int(float(line[1])) if line else 0 for line in found))
        return counts if counts != self._seen else None


@pytest.fixture(scope="module")
def pool(open_module_pool: OpenPool) -> LivePool:
    return open_module_pool(start=start, engine={"type": "openai", "maxModelLen": 2000})


def turns(pool: LivePool) -> list[Planned]:
    """Send sessions' turns in random order. Return each request's planned and found cached tokens."""
    counters, chance, outcomes = Counters(pool), Random(1), list[Planned]()
    sessions: list[list[Any]] = [[] for _ in range(SESSIONS)]
    with pool.client() as client:
        for number in range(REQUESTS):
            at = chance.randrange(SESSIONS)
            if len(sessions[at]) >= LONGEST:
                sessions[at] = []
            text = f"request {number} " + "a word " * chance.randint(10, 80)
            sessions[at].append({"role": "user", "content": text})
            answer = client.chat.completions.create(model=MODEL, messages=sessions[at], max_tokens=8)
            sessions[at].append({"role": "assistant", "content": answer.choices[0].message.content})
            outcomes.append(counters.next())
            assert answer.usage is not None
            assert answer.usage.prompt_tokens == outcomes[-1].prompt
    return outcomes


def test_planned_cached_tokens_are_found_by_an_engine_that_evicts(pool: LivePool) -> None:
    outcomes = turns(pool)[LEARNING:]
    hits = sum(one.found for one in outcomes) / sum(one.prompt for one in outcomes)
    assert 0.2 < hits < 0.7, "prefixes are found, and many are evicted"
    error = sum(abs(one.cached - one.found) / one.prompt for one in outcomes) / len(outcomes)
    missing = sum(max(one.cached - one.found, 0) / one.prompt for one in outcomes) / len(outcomes)
    print(f"cached {hits:.1%}, error {error:.2%}, missing {missing:.2%}")
    assert error <= 0.05
    assert missing <= 0.02
