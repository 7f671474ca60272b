"""Longest time for which a replica may report no progress of a request that it has accepted.

The sidecar ends requests whose engine makes no progress. This is the router's own bound, for a sidecar that
has lost track of a request. It is far above the forecast, because ending a request that is only late wastes
all its work. A streamed answer shows progress with every token; another one may show none until its end.
"""

from math import isfinite

from penstock_core.domain.verdict import Admitted, BestEffort

TIMES_FORECAST = 10.0
SHORTEST_S = 60.0
"""Seconds that a healthy engine may pause at most."""

WITHOUT_FORECAST_S = 600.0
"""Seconds for best effort, which has no forecast, because it waits as long as there is other work. Official
clients have the same timeout.
"""

SLOWEST_TOKEN_S = 1.0
"""Longest seconds per token of a best-effort answer, besides the wait."""


def longest_silence_s(verdict: Admitted | BestEffort, silent_tokens: int) -> float:
    """Return the bound in seconds.

    silent_tokens: most tokens that are generated before a sign of progress.
    """
    if isinstance(verdict, Admitted):
        forecast_s = verdict.ttft_predicted_s + verdict.tpot_predicted_s * silent_tokens
        if isfinite(forecast_s):
            return max(TIMES_FORECAST * forecast_s, SHORTEST_S)
    return WITHOUT_FORECAST_S + SLOWEST_TOKEN_S * silent_tokens
