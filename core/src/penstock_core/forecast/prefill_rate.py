"""Rate of prefill beside decodes, as a fluid [SLOs-Serve, §3.2.2, PB*].

While decodes run, the engine works in periods of one batch, which has every decode with its token (and draft
tokens). A period is at most the smallest TPOT target, times the tokens that a decode generates in it, and at
most the longest batch (`batch_length`). The rest of the period is prefill.
"""

from math import inf
from typing import Any, NamedTuple

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.timing.batch_length import longest_batch_s
from penstock_core.timing.speculation import fastest_length, tokens_expected
from penstock_core.timing.time_model import BatchWork, TimeModel


class PrefillRate(NamedTuple):
    """Duration of a period, and prompt tokens per second; 0 if decodes use the whole period."""

    period_s: float
    tokens_s: float

    def seconds(self, model: TimeModel, tokens: Any, work: Any) -> Any:
        """Return the seconds of prefills with these tokens and this attention: numbers or arrays."""
        attention_s = model.scale * model.prefill_work_s * work
        return attention_s + (tokens / self.tokens_s if self.tokens_s else inf)


def prefill_rate(view: ReplicaView, decodes: BatchWork, tightest_s: float, ordinary_s: float) -> PrefillRate:
    """Return the rate beside these decodes (without drafts) under the tightest of their TPOT targets.

    ordinary_s: duration of an ordinary batch (`batch_length.ordinary_batch_s`).
    """
    model, drafts, generated = view.model, 0, 1.0
    speculation = view.speculation
    if speculation is not None and decodes.tokens:
        lengths = range(speculation.max_tokens + 1)
        tokens = [tokens_expected(speculation.acceptance, drafts) for drafts in lengths]
        drafts, _ = fastest_length(model, decodes, tokens)
        generated = tokens[drafts]
    decoding = decodes.tokens * (1 + drafts)
    alone_s = model.seconds(BatchWork(max(decoding, 1), decodes.context_tokens, 0.0, drafts))
    period_s = min(tightest_s * generated, longest_batch_s(ordinary_s, alone_s))
    fitting = model.tokens_within(period_s, decodes.context_tokens, 0.0, drafts)
    return PrefillRate(period_s, max(min(fitting, view.limits.batch_tokens) - decoding, 0) / period_s)
