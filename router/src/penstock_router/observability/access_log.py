"""The access log: one line for every request that has ended, at `--log-level debug`.

It has the values of the metrics for single requests. It never contains prompts, keys or headers, except for
the request's id.
"""

import logging

import structlog
from penstock_routing.request.outcome import Ending, Outcome, measured


class AccessLog:
    """The access log of one router. The log level is read when it is created."""

    def __init__(self) -> None:
        self._log = structlog.get_logger().bind()
        self._enabled = self._log.is_enabled_for(logging.DEBUG)

    def ended(self, request_id: str, outcome: Outcome) -> None:
        """Log one request. Durations are None without an answer or with too few tokens."""
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
