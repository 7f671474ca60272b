"""The mirror of an engine with its own scheduler: requests that are held before it, and requests in it.

Such an engine sends no step reports, so its state is inferred from the requests released into it, the tokens
that it returns, the time model, and its `/metrics` if it has them. Metrics show requests that reached the
engine without this sidecar, which take slots and memory (`others`). The engine's cached prefixes are
estimated from its answers (`learned_prefixes`).

Admission plans with the state of the engine after the prompts in it are computed
(`penstock_core.external_engine.planning_view`), and with all held requests as waiting.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from math import ceil
from typing import NamedTuple

from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, RequestId, holding_cached, promoted
from penstock_core.external_engine.planning_view import EngineJobs, planning_view
from penstock_core.external_engine.slots import EngineSlots
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import TimeModel
from penstock_proto.sse import EngineUsage
from penstock_runtime.prompt_marks import PromptMarks

from penstock_sidecar.engine.metrics import EngineLoad
from penstock_sidecar.mirror.learned_prefixes import LearnedPrefixes
from penstock_sidecar.mirror.mirrored_job import MirroredJob
from penstock_sidecar.mirror.prefix_index import SharedPrefix
from penstock_sidecar.mirror.replica_mirror import ReplicaMirror


class EngineCount(NamedTuple):
    """Requests, and blocks of the KV cache."""

    requests: int
    blocks: int


class HoldingMirror(ReplicaMirror):
    """The requests of this replica, and which of them are in the engine.

    slots: how many requests the engine runs at once.
    """

    def __init__(
        self,
        kv: KvCache,
        limits: Limits,
        longer: Callable[[Job], int],
        speculation: Speculation | None = None,
    ) -> None:
        super().__init__(kv, limits, longer, speculation=speculation)
        self.slots = EngineSlots(limits.running, limits.running)
        self._learned_prefixes = LearnedPrefixes(self.prefixes, lambda: self.kv_tokens_total)
        self._released: dict[RequestId, MirroredJob] = {}
        self._since_s = 0.0
        self._others = EngineCount(0, 0)

    @property
    def in_engine(self) -> EngineJobs:
        """Requests in the engine that have not ended."""
        jobs = [found.job for found in self._released.values()]
        return EngineJobs(
            tuple(job for job in jobs if job.generated_tokens),
            tuple(job for job in jobs if not job.generated_tokens),
            self._since_s,
        )

    @property
    def speculates(self) -> bool:
        """Whether the engine speculates, according to the pool."""
        return self._speculation is not None

    @property
    def count(self) -> EngineCount:
        """The number of requests in the engine, and the most blocks that they hold."""
        sizes = [job.request.prompt_tokens + job.generated_tokens for job in self.in_engine.jobs]
        return EngineCount(len(sizes), sum(map(self._kv.blocks_for, sizes)))

    def released(self, request_id: RequestId, now_s: float) -> None:
        """Record that a job is released into the engine."""
        if all(found.job.generated_tokens for found in self._released.values()):
            self._since_s = now_s
        found = self._released[request_id] = self._accepted[request_id]
        found.job = holding_cached(found.job)
        found.progressed_s = now_s
        self._snapshot = None

    @property
    def _knows_cache(self) -> bool:
        return True

    def set_prefix_caching(self, possible: bool) -> None:
        """Set whether the engine may have a prefix cache, whose content is then estimated."""
        self.prefixes.wanted = possible

    def _cached_tokens(self, found: SharedPrefix, marks: PromptMarks) -> int:
        return self._learned_prefixes.cached_tokens(marks)

    def prompt_sent(self, request_id: RequestId, marks: PromptMarks) -> None:
        """Add an accepted request's prompt."""
        self._learned_prefixes.sent(request_id, marks)
        super().prompt_sent(request_id, marks)

    def answered(self, request_id: RequestId, usage: EngineUsage) -> None:
        """Learn from the engine's counts of a complete answer."""
        self._learned_prefixes.answered(request_id, usage)

    def lose_reports(self) -> None:
        """Forget the engine's state, because it was lost."""
        super().lose_reports()
        self._learned_prefixes.lose()

    def forget(self, request_id: RequestId) -> Job | None:
        """Remove a job that has ended. Return its last state."""
        self._released.pop(request_id, None)
        self._learned_prefixes.ended(request_id)
        return super().forget(request_id)

    def promote(self, request_ids: Collection[RequestId]) -> None:
        """Promote best-effort jobs to their SLOs."""
        for request_id in request_ids:
            found = self._accepted[request_id]
            found.job = promoted(found.job)
            self._snapshot = None

    def passed(self, request_id: RequestId, tokens: int, now_s: float) -> None:
        """Record tokens of a job. The first token shows that its prompt is computed."""
        found = self._released.get(request_id)
        first = found is not None and not found.job.generated_tokens
        super().passed(request_id, tokens, now_s)
        if first and tokens:
            self._since_s = now_s

    def engine_full(self) -> None:
        """Record that the engine rejected a request beyond those that it has."""
        self.slots = self.slots.refused(len(self._released))

    def engine_load(self, load: EngineLoad | None, before: EngineCount, after: EngineCount) -> None:
        """Apply the engine's load. before, after: own requests in it before and after the query."""
        if load is None:
            self.slots, self._others = self.slots.relaxed(), EngineCount(0, 0)
        else:
            self._kv = load.kv or self._kv  # another size after a restart
            self.slots = self.slots.reported(load.running, load.waiting)
            blocks = ceil(load.kv_used * self._kv.total_blocks)
            self._others = EngineCount(
                max(load.running + load.waiting - max(before.requests, after.requests), 0),
                max(blocks - max(before.blocks, after.blocks), 0),
            )
        self._snapshot = None

    def held_view(self, now_s: float, model: TimeModel) -> ReplicaView:
        """Return a view with the held requests as waiting. Requests in the engine are in `in_engine`."""
        others, blocks = self._others
        blocks = min(blocks, self._kv.total_blocks)
        total = self._kv.total_blocks - blocks
        waiting = tuple(found.job for key, found in self._accepted.items() if key not in self._released)
        return ReplicaView(
            now_s=now_s,
            busy_until_s=self._busy_until(now_s, self.in_engine.decodes, model),
            running=(),
            waiting=waiting,
            kv=KvCache(total, total, self._kv.block_tokens, others_blocks=blocks),
            limits=replace(self._limits, running=max(self.slots.most - others, 1)),
            model=model,
            speculation=self._speculation,
        )

    def view(self, now_s: float, model: TimeModel) -> ReplicaView:
        """Return the replica as admission plans with it."""
        return planning_view(self.held_view(now_s, model), self.in_engine)
