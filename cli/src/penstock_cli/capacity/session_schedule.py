"""When the turns of closed-loop sessions have to be answered, so that a pool counts as keeping up.

A turn is sent only when the previous one was answered. So a pool that lets some turns wait for minutes gets
fewer requests, and the others are in time: counted separately, enough turns meet their SLO at any rate of
starts. The SLOs of its turns together give a session an end, the one that it has if every turn takes as long
as its own SLO allows and the think times pass between them. A turn that ends later than that is not in time,
however fast it was itself.

A session that is behind may catch up, since turns are mostly faster than their SLO requires.
"""

from collections.abc import Iterable, Mapping
from math import inf

from penstock_core.domain.judgement import exceeds
from penstock_core.domain.slo import Tier
from penstock_core.timing.time_model import TimeModel
from penstock_simulator.arrival import Arrival
from penstock_simulator.simulation import SimulatedOutcome


def latest_ends_s(
    sample: Iterable[Arrival], tiers: Mapping[str, Tier], default_tier: str, model: TimeModel
) -> dict[str, float]:
    """Return the latest end of each turn in a closed loop, by its id. Turns of a session are in order."""
    latest_s: dict[str, float] = {}
    session_s: dict[str, float] = {}
    for turn in sample:
        if turn.think_s is None:
            continue
        begins_s = session_s.get(turn.session, turn.arrival_s) + turn.think_s
        allowed_s = _allowed_s(turn, tiers[turn.tier or default_tier], model)
        session_s[turn.session] = latest_s[turn.id] = begins_s + allowed_s
    return latest_s


def is_behind(outcome: SimulatedOutcome, latest_s: Mapping[str, float]) -> bool:
    """Return whether a request that was served ended later than its session allows."""
    if outcome.e2e_s is None:
        return False
    return exceeds(outcome.arrival_s + outcome.e2e_s, latest_s.get(outcome.id))


def _allowed_s(turn: Arrival, tier: Tier, model: TimeModel) -> float:
    """Return the longest time from a turn's arrival to its last token that its SLO allows."""
    targets = tier.slo.targets(model.prefill_seconds(turn.prompt_tokens))
    e2e_s = inf if targets.e2e_s is None else targets.e2e_s
    if targets.ttft_s is None or targets.tpot_s is None:
        return e2e_s
    first_stage = turn.thinking_tokens if targets.answer_tpot_s else turn.output_tokens
    decodes_s = targets.tpot_s * max(first_stage - 1, 0)
    decodes_s += (targets.answer_tpot_s or 0.0) * (turn.output_tokens - max(first_stage, 1))
    return min(e2e_s, targets.ttft_s + decodes_s)
