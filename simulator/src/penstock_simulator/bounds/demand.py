"""What meeting a request's targets asks of an engine at the very least, as columns of numbers.

Everything errs to the request's ease. A stage of a session may start as soon as the stages before it could
have ended on an idle replica, and its first token is due as if they had all ended at the last moment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np
from numpy.typing import NDArray
from penstock_core.domain.slo import Judge, Slo
from penstock_core.domain.token_window import WINDOW_TOKENS
from penstock_core.timing.time_model import BatchWork, TimeModel

from penstock_simulator.arrival import Arrival
from penstock_simulator.bounds.setting import Setting

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests that carry deadlines, a row each.

    owner: number of the session that it belongs to; one that stands alone is a session.
    release_s: no token of its prompt is computed earlier. decode_from_s: nor a token of its answer.
    due_s: the first token's deadline, at the latest. end_s: the last token's; `due_s` where nobody waits for
        the rest of the answer, which then needs nothing.
    decodes: tokens after the first, 0 where they need nothing. thought: those of them before the answer.
    first_held, last_held: KV tokens, in whole blocks, when the first of them is computed and at the end.
    held_sum: the same, summed over all of them.
    pace_s, answer_pace_s: seconds per token that windows hold it to, infinite where none do.
    gap_s: longest time between two tokens.
    sessions: how many there are, and `carefree`: beside them, sessions without any deadline.
    """

    owner: Ints
    prompt: Ints
    release_s: Floats
    decode_from_s: Floats
    due_s: Floats
    end_s: Floats
    decodes: Ints
    thought: Ints
    first_held: Ints
    last_held: Ints
    held_sum: Floats
    pace_s: Floats
    answer_pace_s: Floats
    gap_s: Floats
    sessions: int
    carefree: int


@dataclass(frozen=True, slots=True)
class _Need:
    arrival: Arrival
    owner: int
    release_s: float
    due_s: float
    end_s: float
    decode_from_s: float
    decodes: int
    slo: Slo


def demand_of(arrivals: Sequence[Arrival], setting: Setting) -> Demand:
    """The demand of a workload. Raises KeyError for a tier that the setting does not have."""
    sessions: dict[str, list[Arrival]] = {}
    for number, arrival in enumerate(arrivals):
        sessions.setdefault(arrival.session or f"\0{number}", []).append(arrival)
    needs: list[_Need] = []
    owners = 0
    for stages in sessions.values():
        wanted = _needs(sorted(stages, key=lambda stage: stage.stage), owners, setting)
        needs += wanted
        owners += bool(wanted)
    return _columns(needs, owners, len(sessions) - owners, setting)


def _needs(stages: Sequence[Arrival], owner: int, setting: Setting) -> list[_Need]:
    """What the stages of a session need that have deadlines."""
    needs: list[_Need] = []
    earliest_s = latest_s = stages[0].arrival_s
    for arrival in stages:
        slo = setting.tiers[arrival.tier].slo
        idle_s = setting.model.prefill_seconds(arrival.prompt_tokens)
        due_s, end_s = _deadlines(latest_s, slo, idle_s, arrival)
        decode_from_s = earliest_s + _least_prefill_s(setting.model, arrival.prompt_tokens)
        decodes = arrival.output_tokens - 1 if isfinite(end_s) else 0
        if isfinite(due_s):
            last_s = end_s if decodes else due_s
            needs.append(_Need(arrival, owner, earliest_s, due_s, last_s, decode_from_s, decodes, slo))
        latest_s = end_s
        steps = (arrival.output_tokens - 1) / (1 + setting.most_drafts)
        earliest_s = decode_from_s + steps * setting.model.seconds(BatchWork(1))
    return needs


def _deadlines(latest_s: float, slo: Slo, idle_s: float, arrival: Arrival) -> tuple[float, float]:
    """The latest moments for the first and the last token of a request that arrives at `latest_s`."""
    targets = slo.targets(idle_s)
    e2e_s = inf if targets.e2e_s is None else targets.e2e_s
    due_s = latest_s + min(inf if targets.ttft_s is None else targets.ttft_s, e2e_s)
    after_first = arrival.output_tokens - 1
    if targets.tpot_s is None:
        return due_s, latest_s + e2e_s
    answer_pace_s = targets.tpot_s if targets.answer_tpot_s is None else targets.answer_tpot_s
    thought = min(arrival.thinking_tokens, after_first)
    between_s = max(
        answer_pace_s - targets.tpot_s, 0.0
    )  # of the two paces, the gap in between has the slower
    decoding_s = thought * targets.tpot_s + (after_first - thought) * answer_pace_s + between_s
    return due_s, min(due_s + decoding_s, latest_s + e2e_s)


def _least_prefill_s(model: TimeModel, prompt_tokens: int) -> float:
    """A prompt's time alone, whatever its chunks: attention as if none were shorter than its kernels like."""
    return model.seconds(BatchWork(prompt_tokens, 0, prompt_tokens**2 / 2))


def _columns(needs: Sequence[_Need], sessions: int, carefree: int, setting: Setting) -> Demand:
    prompt = np.array([need.arrival.prompt_tokens for need in needs], np.int64)
    decodes = np.array([need.decodes for need in needs], np.int64)
    block = setting.block_tokens
    held = [-(-np.arange(p + 1, p + d + 1) // block) * block for p, d in zip(prompt, decodes, strict=True)]
    paces = [_paces(need.slo) for need in needs]
    return Demand(
        owner=np.array([need.owner for need in needs], np.int64),
        prompt=prompt,
        release_s=np.array([need.release_s for need in needs]),
        decode_from_s=np.array([need.decode_from_s for need in needs]),
        due_s=np.array([need.due_s for need in needs]),
        end_s=np.array([need.end_s for need in needs]),
        decodes=decodes,
        thought=np.array([_thought(need) for need in needs], np.int64),
        first_held=-(-(prompt + 1) // block) * block,
        last_held=-(-(prompt + decodes + 1) // block) * block,
        held_sum=np.array([float(row.sum()) for row in held]),
        pace_s=np.array([pace for pace, _ in paces]),
        answer_pace_s=np.array([pace for _, pace in paces]),
        gap_s=np.array([_longest_gap_s(need) for need in needs]),
        sessions=sessions,
        carefree=carefree,
    )


def _thought(need: _Need) -> int:
    if need.slo.answer_tpot_s is None:
        return need.decodes
    return min(need.arrival.thinking_tokens, need.decodes)


def _paces(slo: Slo) -> tuple[float, float]:
    """Seconds per token that every ten tokens are held to, of thought and of answer."""
    if slo.judge is Judge.MEAN or slo.tpot_s is None:
        return inf, inf
    return slo.tpot_s, slo.tpot_s if slo.answer_tpot_s is None else slo.answer_tpot_s


def _longest_gap_s(need: _Need) -> float:
    slow_s = max(_paces(need.slo))
    whole_s = need.end_s - need.release_s
    return min(whole_s, slow_s * (1 if need.slo.judge is Judge.MAX else WINDOW_TOKENS))
