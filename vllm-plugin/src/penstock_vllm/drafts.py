"""Drafts: as many to verify as planned, and how many of them were right."""

from collections.abc import Mapping, Sequence

from penstock_core.domain.request import RequestId
from penstock_core.timing.acceptance_rate import Drafted

from penstock_vllm.engine import EngineRequest, RunnerOutput, StepOutput
from penstock_vllm.ledger import Held


def cut_drafts(
    computing: Sequence[EngineRequest],
    planned: Mapping[RequestId, int],
    by_id: Mapping[str, Held],
    kept: Mapping[str, int] | None,
) -> None:
    """Leave each of these as many of its drafts as planned.

    kept: where the worker keeps drafts to itself, who was in the last step: those of others are gone.
    """
    for request in computing:
        drafts = request.spec_token_ids
        if not drafts:
            continue
        most = planned.get(by_id[request.request_id].job.request.id, 0)
        if kept is not None and request.request_id not in kept:
            most = 0
        if len(drafts) > most:
            request.spec_token_ids = drafts[:most]


def drafted(
    output: StepOutput, brought: RunnerOutput, by_id: Mapping[str, Held], *, with_worker: bool
) -> list[Drafted]:
    """Of every decode whose drafts were verified, how many were accepted.

    with_worker: the worker keeps drafts to itself, so what stands for them here says nothing.
    """
    found = []
    for engine_id, drafts in output.scheduled_spec_decode_tokens.items():
        held, row = by_id.get(engine_id), brought.req_id_to_index.get(engine_id)
        padding = drafts[0] < 0 and not with_worker
        if held is None or row is None or padding or not brought.sampled_token_ids:
            continue
        if tokens := len(brought.sampled_token_ids[row]):
            found.append(Drafted(held.job.request.tier, len(drafts), min(tokens - 1, len(drafts))))
    return found
