"""Order of SOLA's decodes for iterations that cannot serve all of them [SOLA, §4.4.2].

By descending predicted TPOT over target: the TPOT that a request would have at its end if it continued at the
decodes' own speed from now on,

    (TPOT_r · l_out + C_d · l_left) / (l_out + l_left)

The end depends on the judge: the predicted end of the answer for a mean, the end of the window for a window,
the next token for single gaps.
"""

from collections.abc import Sequence

from penstock_core.domain.request import Job
from penstock_core.domain.token_window import tokens_until_judged


def worst_first(decodes: Sequence[Job], now_s: float, decode_s: float) -> list[Job]:
    """Return decodes by descending predicted TPOT over target. decode_s: an iteration of all of them."""
    return sorted(decodes, key=lambda job: -predicted_ratio(job, now_s, decode_s))


def predicted_ratio(job: Job, now_s: float, decode_s: float) -> float:
    """Return predicted TPOT over target; 0 for a decode without a target."""
    if not job.tpot_s or job.anchor is None:
        return 0.0
    out_tokens = job.generated_tokens - job.anchor.tokens
    left_tokens = tokens_until_judged(job.request.targets.judge.window, out_tokens, job.output_tokens_left)
    elapsed_s = now_s - job.anchor.at_s
    return (elapsed_s + decode_s * left_tokens) / ((out_tokens + left_tokens) * job.tpot_s)
