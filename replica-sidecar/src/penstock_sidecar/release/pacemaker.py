"""How fast an engine that is not ours runs, by the tokens of one of its decodes.

While no prompt is being computed, every iteration brings out one token of every decode, so a decode's tokens
are the engine's beat. One decode at a time is listened to, over a few tokens together, since a single one may
be late on its way. A prompt that goes in or comes out meanwhile ends the measurement: how much of the time
was its own, nobody tells. Nor is anything learned of an engine that drafts, whose tokens are not iterations.
"""

from penstock_core.timing.time_model import BatchWork

from penstock_sidecar.metrics import Metrics
from penstock_sidecar.mirror.holding_mirror import HoldingMirror
from penstock_sidecar.requests.learned import Learned

TOKENS = 4
"""In one measurement. More would rarely find the engine without a prompt for so long."""

SILENT_S = 1.0
"""A decode that brings nothing for so long is not listened to any more."""


class Pacemaker:
    """Listens, and teaches what the time model is corrected by."""

    def __init__(self, mirror: HoldingMirror, learned: Learned, metrics: Metrics) -> None:
        self._mirror, self._learned, self._metrics = mirror, learned, metrics
        self._key = ""
        self._began_s = self._heard_s = float("-inf")
        self._heard: list[tuple[int, int]] = []  # decodes and their context, with each token

    def passed(self, key: str, tokens: int, now_s: float) -> None:
        """Tokens of a request have passed towards its client, and stand in the mirror."""
        if key != self._key and now_s - self._heard_s < SILENT_S:
            return
        inside = self._mirror.inside
        alone = not inside.prefills and inside.since_s <= self._began_s
        if key != self._key or tokens != 1 or not alone or self._mirror.drafts:
            self._listen(key, now_s)
            return
        self._heard_s = now_s
        self._heard.append((len(inside.decodes), sum(job.computed_tokens for job in inside.decodes)))
        if len(self._heard) == TOKENS:
            self._learn(now_s)
            self._listen(key, now_s)

    def _listen(self, key: str, now_s: float) -> None:
        self._key, self._began_s, self._heard_s, self._heard = key, now_s, now_s, []

    def _learn(self, now_s: float) -> None:
        if now_s <= self._began_s:
            return
        decodes, context_tokens = (round(sum(column) / TOKENS) for column in zip(*self._heard, strict=True))
        work = BatchWork(decodes, context_tokens)
        error = self._learned.step(work, (now_s - self._began_s) / TOKENS)
        self._metrics.time_error.observe(error)
        self._metrics.time_scale.set(self._learned.model.scale)
