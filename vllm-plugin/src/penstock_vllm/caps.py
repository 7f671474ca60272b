"""Caps on the tokens of each request in a step.

vLLM gives every request all of its pending tokens. Right before it allocates blocks for them it calls
`_reserve_prefill_lookahead`, where the plan's cap applies. Two earlier methods convert tokens into another
number (whole blocks of a state-space model, images), so they get the capped number.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.v1.request import RequestStatus

from penstock_vllm.engine import EngineRequest, Steered
from penstock_vllm.plan import Caps


class Capped(Steered):
    """A scheduler that gives each request at most its cap, while caps are in force."""

    _caps: Caps | None = None

    @contextmanager
    def _capped_by(self, caps: Caps | None) -> Iterator[None]:
        """Apply caps while vLLM makes a step. Steps without caps have no overhead."""
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
        """Return the lookahead within the caps, instead of `_reserve_prefill_lookahead`.

        A new request's padding to a decode with draft tokens stays.
        """
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
        """Return the smaller of this number and the cap. A request outside the plan has no cap."""
        if self._caps is None:
            return num_new_tokens
        return min(num_new_tokens, self._caps.get(request.request_id, num_new_tokens))
