"""Checks whether a held request may start: it and all running requests must be able to meet their SLOs.

Two conditions, for jobs that can still meet their SLO:

- Memory at the future peak of the set, which is less than the sum of their peaks because they end at
  different times (`kv_forecast`). Memory of other jobs does not count, since they are preempted on demand.
- TPOT: a batch of all their decodes takes at most the smallest TPOT target among them.

A job that starts counts as running for the next ones. An empty replica starts any job.
"""

from itertools import chain, islice
from math import inf

import numpy as np

from penstock_core.batch.relegation import DecodeBatch, Work
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, holding_kv
from penstock_core.forecast.kv_forecast import forecast_jobs
from penstock_core.timing.time_model import BatchWork

MOST_CANDIDATES = 16
"""Held requests that are examined per step, in order: more than can start in it."""


class StartCheck:
    """Decides which jobs may start in one step.

    `on_time`: jobs that can meet their SLO, prefills in service order.
    """

    def __init__(self, view: ReplicaView, on_time: Work, decodes: DecodeBatch) -> None:
        running = holding_kv(chain.from_iterable(on_time))
        held = list(islice([job for job in on_time.prefills if not job.holds_kv], MOST_CANDIDATES))
        self._view, self._decodes = view, decodes
        self._total_blocks = view.kv.total_blocks
        known = forecast_jobs([*running, *held], view.kv, len(running)) if held else None
        self._rows = np.zeros((0, 1), np.int64) if known is None else known.blocks
        self._peak = self._rows[: len(running)].sum(axis=0)
        self._row_of = {job.request.id: len(running) + i for i, job in enumerate(held)}
        self._running = len(running)
        self._context_tokens = sum([job.request.prompt_tokens + job.generated_tokens for job in running])
        self._tpot_s = min([job.tpot_s for job in running if job.tpot_s is not None], default=inf)

    def try_start(self, job: Job) -> bool:
        """Return whether a job may start. If it may, it counts as running for the next jobs."""
        row = self._row_of.get(job.request.id)
        if row is None:
            return False
        peak = self._peak + self._rows[row]
        tpot_s = min(self._tpot_s, inf if job.tpot_s is None else job.tpot_s)
        context_tokens = self._context_tokens + job.pending_tokens
        if self._running and (peak.max() > self._total_blocks or self._token_s(context_tokens) > tpot_s):
            return False
        self._running += 1
        self._peak, self._tpot_s, self._context_tokens = peak, tpot_s, context_tokens
        return True

    def _token_s(self, context_tokens: int) -> float:
        """Return the seconds per token of one more decode beside all running ones."""
        drafts = self._decodes.work.spec_steps
        work = BatchWork((self._running + 1) * (1 + drafts), context_tokens, 0.0, drafts)
        return self._view.model.seconds(work) / self._decodes.tokens
