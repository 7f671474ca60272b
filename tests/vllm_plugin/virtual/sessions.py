"""Engine runs whose prompts share prefixes: sessions, branches and equal prompts."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from virtual.engine import Engine, Kind
from virtual.life import TIERS, Recorder, watched

MOST_DRAFTS = 3
COUNTS = "penstock_counts_on_cache"


@dataclass
class Started:
    """A request that a step has started: what was planned of it, and what vLLM found in its cache.

    alone: no other prompt is computed in this step, whose blocks it might share. again: it was preempted.
    """

    name: str
    planned_tokens: int
    found_tokens: int
    alone: bool
    again: bool


@dataclass
class Sessions:
    """Draws prompts: a new one, one that continues an earlier one, or a part of it."""

    chance: random.Random
    longest: int
    prompts: list[list[int]] = field(default_factory=list)

    def prompt(self) -> list[int]:
        chance = self.chance
        fresh = [chance.randrange(1000) for _ in range(chance.randint(1, self.longest // 4))]
        if self.prompts and chance.random() < 0.7:
            before = chance.choice(self.prompts[-12:])
            fresh = before[: chance.choice([len(before), len(before) // 2])] + fresh
        prompt = fresh[: self.longest]
        self.prompts.append(prompt)
        return prompt


def cached_life(
    kind: Kind, seed: int, steps: int, rate: float = 0.2
) -> Iterator[tuple[Engine, list[Started]]]:
    """An engine's steps with what each has started, until all is done. Clients leave, caches are reset."""
    chance = random.Random(seed)
    engine, recorder = watched(kind, lambda drafts: chance.randint(0, drafts), always=True)
    sessions, number = Sessions(chance, kind.blocks * kind.block_tokens // 3), 0
    for _ in range(steps):
        while chance.random() < rate and len(engine.scheduler.requests) < 40:
            number += 1
            prompt, output_tokens = sessions.prompt(), chance.randint(1, chance.choice([5, 60, 200]))
            fields: dict[str, Any] = {
                **chance.choice(TIERS),
                "penstock_id": f"p{number}",
                "penstock_spent_s": 0.0,
            }
            fields["penstock_output_tokens"] = chance.randint(1, 2 * output_tokens)
            fields[COUNTS] = chance.random() < 0.5
            engine.add(f"r{number}", len(prompt), output_tokens, prompt=prompt, fields=fields)
        if engine.scheduler.requests and chance.random() < 0.05:
            engine.abort([chance.choice(list(engine.scheduler.requests))])
        if chance.random() < 0.02:
            engine.scheduler.reset_prefix_cache()
        asked = recorder.asked
        output = engine.begin()
        yield engine, started_by(output, recorder) if recorder.asked > asked else []
        engine.end_due(output)
    engine.drain()
    yield engine, []


def started_by(output: Any, recorder: Recorder) -> list[Started]:
    """Return the requests that a planned step has started."""
    assert recorder.view is not None
    planned = {job.request.id: job.computed_tokens for job in recorder.view.waiting}
    new = [(one.req_id, one.num_computed_tokens, False) for one in output.scheduled_new_reqs]
    resumed = output.scheduled_cached_reqs
    for name, computed in zip(resumed.req_ids, resumed.num_computed_tokens, strict=True):
        if name in resumed.resumed_req_ids:
            new.append((name, computed, True))
    prefilling = [name for name, tokens in output.num_scheduled_tokens.items() if tokens > 1 + MOST_DRAFTS]
    names = {name: f"p{name[1:]}" for name, _, _ in new}
    return [
        Started(name, planned[names[name]], found, len(new) == 1 and set(prefilling) <= {name}, again)
        for name, found, again in new
        if names[name] in planned
    ]
