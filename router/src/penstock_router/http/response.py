"""Answers a placed request, and frees what it held at its replica."""

from penstock_routing.request.outcome import Outcome
from penstock_routing.response.answer import answer_headers, write_answer
from penstock_routing.response.client_scope import ClientScope

from penstock_router.http.intake import Accepted
from penstock_router.routing.placement import Placed


async def respond(accepted: Accepted, placed: Placed, outcome: Outcome, client: ClientScope) -> None:
    """Write the answer, and note in `outcome` how it went."""
    replica = placed.link.name
    headers = [*answer_headers(accepted.request.id, outcome, replica), *accepted.admission.headers]
    try:
        await write_answer(placed.upstream, replica, outcome, client, headers)
    finally:
        placed.link.abandon(placed.upstream)
        placed.upstream.release()
