"""More load than two replicas can serve: admission, hops, and the rest.

The load is that of bench/unmodified: chats, and summaries of long texts, at random times. All requests count,
by the client's own clock; the router's counters have to agree on every verdict.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence

from pool_on_cluster.waiting import until
from unmodified.load import Seen, arrivals, open_loop
from unmodified_engines import met

from pool_on_vllm import pools
from pool_on_vllm.figures import by_label, total
from pool_on_vllm.servers import MODEL, Router, router_of
from pool_on_vllm.world import World

REQUESTS = "penstock_router_requests_total"
SECONDS, SEED = 12.0, 7
LOAD = 3.0
"""In times of what one engine answers: two of them share this machine's cores, so that it is enough."""
LEAST_KEPT, MOST_KEPT = 0.3, 0.9
"""Of the admitted, who have to keep all targets: all but twice the share by which iterations were off the
time model in the mean, within these bounds. An admission is as good as the time model that it rests on, and
no model knows when others use the same cores."""


def walks_on_then_best_effort(world: World) -> str:
    """Overload: a rejected request hops to the next replica, then is served best effort"""
    seen, counted, off = _under_load(world, world.up.router)
    best_effort = [one for one in seen if verdict(one) == "best-effort"]
    output = f"{_said(world, seen, off, 'best-effort')}, {len(best_effort)} as best effort"
    assert {one.status for one in seen} <= {200, 429}, f"{Counter(one.status for one in seen)}: {output}"
    assert best_effort, f"no request was served best effort: {output}"
    _as_counted(seen, counted)
    return output


def walks_on_then_429(world: World) -> str:
    """Overload with `backup: reject`: a request rejected by all replicas is answered 429 with Retry-After"""
    with router_of(
        world.replicas, pools.roomy(world, backup="reject"), world.file("router-reject.log")
    ) as router:
        seen, counted, off = _under_load(world, router)
    refused = [one for one in seen if one.status == 429]
    output = f"{_said(world, seen, off, 'reject')}, {len(refused)} answered 429"
    assert {one.status for one in seen} == {200, 429}, f"{Counter(one.status for one in seen)}: {output}"
    for one in refused:
        reported = one.headers.get("retry-after", "")
        assert reported.isdigit() or one.headers.get("x-should-retry") == "false", dict(one.headers)
    _as_counted(seen, counted)
    waits = [int(one.headers["retry-after"]) for one in refused if "retry-after" in one.headers]
    return f"{output}, Retry-After {min(waits)} to {max(waits)} s" if waits else output


def _under_load(world: World, router: Router) -> tuple[list[Seen], Counter[str], float]:
    """What clients saw, the requests that the router counted by verdict, and how far iterations were off."""
    planned = arrivals(LOAD * world.capacity_rps, SECONDS, SEED)
    before, off_before, iterations = by_label(router.admin_url, REQUESTS, "verdict"), *_off(world)
    seen = asyncio.run(open_loop(router.url, MODEL, planned))
    enough = sum(before.values()) + len(seen)
    until(
        lambda: sum(by_label(router.admin_url, REQUESTS, "verdict").values()) >= enough,
        "all requests counted",
    )
    off, iterations_after = _off(world)
    mean_off = (off - off_before) / (iterations_after - iterations)
    return seen, by_label(router.admin_url, REQUESTS, "verdict") - before, mean_off


def _off(world: World) -> tuple[float, float]:
    """The sum of how far iterations were off the time model, and how many there were."""
    error = "penstock_replica_time_model_error_ratio"
    each = [
        (total(one.metrics, f"{error}_sum"), total(one.metrics, f"{error}_count")) for one in world.replicas
    ]
    return sum(off for off, _ in each), sum(count for _, count in each)


def _said(world: World, seen: Sequence[Seen], off: float, backup: str) -> str:
    """Which requests were admitted, which of them by the second replica, and which met their SLO."""
    bound = bound_of(off)
    admitted = [one for one in seen if verdict(one) == "admitted"]
    walked = [one for one in admitted if one.headers["x-penstock-hops"] != "1"]
    kept = [one for one in admitted if met(one, world.targets)]
    share = len(kept) / max(len(admitted), 1)
    world.figures[f"overload, {backup}"] = {
        "requests": len(seen),
        "admitted": len(admitted),
        "walked": len(walked),
        "kept": len(kept),
        "iterations_off": round(off, 3),
    }
    output = (
        f"of {len(seen)} requests {len(admitted)} admitted, {len(walked)} of them by the second replica "
        f"asked, {share:.0%} of them kept all targets (bound {bound:.0%}: iterations were {off:.0%} off)"
    )
    assert walked, f"no request was admitted by the next replica: {output}"
    assert share >= bound, output
    return output


def bound_of(off: float) -> float:
    """Which share of the admitted has to keep all targets where iterations were so far off the time model."""
    return min(max(1 - 2 * off, LEAST_KEPT), MOST_KEPT)


def _as_counted(seen: Sequence[Seen], counted: Counter[str]) -> None:
    """The router's counters say what the clients' headers said."""
    reported = Counter(verdict(one) for one in seen)
    assert reported == counted, f"clients saw {dict(reported)}, the router counted {dict(counted)}"


def verdict(seen: Seen) -> str:
    """As the router's counters call it."""
    return "rejected" if seen.status == 429 else seen.headers.get("x-penstock-verdict", "none")
