"""Step times of an engine without step reports, measured by the tokens of one of its decodes.

While no prompt is computed, every iteration generates one token of every decode, so the tokens of one decode
show the iterations. One decode at a time is measured, over several tokens, because single tokens may be
delayed. A prompt that enters or finishes meanwhile ends the measurement, because its share of the time is
unknown. Engines that speculate are not measured, because they generate several tokens in an iteration.
"""

from penstock_core.timing.time_model import BatchWork

from penstock_sidecar.metrics import Metrics
from penstock_sidecar.mirror.holding_mirror import HoldingMirror
from penstock_sidecar.requests.estimates import Estimates

TOKENS = 4
"""Tokens of one measurement. More would be rarely possible, because busy engines often compute prompts."""

SILENT_S = 1.0
"""Silence after which another decode is measured."""


class StepTimer:
    """Measures step times, and corrects the time model by them."""

    def __init__(self, mirror: HoldingMirror, estimates: Estimates, metrics: Metrics) -> None:
        self._mirror, self._estimates, self._metrics = mirror, estimates, metrics
        self._key = ""
        self._began_s = self._last_s = float("-inf")
        self._decode_batches: list[tuple[int, int]] = []  # decodes and their context tokens, at each token

    def passed(self, key: str, tokens: int, now_s: float) -> None:
        """Record tokens that were forwarded to a client, after the mirror has recorded them."""
        if key != self._key and now_s - self._last_s < SILENT_S:
            return
        in_engine = self._mirror.in_engine
        decodes_only = not in_engine.prefills and in_engine.since_s <= self._began_s
        if key != self._key or tokens != 1 or not decodes_only or self._mirror.speculates:
            self._restart(key, now_s)
            return
        self._last_s = now_s
        self._decode_batches.append(
            (len(in_engine.decodes), sum(job.computed_tokens for job in in_engine.decodes))
        )
        if len(self._decode_batches) == TOKENS:
            self._learn(now_s)
            self._restart(key, now_s)

    def _restart(self, key: str, now_s: float) -> None:
        self._key, self._began_s, self._last_s, self._decode_batches = key, now_s, now_s, []

    def _learn(self, now_s: float) -> None:
        if now_s <= self._began_s:
            return
        decodes, context_tokens = (
            round(sum(column) / TOKENS) for column in zip(*self._decode_batches, strict=True)
        )
        work = BatchWork(decodes, context_tokens)
        error = self._estimates.observe_step(work, (now_s - self._began_s) / TOKENS)
        self._metrics.time_error.observe(error)
        self._metrics.time_scale.set(self._estimates.model.scale)
