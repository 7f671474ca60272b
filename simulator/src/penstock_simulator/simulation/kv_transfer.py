"""How long the KV of a prompt takes from the GPU that computed it to the one that goes on with it."""

from penstock_core.timing.builtin_models import builtin

from penstock_simulator.simulation.fleet import Fleet

NVLINK_BYTES_PER_S = 300e9
"""One direction of an A100's NVLink: 600 GB/s in both together (NVIDIA A100 datasheet). DistServe places the
prefill and decode segments of a model within one node so that KV travels over it [DistServe, §4.2]."""


class KvTransfer:
    """A fleet's. Its engine is a built-in, whose size of a token's KV is known."""

    def __init__(self, fleet: Fleet) -> None:
        self._token_s = builtin(fleet.truth_model or fleet.model.name).kv_token_bytes / NVLINK_BYTES_PER_S

    def seconds(self, tokens: int) -> float:
        """Of so many tokens' keys and values."""
        return tokens * self._token_s
