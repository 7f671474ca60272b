"""How long a replica may say nothing about a request that it has accepted.

The sidecar ends requests whose engine makes no progress. This is the router's own bound, for a sidecar that
has forgotten a request: far above what was forecast, because ending a request that is merely late wastes all
its work. A streamed answer says something with every token; one that is not streamed may say nothing until
its end.
"""

from math import isfinite

from penstock_core.domain.verdict import Admitted, BestEffort

TIMES_FORECAST = 10.0
SHORTEST_S = 60.0
"""An engine may stand still for tens of seconds, and go on."""

WITHOUT_FORECAST_S = 600.0
"""Of best effort nothing is forecast: it waits for as long as there is other work. Official clients wait as
long."""

SLOWEST_TOKEN_S = 1.0
"""A token of a best-effort answer takes no longer, beside the wait."""


def longest_silence_s(verdict: Admitted | BestEffort, silent_tokens: int) -> float:
    """Return the bound in seconds. silent_tokens: most that are generated before something is said."""
    if isinstance(verdict, Admitted):
        forecast_s = verdict.ttft_predicted_s + verdict.tpot_predicted_s * silent_tokens
        if isfinite(forecast_s):
            return max(TIMES_FORECAST * forecast_s, SHORTEST_S)
    return WITHOUT_FORECAST_S + SLOWEST_TOKEN_S * silent_tokens
