"""More load than two replicas can serve: admission, hops, best effort and rejection.

The load is that of bench/unmodified: chats and summaries of long texts, with random arrivals. Requests are
judged by the client's clock, and the router's counters must agree on every verdict.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence

from pool_on_cluster.waiting import until
from unmodified.load import MeasuredOutcome, arrivals, open_loop
from unmodified_engines import met

from pool_on_vllm import pools
from pool_on_vllm.context import VllmContext
from pool_on_vllm.metrics_page import by_label, total
from pool_on_vllm.processes import MODEL, Router, router_of

REQUESTS = "penstock_router_requests_total"
SECONDS, SEED = 12.0, 7
LOAD = 3.0
"""Multiple of one engine's capacity. The two engines share this machine's cores, so this exceeds both."""
MIN_ATTAINMENT, MAX_ATTAINMENT = 0.7, 0.9
"""Bounds of the required attainment of admitted requests. It is 1 minus twice the time model's mean error:
admission relies on the time model, which cannot predict other load on the same cores."""


def hops_then_best_effort(context: VllmContext) -> str:
    """Overload: a rejected request hops to the next replica, then is served best effort"""
    outcomes, counted, off = _under_load(context, context.pool.router)
    best_effort = [one for one in outcomes if verdict(one) == "best-effort"]
    output = f"{_check_admitted(context, outcomes, off, 'best-effort')}, {len(best_effort)} as best effort"
    assert {one.status for one in outcomes} <= {200, 429}, (
        f"{Counter(one.status for one in outcomes)}: {output}"
    )
    assert best_effort, f"no request was served best effort: {output}"
    _check_counters(outcomes, counted)
    return output


def hops_then_429(context: VllmContext) -> str:
    """Overload with `backup: reject`: a request rejected by all replicas is answered 429 with Retry-After"""
    with router_of(
        context.replicas, pools.large_memory(context, backup="reject"), context.file("router-reject.log")
    ) as router:
        outcomes, counted, off = _under_load(context, router)
    rejected = [one for one in outcomes if one.status == 429]
    output = f"{_check_admitted(context, outcomes, off, 'reject')}, {len(rejected)} answered 429"
    assert {one.status for one in outcomes} == {200, 429}, (
        f"{Counter(one.status for one in outcomes)}: {output}"
    )
    for one in rejected:
        reported = one.headers.get("retry-after", "")
        assert reported.isdigit() or one.headers.get("x-should-retry") == "false", dict(one.headers)
    _check_counters(outcomes, counted)
    waits = [int(one.headers["retry-after"]) for one in rejected if "retry-after" in one.headers]
    return f"{output}, Retry-After {min(waits)} to {max(waits)} s" if waits else output


def _under_load(context: VllmContext, router: Router) -> tuple[list[MeasuredOutcome], Counter[str], float]:
    """Run the load. Returns clients' records, the router's counts by verdict, and the time model's error."""
    planned = arrivals(LOAD * context.capacity_rps, SECONDS, SEED)
    before = by_label(router.admin_url, REQUESTS, "verdict")
    off_before, iterations = _time_model_errors(context)
    outcomes = asyncio.run(open_loop(router.url, MODEL, planned))
    enough = sum(before.values()) + len(outcomes)
    until(
        lambda: sum(by_label(router.admin_url, REQUESTS, "verdict").values()) >= enough,
        "the router has counted all requests",
    )
    off, iterations_after = _time_model_errors(context)
    mean_off = (off - off_before) / (iterations_after - iterations)
    return outcomes, by_label(router.admin_url, REQUESTS, "verdict") - before, mean_off


def _time_model_errors(context: VllmContext) -> tuple[float, float]:
    """Return the sum of the time model's relative errors, and the number of iterations."""
    error = "penstock_replica_time_model_error_ratio"
    each = [
        (total(one.metrics, f"{error}_sum"), total(one.metrics, f"{error}_count")) for one in context.replicas
    ]
    return sum(off for off, _ in each), sum(count for _, count in each)


def _check_admitted(
    context: VllmContext, outcomes: Sequence[MeasuredOutcome], off: float, backup: str
) -> str:
    """Check the admitted requests and summarize them: their number, hops and attainment."""
    bound = required_attainment(off)
    admitted = [one for one in outcomes if verdict(one) == "admitted"]
    hopped = [one for one in admitted if one.headers["x-penstock-hops"] != "1"]
    attained = [one for one in admitted if met(one, context.targets)]
    share = len(attained) / max(len(admitted), 1)
    context.figures[f"overload, {backup}"] = {
        "requests": len(outcomes),
        "admitted": len(admitted),
        "hopped": len(hopped),
        "attained": len(attained),
        "iterations_off": round(off, 3),
    }
    output = (
        f"of {len(outcomes)} requests {len(admitted)} admitted, {len(hopped)} of them by the second replica, "
        f"{share:.0%} met all targets (required {bound:.0%}: the time model was off by {off:.0%})"
    )
    assert hopped, f"no request was admitted by the second replica: {output}"
    assert share >= bound, output
    return output


def required_attainment(off: float) -> float:
    """Return the required attainment of admitted requests. off: the time model's mean error."""
    return min(max(1 - 2 * off, MIN_ATTAINMENT), MAX_ATTAINMENT)


def _check_counters(outcomes: Sequence[MeasuredOutcome], counted: Counter[str]) -> None:
    """Check that the router's counters agree with the headers that clients received."""
    reported = Counter(verdict(one) for one in outcomes)
    assert reported == counted, f"clients received {dict(reported)}, the router counted {dict(counted)}"


def verdict(outcome: MeasuredOutcome) -> str:
    """Return the verdict, named as in the router's counters."""
    return "rejected" if outcome.status == 429 else outcome.headers.get("x-penstock-verdict", "none")
