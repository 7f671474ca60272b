"""The results as a page and as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock_core.domain.slo import Tier

from gpu.journal import Report
from gpu.search import Bracket
from gpu.ways import ServingWay, slo_document

HEADS = (
    "scenario",
    "way",
    "capacity, requests/s",
    "not at",
    "attained there %",
    "TTFT p99, ms",
    "TPOT p99, ms",
)


class SearchResult(NamedTuple):
    """The result of one search. finished: whether it ended before the time was up."""

    scenario: str
    way: ServingWay
    bracket: Bracket
    finished: bool
    trials: Mapping[float, Report]


def best_plain(found: Sequence[SearchResult], scenario: str) -> SearchResult | None:
    """Return the result of vLLM's best token budget."""
    plain = [one for one in found if one.scenario == scenario and one.way.policy is None]
    return max(plain, key=lambda one: one.bracket.low_rps, default=None)


def line(one: SearchResult) -> str:
    low_rps, high_rps = one.bracket
    at = one.trials.get(low_rps)
    missed = f"{high_rps:g}" if high_rps else "–"
    cells = [one.scenario, one.way.name, f"{low_rps:g}" if low_rps else f"below {missed}"]
    cells.append(missed + ("" if one.finished else ", time was up"))
    cells += ["–", "–", "–"] if at is None else [f"{100 * at['attainment']:.1f}", *worst(at)]
    return f"| {' | '.join(cells)} |"


def worst(report: Report) -> list[str]:
    """Return the worst 99th percentiles of a report's tiers."""
    tails = []
    for name in ("ttft_p99_s", "tpot_p99_s"):
        seconds = [tier[name] for tier in report["tiers"].values() if tier[name] is not None]
        tails.append(f"{1e3 * max(seconds):.0f}" if seconds else "–")
    return tails


def ratios(found: Sequence[SearchResult]) -> list[str]:
    """Return lines with the ratio of Penstock's capacity to vLLM's best."""
    lines = []
    for one in found:
        plain = best_plain(found, one.scenario)
        if one.way.policy and plain is not None and plain.bracket.low_rps and one.bracket.low_rps:
            times = one.bracket.low_rps / plain.bracket.low_rps
            lines.append(f"{one.scenario}: {one.way.name} carries {times:.2f} times {plain.way.name}.")
    return lines


def as_page(head: str, tiers: Mapping[str, Tier], found: Sequence[SearchResult]) -> str:
    targets = "; ".join(f"{name}: {_slo(tier)}" for name, tier in tiers.items())
    rule = "|---|---|" + "--:|" * (len(HEADS) - 2)
    table = [f"| {' | '.join(HEADS)} |", rule, *map(line, found)]
    attained = ["Attained share of all requests, %, at each rate tried:", "", *by_rate(found)]
    return "\n".join([head, "", f"Targets: {targets}.", "", *table, "", *ratios(found), "", *attained, ""])


def by_rate(found: Sequence[SearchResult]) -> list[str]:
    """Return a table of attained shares by rate, and that of admitted requests where some were not."""
    tried = sorted({rate_rps for one in found for rate_rps in one.trials})
    head = " | ".join(f"{rate_rps:g}/s" for rate_rps in tried)
    lines = [f"| scenario | way | {head} |", "|---|---|" + "--:|" * len(tried)]
    for one in found:
        cells = " | ".join(_attained(one.trials.get(rate_rps)) for rate_rps in tried)
        lines.append(f"| {one.scenario} | {one.way.name} | {cells} |")
    return lines


def _attained(report: Report | None) -> str:
    if report is None:
        return "–"
    attained, admitted = report["attainment"], report["admitted_attainment"]
    return f"{100 * attained:.1f}" + (
        "" if admitted in (None, attained) else f" ({100 * admitted:.1f} of admitted)"
    )


def _slo(tier: Tier) -> str:
    reported = slo_document(tier.slo)
    ttft = reported.get("ttft")
    first = f"{ttft['slowdown']:g} times an idle engine's" if isinstance(ttft, dict) else str(ttft)
    return f"first token {first}, pace {reported.get('tpot', 'any')}"


def as_json(conditions: Mapping[str, object], found: Sequence[SearchResult]) -> dict[str, Any]:
    rows = [
        {
            "scenario": one.scenario,
            "way": one.way.name,
            "policy": one.way.policy,
            "batch_tokens": one.way.batch_tokens,
            "capacity_rps": one.bracket.low_rps,
            "failed_at_rps": one.bracket.high_rps,
            "finished": one.finished,
            "trials": [{"rate_rps": rate_rps, **report} for rate_rps, report in one.trials.items()],
        }
        for one in found
    ]
    return {"conditions": dict(conditions), "capacities": rows}
