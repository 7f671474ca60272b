"""How many tokens a request may have in a step: where vLLM asks, the plan answers.

vLLM gives every request what is pending of it. Last before it takes blocks for that it calls
`_reserve_prefill_lookahead`, so there the plan's word counts. Two methods before it turn tokens into
something else (whole blocks of a state-space model, images), so they are told first.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.v1.request import RequestStatus

from penstock_vllm.engine import EngineRequest, Steered
from penstock_vllm.plan import Caps


class Capped(Steered):
    """A scheduler that gives nobody more than the caps in force, if any are."""

    _caps: Caps | None = None

    @contextmanager
    def _capped_by(self, caps: Caps | None) -> Iterator[None]:
        """While it makes a step. Steps without caps do not pay for them."""
        if caps is None:
            yield
            return
        self._caps = caps
        self.__dict__["_reserve_prefill_lookahead"] = self._lookahead_within_caps
        try:
            yield
        finally:
            self._caps = None
            del self.__dict__["_reserve_prefill_lookahead"]

    def _lookahead_within_caps(
        self, request: EngineRequest, num_computed_tokens: int, num_new_tokens: int
    ) -> int:
        """Stands in for `_reserve_prefill_lookahead`. A newcomer's padding to a decode with drafts stays."""
        most = self._cap(request, num_new_tokens)
        starts = request.status != RequestStatus.RUNNING
        padded = starts and most == 1 and request.num_tokens - num_computed_tokens == 1
        if most < num_new_tokens and not padded:
            num_new_tokens = most
        return super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)

    def _mamba_block_aligned_split(self, request: EngineRequest, num_new_tokens: int, *computed: int) -> int:
        return super()._mamba_block_aligned_split(request, self._cap(request, num_new_tokens), *computed)

    def _try_schedule_encoder_inputs(
        self, request: EngineRequest, num_computed_tokens: int, num_new_tokens: int, *rest: Any, **more: Any
    ) -> Any:
        num_new_tokens = self._cap(request, num_new_tokens)
        return super()._try_schedule_encoder_inputs(
            request, num_computed_tokens, num_new_tokens, *rest, **more
        )

    def _cap(self, request: EngineRequest, num_new_tokens: int) -> int:
        """The fewer of these and those planned. Who is not in the plan has no cap."""
        if self._caps is None:
            return num_new_tokens
        return min(num_new_tokens, self._caps.get(request.request_id, num_new_tokens))
