"""A simulated engine whose port routers reach gives an SLO to a sidecar's tickets only, as vLLM does."""

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from penstock_core.domain.request import Job
from penstock_core.domain.ticket import TICKET, EngineTicket, sealed

RealTime = Callable[..., AbstractAsyncContextManager[Any]]
KEY = b"k" * 32
FIELDS: dict[str, Any] = {"penstock_id": "r-1", "penstock_tier": "chat", "penstock_best_effort": False}


def ticket(id: str = "r-1") -> dict[str, Any]:
    return {TICKET: sealed(EngineTicket(FIELDS | {"penstock_id": id}, time.monotonic()), KEY)}


async def served(engine: Any, xargs: dict[str, Any], request_id: str = "x") -> tuple[str, bool]:
    """Return the id of the engine's job of a request, and whether it is best effort."""
    submitted: list[Job] = []
    submit = type(engine.loop).submit.__get__(engine.loop)

    def noting(job: Job, *rest: Any, **more: Any) -> Any:
        submitted.append(job)
        return submit(job, *rest, **more)

    engine.loop.submit = noting
    await engine.client.completions.create(
        model="tiny",
        prompt=[1, 2, 3],
        max_tokens=2,
        extra_body={"ignore_eos": True, "vllm_xargs": xargs},
        extra_headers={"x-request-id": request_id},
    )
    (job,) = submitted
    return job.request.id, job.best_effort


async def test_a_ticket_has_its_requests_slo(real_time: RealTime) -> None:
    async with real_time(ticket_key=KEY) as engine:
        assert await served(engine, ticket()) == ("r-1", False)


async def test_a_ticket_counts_once_if_a_client_repeats_its_request_id(real_time: RealTime) -> None:
    async with real_time(ticket_key=KEY) as engine:
        once = ticket()
        await served(engine, once)
        assert await served(engine, once) == ("cmpl-x", True)


async def test_fields_without_a_ticket_are_ignored(real_time: RealTime) -> None:
    async with real_time(ticket_key=KEY) as engine:
        assert await served(engine, FIELDS) == ("cmpl-x", True)
        assert await served(engine, FIELDS | {TICKET: "forged"}) == ("cmpl-x", True)


async def test_without_required_tickets_fields_count(real_time: RealTime) -> None:
    async with real_time() as engine:
        assert await served(engine, FIELDS) == ("r-1", False)
