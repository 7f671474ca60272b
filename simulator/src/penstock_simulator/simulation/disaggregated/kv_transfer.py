"""Duration of the KV transfer from a prefill GPU to a decode GPU."""

from penstock_core.timing.builtin_models import builtin

from penstock_simulator.simulation.fleet import Fleet

NVLINK_BYTES_PER_S = 300e9
"""One direction of an A100's NVLink: 600 GB/s in both together (NVIDIA A100 datasheet). DistServe places the
prefill and decode segments of a model within one node, so that KV is transferred over it [DistServe,
§4.2]."""


class KvTransfer:
    """A fleet's KV transfer. Raises UnknownTimeModel if its engine's KV size per token is unknown."""

    def __init__(self, fleet: Fleet) -> None:
        self._token_s = builtin(fleet.truth_model or fleet.model.name).kv_token_bytes / NVLINK_BYTES_PER_S

    def seconds(self, tokens: int) -> float:
        """Return the duration of a transfer of so many tokens' KV."""
        return tokens * self._token_s
