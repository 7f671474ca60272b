"""More than two replicas can do: who is admitted, where, and what becomes of the others.

The load is that of bench/unmodified: chats, and summaries of long texts, at random moments. Everybody counts,
by the client's own clock; the router's counters have to say the same of each verdict.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence

from story.waiting import until
from unmodified.load import Seen, arrivals, open_loop
from unmodified_engines import met

from vllm_story import pools
from vllm_story.figures import by_label
from vllm_story.servers import MODEL, router_of
from vllm_story.world import World

REQUESTS = "penstock_router_requests_total"
SECONDS, SEED = 12.0, 7
LOAD = 3.0
"""In times of what one engine answers: two of them share this machine's cores, so that it is enough."""
KEPT = 0.7
"""Of the admitted, who have to keep all targets. A quiet machine keeps nearly all; where others use the same
cores, an iteration may take several times as long as any model can know."""


def walks_on_then_best_effort(world: World) -> str:
    """Overload: who does not fit walks on, then is served without a promise"""
    seen, counted = _under_load(world, world.up.url)
    best_effort = [one for one in seen if verdict(one) == "best-effort"]
    said = f"{_said(world, seen, 'best-effort')}, {len(best_effort)} as best effort"
    assert {one.status for one in seen} == {200}, f"{Counter(one.status for one in seen)}: {said}"
    assert best_effort, f"nobody was served as best effort: {said}"
    _as_counted(seen, counted)
    return said


def walks_on_then_429(world: World) -> str:
    """Overload where the pool says reject: who fits nowhere is told when to come back"""
    with router_of(
        world.replicas, pools.roomy(world, backup="reject"), world.file("router-reject.log")
    ) as url:
        seen, counted = _under_load(world, url)
    refused = [one for one in seen if one.status == 429]
    said = f"{_said(world, seen, 'reject')}, {len(refused)} answered 429"
    assert {one.status for one in seen} == {200, 429}, f"{Counter(one.status for one in seen)}: {said}"
    for one in refused:
        told = one.headers.get("retry-after", "")
        assert told.isdigit() or one.headers.get("x-should-retry") == "false", dict(one.headers)
    _as_counted(seen, counted)
    waits = [int(one.headers["retry-after"]) for one in refused if "retry-after" in one.headers]
    return f"{said}, Retry-After {min(waits)} to {max(waits)} s" if waits else said


def _under_load(world: World, url: str) -> tuple[list[Seen], Counter[str]]:
    """What clients saw, and the requests that the router counted meanwhile by verdict."""
    planned = arrivals(LOAD * world.capacity_rps, SECONDS, SEED)
    before = by_label(url, REQUESTS, "verdict")
    seen = asyncio.run(open_loop(url, MODEL, planned))
    enough = sum(before.values()) + len(seen)
    until(lambda: sum(by_label(url, REQUESTS, "verdict").values()) >= enough, "all requests counted")
    return seen, by_label(url, REQUESTS, "verdict") - before


def _said(world: World, seen: Sequence[Seen], backup: str) -> str:
    """Who was admitted, who of them only by the second replica, and whether they got what was promised."""
    admitted = [one for one in seen if verdict(one) == "admitted"]
    walked = [one for one in admitted if one.headers["x-penstock-hops"] != "1"]
    kept = [one for one in admitted if met(one, world.targets)]
    share = len(kept) / max(len(admitted), 1)
    world.figures[f"overload, {backup}"] = {
        "requests": len(seen),
        "admitted": len(admitted),
        "walked": len(walked),
        "kept": len(kept),
    }
    said = (
        f"of {len(seen)} requests {len(admitted)} admitted, {len(walked)} of them by the second replica "
        f"asked, {share:.0%} of them kept all targets (bound {KEPT:.0%})"
    )
    assert walked, f"nobody was taken by the next replica: {said}"
    assert share >= KEPT, said
    return said


def _as_counted(seen: Sequence[Seen], counted: Counter[str]) -> None:
    """The router's counters say what the clients' headers said."""
    told = Counter(verdict(one) for one in seen)
    assert told == counted, f"clients saw {dict(told)}, the router counted {dict(counted)}"


def verdict(seen: Seen) -> str:
    """As the router's counters call it."""
    return "rejected" if seen.status == 429 else seen.headers.get("x-penstock-verdict", "none")
