"""Draft tokens: limits them to the planned number, and counts the accepted ones."""

from collections.abc import Mapping, Sequence

from penstock_core.domain.request import RequestId
from penstock_core.timing.acceptance_rate import Drafted

from penstock_vllm.engine import EngineRequest, RunnerOutput, StepOutput
from penstock_vllm.ledger import HeldRequest


def cut_drafts(
    computing: Sequence[EngineRequest],
    planned: Mapping[RequestId, int],
    by_id: Mapping[str, HeldRequest],
    kept: Mapping[str, int] | None,
) -> None:
    """Limit the draft tokens of each request to the planned number.

    kept: if the worker keeps draft tokens to itself, the requests of the last step; draft tokens of other
        requests are lost.
    """
    for request in computing:
        drafts = request.spec_token_ids
        if not drafts:
            continue
        most = planned.get(by_id[request.request_id].job.request.id, 0)
        if kept is not None and request.request_id not in kept:
            most = 0
        request.spec_token_ids = drafts[:most]


def drafted(
    output: StepOutput, result: RunnerOutput, by_id: Mapping[str, HeldRequest], *, with_worker: bool
) -> list[Drafted]:
    """Return the accepted draft tokens of every decode whose draft tokens were verified.

    with_worker: the worker keeps draft tokens to itself, so those listed here are placeholders.
    """
    found = []
    for engine_id, drafts in output.scheduled_spec_decode_tokens.items():
        held, row = by_id.get(engine_id), result.req_id_to_index.get(engine_id)
        padding = drafts[0] < 0 and not with_worker
        if held is None or row is None or padding or not result.sampled_token_ids:
            continue
        if tokens := len(result.sampled_token_ids[row]):
            found.append(Drafted(held.job.request.tier, len(drafts), min(tokens - 1, len(drafts))))
    return found
