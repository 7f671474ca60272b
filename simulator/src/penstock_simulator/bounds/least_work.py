"""The least work that meeting each request's targets needs, as columns of numbers.

All simplifications reduce the work, so that the bound stays valid. A stage of a session may start as soon as
the stages before it could have ended on an idle replica, and its deadlines assume that they ended at their
latest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np
from penstock_core.compilation.arrays import Floats, Ints
from penstock_core.domain.slo import Judge, Slo
from penstock_core.domain.token_window import WINDOW_TOKENS
from penstock_core.timing.time_model import BatchWork, TimeModel

from penstock_simulator.arrival import Arrival
from penstock_simulator.bounds.bound_setting import BoundSetting


@dataclass(frozen=True, slots=True)
class LeastWork:
    """Requests with deadlines, one per row.

    owner: index of its session; a single request is a session of its own.
    release_s: earliest time of its prefill. decode_from_s: earliest time of its decodes.
    due_s: deadline of the first token. end_s: deadline of the last token; `due_s` if there is none, and then
        the rest of the answer counts as no work.
    decodes: tokens after the first that count as work. thinking: how many of them are thinking tokens.
    first_held, last_held: KV tokens, in whole blocks, at the first decode and at the end.
    held_sum: KV tokens held, summed over all decodes.
    tpot_s, answer_tpot_s: TPOT targets of windows, for thinking and answer; infinite without such a target.
    gap_s: longest allowed time between two tokens.
    sessions: number of sessions. unconstrained_sessions: number of further sessions without any deadline.
    """

    owner: Ints
    prompt: Ints
    release_s: Floats
    decode_from_s: Floats
    due_s: Floats
    end_s: Floats
    decodes: Ints
    thinking: Ints
    first_held: Ints
    last_held: Ints
    held_sum: Floats
    tpot_s: Floats
    answer_tpot_s: Floats
    gap_s: Floats
    sessions: int
    unconstrained_sessions: int


@dataclass(frozen=True, slots=True)
class _RequestWork:
    arrival: Arrival
    owner: int
    release_s: float
    due_s: float
    end_s: float
    decode_from_s: float
    decodes: int
    slo: Slo


def least_work(arrivals: Sequence[Arrival], setting: BoundSetting) -> LeastWork:
    """Return the least work of a workload. Raises KeyError for a tier that the setting does not have."""
    sessions: dict[str, list[Arrival]] = {}
    for number, arrival in enumerate(arrivals):
        sessions.setdefault(arrival.session or f"\0{number}", []).append(arrival)
    needs: list[_RequestWork] = []
    owners = 0
    for stages in sessions.values():
        wanted = _needs(sorted(stages, key=lambda stage: stage.stage), owners, setting)
        needs += wanted
        owners += bool(wanted)
    return _columns(needs, owners, len(sessions) - owners, setting)


def _needs(stages: Sequence[Arrival], owner: int, setting: BoundSetting) -> list[_RequestWork]:
    """Return the work of a session's stages that have deadlines."""
    needs: list[_RequestWork] = []
    earliest_s = latest_s = stages[0].arrival_s
    for arrival in stages:
        slo = setting.tiers[arrival.tier].slo
        idle_s = setting.model.prefill_seconds(arrival.prompt_tokens)
        due_s, end_s = _deadlines(latest_s, slo, idle_s, arrival)
        decode_from_s = earliest_s + _least_prefill_s(setting.model, arrival.prompt_tokens)
        decodes = arrival.output_tokens - 1 if isfinite(end_s) else 0
        if isfinite(due_s):
            last_s = end_s if decodes else due_s
            needs.append(_RequestWork(arrival, owner, earliest_s, due_s, last_s, decode_from_s, decodes, slo))
        latest_s = end_s
        steps = (arrival.output_tokens - 1) / (1 + setting.most_drafts)
        earliest_s = decode_from_s + steps * setting.model.seconds(BatchWork(1))
    return needs


def _deadlines(latest_s: float, slo: Slo, idle_s: float, arrival: Arrival) -> tuple[float, float]:
    """Return the deadlines of the first and last token of a request that arrives at `latest_s`."""
    targets = slo.targets(idle_s)
    e2e_s = inf if targets.e2e_s is None else targets.e2e_s
    due_s = latest_s + min(inf if targets.ttft_s is None else targets.ttft_s, e2e_s)
    after_first = arrival.output_tokens - 1
    if targets.tpot_s is None:
        return due_s, latest_s + e2e_s
    answer_tpot_s = targets.tpot_s if targets.answer_tpot_s is None else targets.answer_tpot_s
    thinking = min(arrival.thinking_tokens, after_first)
    # The gap between thinking and answer may take the longer of the two targets.
    between_s = max(answer_tpot_s - targets.tpot_s, 0.0)
    decoding_s = thinking * targets.tpot_s + (after_first - thinking) * answer_tpot_s + between_s
    return due_s, min(due_s + decoding_s, latest_s + e2e_s)


def _least_prefill_s(model: TimeModel, prompt_tokens: int) -> float:
    """Return a lower bound on the prefill time of a prompt over all ways to chunk it."""
    return model.seconds(BatchWork(prompt_tokens, 0, prompt_tokens**2 / 2))


def _columns(
    needs: Sequence[_RequestWork], sessions: int, unconstrained_sessions: int, setting: BoundSetting
) -> LeastWork:
    prompt = np.array([need.arrival.prompt_tokens for need in needs], np.int64)
    decodes = np.array([need.decodes for need in needs], np.int64)
    block = setting.block_tokens
    held = [-(-np.arange(p + 1, p + d + 1) // block) * block for p, d in zip(prompt, decodes, strict=True)]
    tpots = [_window_tpots(need.slo) for need in needs]
    return LeastWork(
        owner=np.array([need.owner for need in needs], np.int64),
        prompt=prompt,
        release_s=np.array([need.release_s for need in needs]),
        decode_from_s=np.array([need.decode_from_s for need in needs]),
        due_s=np.array([need.due_s for need in needs]),
        end_s=np.array([need.end_s for need in needs]),
        decodes=decodes,
        thinking=np.array([_thinking(need) for need in needs], np.int64),
        first_held=-(-(prompt + 1) // block) * block,
        last_held=-(-(prompt + decodes + 1) // block) * block,
        held_sum=np.array([float(row.sum()) for row in held]),
        tpot_s=np.array([tpot for tpot, _ in tpots]),
        answer_tpot_s=np.array([tpot for _, tpot in tpots]),
        gap_s=np.array([_longest_gap_s(need) for need in needs]),
        sessions=sessions,
        unconstrained_sessions=unconstrained_sessions,
    )


def _thinking(need: _RequestWork) -> int:
    if need.slo.answer_tpot_s is None:
        return need.decodes
    return min(need.arrival.thinking_tokens, need.decodes)


def _window_tpots(slo: Slo) -> tuple[float, float]:
    """Return the TPOT targets of windows for thinking and answer, infinite without such targets."""
    if slo.judge is Judge.MEAN or slo.tpot_s is None:
        return inf, inf
    return slo.tpot_s, slo.tpot_s if slo.answer_tpot_s is None else slo.answer_tpot_s


def _longest_gap_s(need: _RequestWork) -> float:
    slow_s = max(_window_tpots(need.slo))
    whole_s = need.end_s - need.release_s
    return min(whole_s, slow_s * (1 if need.slo.judge is Judge.MAX else WINDOW_TOKENS))
