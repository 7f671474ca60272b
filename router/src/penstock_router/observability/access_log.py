"""One line for every request that has ended, at `--log-level debug`.

Metrics aggregate requests; this has the same figures for one. It never contains prompts, keys or headers,
except for the request's id.
"""

import logging

import structlog
from penstock_routing.request.outcome import Ending, Outcome, measured


class AccessLog:
    """The log of one router, at the level that logs have when it is made."""

    def __init__(self) -> None:
        self._log = structlog.get_logger().bind()
        self._enabled = self._log.is_enabled_for(logging.DEBUG)

    def ended(self, request_id: str, outcome: Outcome) -> None:
        """Log one request. Durations in seconds, `None` where there were too few tokens or no answer."""
        if not self._enabled:
            return
        durations = measured(outcome) if outcome.ending is Ending.ANSWERED else None
        self._log.debug(
            "ended",
            request=request_id,
            tier=outcome.tier.name,
            verdict=outcome.verdict,
            reason=outcome.reason,
            hops=outcome.hops,
            moves=outcome.moves,
            ending=outcome.ending.value,
            ttft_s=durations and durations.ttft_s,
            tpot_s=durations and durations.tpot_s,
            e2e_s=outcome.ended_s - outcome.arrival_s,
        )
