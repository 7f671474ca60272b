"""The results of searches, as a table and as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.scenarios import scenario
from penstock_simulator.simulation import LengthKnowledge
from penstock_simulator.simulation.disaggregated.distserve import Ratio
from rich.table import Table

from penstock_cli.capacity.confidence import wilson
from penstock_cli.capacity.question import Question, SearchConditions
from penstock_cli.capacity.search import CapacityResult
from penstock_cli.capacity.setting import ORACLE, PolicySetting, grid_of
from penstock_cli.replay.report import aligned, number

HEADS = (
    "scenario",
    "policy",
    "capacity\nreq/s a replica",
    "not at\nreq/s",
    "attained there\n%",
    "promoted\n%",
    "95 % CI\n%",
    "of the best\n%",
    "tuned to",
)

OF_PREFIX_CACHES = ("cached_share", "admitted_attainment", "imbalance")
"""Fields of a result that are set only with prefix caches."""


def capacity_rps(answer: CapacityResult) -> float:
    """Return the highest rate that attains; for the bound, the lowest rate at which no policy attains."""
    return answer.high_rps if answer.question.policy == ORACLE else answer.low_rps


def as_json(answers: Sequence[CapacityResult]) -> list[dict[str, Any]]:
    """Return an object for each question, in their order."""
    return [_as_json(answer) for answer in answers]


def _as_json(answer: CapacityResult) -> dict[str, Any]:
    conditions = answer.question.conditions
    interval = wilson(answer.requests - answer.missed, answer.requests)
    return {
        "scenario": answer.question.scenario,
        "policy": answer.question.policy,
        "replicas": conditions.replicas,
        "attainment_target": conditions.attainment,
        "capacity_rps_per_replica": capacity_rps(answer),
        "bracket_rps": [answer.low_rps, answer.high_rps],
        "attainment": _attained(answer),
        "attained_promoted": _promoted(answer),
        "attainment_95": [round(interval.low, 4), round(interval.high, 4)] if answer.low_rps > 0 else None,
        "requests": answer.requests,
        "seeds": conditions.seeds,
        "lengths": conditions.lengths.value,
        "truth": conditions.truth.value,
        "order": conditions.order,
        "batch_tokens": answer.setting.batch_tokens,
        "drafts": answer.setting.drafts,
        **({"prefill_decode_ratio": str(answer.setting.ratio)} if answer.setting.ratio else {}),
        **({"block_tokens": conditions.block_tokens} if conditions.block_tokens else {}),
        **({"sessions": conditions.sessions} if conditions.sessions else {}),
        **_cached(answer),
        **({"slots": answer.setting.slots} if answer.setting.slots else {}),
    }


def _cached(answer: CapacityResult) -> dict[str, float]:
    """Return the fields that are set only with prefix caches."""
    figures = {name: getattr(answer, name) for name in OF_PREFIX_CACHES}
    return {name: round(figure, 4) for name, figure in figures.items() if figure is not None}


def answer_of(row: Mapping[str, Any]) -> CapacityResult:
    """Return the answer that a row of that JSON describes. Raises KeyError, ValueError."""
    split = row.get("prefill_decode_ratio")
    conditions = SearchConditions(
        row["replicas"],
        row["attainment_target"],
        LengthKnowledge(row["lengths"]),
        TruthKind(row["truth"]),
        row["seeds"],
        row["order"],
        row.get("block_tokens"),
        row.get("sessions"),
    )
    ratio = None if split is None else Ratio(*[int(part) for part in split.split(":")])
    setting = PolicySetting(row["batch_tokens"], row["drafts"], ratio, row.get("slots"))
    missed = round(row["requests"] * (1 - (1.0 if row["attainment"] is None else row["attainment"])))
    share = row.get("attained_promoted")
    promoted = None if share is None else round(row["requests"] * share)
    question = Question(row["scenario"], row["policy"], conditions)
    low_rps, high_rps = row["bracket_rps"]
    figures = {name: row.get(name) for name in OF_PREFIX_CACHES}
    return CapacityResult(question, setting, low_rps, high_rps, row["requests"], missed, promoted, **figures)


def _attained(answer: CapacityResult) -> float | None:
    return round(1 - answer.missed / answer.requests, 4) if answer.low_rps > 0 else None


def _promoted(answer: CapacityResult) -> float | None:
    """Return the share of all requests that were answered "best effort" first and met every target."""
    if answer.promoted is None or answer.low_rps == 0:
        return None
    return round(answer.promoted / answer.requests, 4)


def table(answers: Sequence[CapacityResult], conditions: SearchConditions) -> Table:
    """Return a table with a line for each answer; within a scenario the highest capacity is first."""
    scenarios = list(dict.fromkeys(answer.question.scenario for answer in answers))
    groups = [[a for a in answers if a.question.scenario == name] for name in scenarios]
    lines = [
        _cells(answer, _best_rps(group))
        for group in groups
        for answer in sorted(group, key=capacity_rps, reverse=True)
    ]
    replicas = f"{conditions.replicas} replica{'s' if conditions.replicas > 1 else ''}"
    share = number(conditions.attainment, 100, 0)
    title = (
        f"Highest rates at which {share} % of requests meet every target: {replicas}, "
        f"{conditions.lengths.value} lengths, {conditions.truth.value} timing"
    )
    return aligned(title, HEADS, lines, left=2)


def _best_rps(answers: Sequence[CapacityResult]) -> float:
    """Return the highest capacity of a policy; of the bound if there is no policy."""
    policies = [answer for answer in answers if answer.question.policy != ORACLE]
    return max(capacity_rps(answer) for answer in policies or answers)


def _cells(answer: CapacityResult, best_rps: float) -> list[str]:
    question, rate_rps = answer.question, capacity_rps(answer)
    interval = wilson(answer.requests - answer.missed, answer.requests)
    attained = [
        number(_attained(answer), 100, 1),
        number(_promoted(answer), 100, 1),
        f"{100 * interval.low:.1f}–{100 * interval.high:.1f}",
    ]
    tuned = not grid_of(question.policy, scenario(question.scenario)).single
    return [
        question.scenario,
        question.policy,
        number(rate_rps, 1, 3),
        number(answer.high_rps, 1, 3),
        *(attained if answer.low_rps > 0 else ["–", "–", "–"]),
        number(rate_rps / best_rps if best_rps > 0 else None, 100, 0),
        str(answer.setting) if tuned else "–",
    ]


def summary_line(conditions: SearchConditions) -> str:
    """Return a line that explains the table's figures."""
    samples = f"{conditions.seeds} sample{'s' if conditions.seeds > 1 else ''}"
    return (
        f"Each capacity was confirmed by complete runs of {samples} of its scenario. The rate beside it, at "
        "most 2 % higher, does not attain. The interval assumes independent requests; bursts widen it."
    )
