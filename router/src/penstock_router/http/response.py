"""Answers a placed request, and releases its resources at the replica."""

from penstock_routing.request.outcome import Outcome
from penstock_routing.response.answer import answer_headers, write_answer
from penstock_routing.response.client_scope import ClientScope

from penstock_router.http.intake import Accepted
from penstock_router.moving.movable_answer import Mover
from penstock_router.routing.placement import Placed


async def respond(
    accepted: Accepted, placed: Placed, outcome: Outcome, client: ClientScope, mover: Mover
) -> None:
    """Write the answer, and record its times and its end in `outcome`."""
    request, replica = accepted.request, placed.link.name
    headers = [*answer_headers(request.id, outcome, replica), *accepted.admission.headers]
    if request.movable:
        answer = mover.follow(request, placed, outcome, client.http.break_slow)
        try:
            await write_answer(answer, replica, outcome, client, headers)
        finally:
            answer.close()
        return
    try:
        await write_answer(placed.upstream, replica, outcome, client, headers)
    finally:
        placed.link.abandon(placed.upstream)
        placed.upstream.release()
