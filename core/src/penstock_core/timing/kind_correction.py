"""Correction of a time model by kind of iteration: decodes alone, prefill alone, or both.

A model may be right on average and wrong for each kind. On a CPU, for example, a prompt's tokens may take
longer than fitted and decodes less. One ratio for all then follows whichever kind was last, so prefill after
many decodes is planned too short, and its iterations look like stalls.

Each kind has a mean and a quantile of measured over predicted time, both relative to the mean of all kinds.
That mean (`correction`) follows a change of the engine's speed, which applies to all kinds, also to those
without iterations since. So a kind learns slowly, and more slowly the larger its share of the iterations is:
while an engine computes decodes alone, their speed cannot be distinguished from the engine's. A kind's
correction fades with iterations of other kinds, and while the engine is idle.

A kind is corrected only where it is clearly off (`applied_ratio`). The built-in models are up to 4 % off by
kind, within the common margin, and correcting that would make plans depend on noise.

The state is a value: `after` and `fading` return the next one.
"""

from math import log
from typing import NamedTuple

from penstock_core.timing.quantile_margin import clipped, error_after, margin_after
from penstock_core.timing.time_model import BatchWork

KIND_RATE = 0.02
"""Largest weight of one iteration of a kind, far below that of the common mean, which follows changes."""

PRIOR_STEPS = 2.0
"""Weight of the prior, that a kind is like all others, in iterations of that kind."""

STALE_STEPS = 20_000.0
"""Iterations of other kinds, about ten minutes, after which a third of a correction is left. For a kind that
is one iteration in twenty, this causes an error of a thirtieth."""

SHARE_RATE = 0.01
"""Weight of one iteration in the shares of the kinds."""

IGNORED, CORRECTED = log(1.1), log(1.2)
"""Logarithms of ratios: a kind is not corrected below the first, and completely above the second."""

KNOWN_STEPS = 10
"""Iterations of a kind after which a slow iteration can be distinguished from a slow kind."""


class KindCorrection(NamedTuple):
    """The learned speed of one kind.

    ratio: mean of measured over predicted time, relative to that of all kinds.
    error: mean absolute error that remains.
    margin: ratio to the kind's mean that one of its iterations in forty exceeds.
    observed: number of its iterations. share: its share of the last hundred iterations of all kinds.
    """

    ratio: float = 1.0
    error: float = 0.05
    margin: float = 1.1
    observed: int = 0
    share: float = 0.0

    def after(self, relative: float, rate: float) -> "KindCorrection":
        """Return the correction after one more iteration of this kind.

        relative: its duration, relative to the mean of all kinds. rate: its weight in the kind's share.
        """
        own, share = relative / self.ratio, self.share * (1.0 - rate) + rate
        weight = max(KIND_RATE, 1.0 / (self.observed + PRIOR_STEPS)) * (1.0 - share)
        error = error_after(self.error, own)
        return KindCorrection(
            self.ratio * (1.0 + weight * (clipped(own, self.error) - 1.0)),
            error,
            margin_after(self.margin, error, own),
            self.observed + 1,
            share,
        )

    def fading(self, left: float, rate: float = 0.0) -> "KindCorrection":
        """Return the correction after it has faded to this share.

        rate: the weight of an iteration of another kind in the kind's share.
        """
        margin = NEW_KIND.margin + (self.margin - NEW_KIND.margin) * left
        share = self.share * (1.0 - rate)
        return KindCorrection(self.ratio**left, self.error, margin, self.observed, share)

    @property
    def known(self) -> bool:
        """Return whether a slow iteration of this kind is an exception."""
        return self.observed >= KNOWN_STEPS


NEW_KIND = KindCorrection()


class Kinds(NamedTuple):
    """The corrections by kind, named as the scales of a `TimeModel`."""

    decode: KindCorrection = NEW_KIND
    prefill: KindCorrection = NEW_KIND
    mixed: KindCorrection = NEW_KIND

    def of(self, work: BatchWork) -> KindCorrection:
        """Return the correction of this iteration's kind."""
        return self[_kind(work)]

    def after(self, work: BatchWork, relative: float) -> "Kinds":
        """Return the corrections after one more iteration.

        relative: its duration, relative to the mean of all kinds.
        """
        here, left = _kind(work), 1.0 - 1.0 / STALE_STEPS
        observed = self.decode.observed + self.prefill.observed + self.mixed.observed
        rate = max(SHARE_RATE, 1.0 / (1 + observed))
        return Kinds._make(
            [
                kind.after(relative, rate) if place == here else kind.fading(left, rate)
                for place, kind in enumerate(self)
            ]
        )

    def fading(self, left: float) -> "Kinds":
        """Return the corrections after they have faded to this share."""
        return Kinds._make([one.fading(left) for one in self])


NEW_KINDS = Kinds()


def applied_ratio(ratio: float) -> float:
    """Return the ratio that is applied to a kind: 1 for a small difference, rising to the whole ratio."""
    share = (abs(log(ratio)) - IGNORED) / (CORRECTED - IGNORED)
    return 1.0 if share <= 0.0 else float(ratio ** min(share, 1.0))


def _kind(work: BatchWork) -> int:
    """Return the index of an iteration's kind in `Kinds`, by the rule of `time_model.kind_scale`."""
    if work.context_tokens == 0:
        return 1
    return 2 if work.prefill_work > 0.0 else 0
