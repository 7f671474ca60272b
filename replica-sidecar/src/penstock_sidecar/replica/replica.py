"""One replica: what all its sessions share.

A submit is read, decided with those that came with it, and carried. Around that stand the mirror that plans
are made from, what has been learned, whether the engine serves and whether the replica drains. Everything
here is touched from one event loop only, and no decision spans an await.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from time import monotonic, perf_counter
from typing import Any

import structlog
from penstock_core.domain.engine_fields import to_fields
from penstock_core.domain.policy import Policy
from penstock_core.domain.replica_admission import MOST_SEQUENCES, Standing, decide, for_all
from penstock_core.domain.request import Job
from penstock_core.domain.request_lifecycle import State
from penstock_core.domain.slo import Tier
from penstock_core.domain.verdict import Admitted, BestEffort, Reason, Rejected, Verdict
from penstock_core.forecast.overdue import Expected, is_overdue
from penstock_core.forecast.snapshot import Snapshot
from penstock_proto import replica_pb2 as wire
from penstock_runtime.openai_errors import ApiError

from penstock_sidecar.bounds import Bounds
from penstock_sidecar.engine.client import EngineClient, EngineGone, Probe
from penstock_sidecar.frames.messages import snapshot_message, verdict_words
from penstock_sidecar.metrics import Metrics
from penstock_sidecar.mirror.replica_mirror import ReplicaMirror
from penstock_sidecar.release.gate import Gate
from penstock_sidecar.replica.session import Session
from penstock_sidecar.replica.undecided_requests import Newcomers
from penstock_sidecar.requests.carried import Carried
from penstock_sidecar.requests.carry import Sending, Way, carry
from penstock_sidecar.requests.client_body import ClientBody, over_context, read_body
from penstock_sidecar.requests.faults import Faults
from penstock_sidecar.requests.job import check_times, job_of
from penstock_sidecar.requests.learned import Learned

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Serving:
    """What a replica serves, and how.

    reads_fields: whether its engine reads SLO fields from a request's `vllm_xargs`.
    max_model_len: as the pool says; the engine corrects it.
    max_sequences: answers that one request may ask for.
    delivery_s: kept back from first-token and end-to-end targets for the way to the engine and back.
    """

    policy: Policy[Any]
    tiers: dict[str, Tier]
    reads_fields: bool
    max_model_len: int
    delivery_s: float = 0.0
    max_sequences: int = MOST_SEQUENCES


class Replica:
    """Admits, carries, and knows how it stands.

    gate: holds requests before an engine that has no policy of its own; None before one that has.
    engine_lost: called when a request has lost the engine.
    standing_changed: called when it starts or stops taking work.
    """

    def __init__(
        self,
        serving: Serving,
        mirror: ReplicaMirror,
        learned: Learned,
        engine: EngineClient,
        *,
        metrics: Metrics,
        bounds: Bounds,
        gate: Gate | None = None,
    ) -> None:
        self._serving, self._mirror, self._learned = serving, mirror, learned
        self._engine, self._metrics, self.bounds = engine, metrics, bounds
        self._gate = gate
        self._now_s = monotonic  # the loop's own clock counts milliseconds and stands still within a turn
        self._ticked_s = self._now_s()
        self._boot, self._numbers = os.urandom(3).hex(), count(1)
        self._newcomers = Newcomers(self._decide, bounds)
        self._sequences = 0
        self._reading, self._reader = 0, ThreadPoolExecutor(1, "bodies")
        self._faults = Faults(metrics.faults)
        self._told = wire.Snapshot()
        self._accepted: dict[str, Carried] = {}
        self._best_effort: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sessions: set[Session] = set()
        self._drained = asyncio.Event()
        self.max_model_len = serving.max_model_len
        self.draining = self.stopping = self.engine_ready = False
        self.engine_lost: Callable[[], None] = lambda: None
        self.standing_changed: Callable[[], None] = lambda: None

    @property
    def serves(self) -> bool:
        """Whether it takes new work."""
        return self.engine_ready and not self.draining

    @property
    def unfinished(self) -> int:
        """Requests accepted and not yet ended."""
        return len(self._accepted)

    def open_session(self) -> Session:
        """A session for a router that has connected."""
        session = Session(self.submit, self.snapshot, self.bounds)
        self._sessions.add(session)
        self._metrics.sessions.set(len(self._sessions))
        return session

    def close_session(self, session: Session) -> None:
        """It is over."""
        self._sessions.discard(session)
        self._metrics.sessions.set(len(self._sessions))

    def submit(self, submit: wire.Submit, session: Session) -> Carried:
        """Take a request in. It has ended on return where it cannot be served at all."""
        now_s, key = self._now_s(), f"{self._boot}-{next(self._numbers)}"
        carried = Carried(submit, key, session, self, now_s)
        with self._faults.of(carried, "submit"):
            if self._newcomers.waiting + self._reading >= self.bounds.carried:
                self._tell(carried, Rejected(Reason.QUEUE_FULL))
            elif len(raw := submit.body) > self.bounds.read_at_once_bytes:
                self._spawn(self._take_long(carried, submit, raw))
            else:
                self._take(carried, submit, _read(submit.endpoint, raw, self._serving.max_sequences))
        return carried

    def snapshot(self) -> wire.Snapshot:
        """How the replica stands; where that cannot be told, how it stood."""
        with self._faults.within("snapshot"):
            self._told = snapshot_message(self._standing(), self.engine_ready, self.draining)
        return self._told

    def send(self, carried: Carried) -> asyncio.Task[None]:
        """Carry an accepted request to the engine and back, in a task of its own."""
        if self._gate is not None:
            self._gate.hold(carried.keys)
        return self._spawn(self._carry(carried))

    def tokens_out(self, carried: Carried) -> int:
        """Tokens of a request that a speculating engine has reported; 0 where none has."""
        if carried.sequences == 1:  # once a token: the usual case takes no detour
            return self._mirror.tokens_out(carried.key)
        return sum(map(self._mirror.tokens_out, carried.keys))

    def has_passed(self, carried: Carried, tokens: int) -> None:
        """Tokens of a request have passed towards its client."""
        if carried.sequences == 1:  # once a token: the usual case takes no detour
            self._mirror.passed(carried.key, tokens, carried.last_s)
        else:
            for key, share in _shares(carried, tokens):
                self._mirror.passed(key, share, carried.last_s)
        if self._gate is not None:
            self._gate.passed(carried.key, tokens, carried.last_s)

    def thinking_over(self, carried: Carried, thinking_tokens: int) -> None:
        """The tokens that passed say that a request's answer proper has begun."""
        self._mirror.thinking_over(carried.key, thinking_tokens, carried.last_s)

    def thinking_tokens(self, carried: Carried) -> int:
        """Tokens that a request thought with, as far as is known."""
        return self._mirror.thinking_tokens(carried.key)

    def token_times_s(self, carried: Carried, tokens: int) -> Sequence[float]:
        """When the tokens of an answer that was not streamed came out; empty where that is not known."""
        return self._mirror.token_times_s(carried.key, tokens // carried.sequences, carried.last_s)

    def has_ended(self, carried: Carried) -> None:
        """A request is over, in whatever way."""
        tier = carried.tier if carried.tier in self._serving.tiers else "unknown"
        self._metrics.ends.labels(tier, carried.state.value).inc()
        if self._accepted.pop(carried.key, None) is None:
            return
        with self._faults.within("end"):
            self._release(carried)
        if not self._accepted:
            self._drained.set()

    def _release(self, carried: Carried) -> None:
        """Take what it held as free, and learn from how it went."""
        self._best_effort.difference_update(carried.keys)
        self._sequences -= carried.sequences
        for key in carried.keys:
            self._mirror.forget(key)
        engine_full = carried.state is State.REJECTED
        if engine_full:
            self._metrics.engine_full.inc()
        if self._gate is not None:
            self._gate.ended(carried.key, engine_full)
        if carried.state is State.FINISHED:
            self._learn(carried)

    def engine_up(self, probe: Probe) -> None:
        """The engine serves."""
        self.engine_ready = True
        self.max_model_len = probe.max_model_len or self.max_model_len
        log.info("engine up", max_model_len=self.max_model_len)
        self._changed()

    def engine_down(self, all_lost: bool) -> None:
        """The engine takes no new work; of what it holds, `all_lost` says that nothing will come back.

        Who has not been let into it may still be served elsewhere.
        """
        self.engine_ready = False
        log.warning("engine down", unfinished=self.unfinished)
        self._mirror.lose_reports()
        for carried in list(self._accepted.values()):
            if all_lost or (self._gate is not None and self._gate.holds(carried.key)):
                with self._faults.of(carried, "engine"):
                    carried.engine_lost()
        self._changed()

    async def drain(self, deadline_s: float | None) -> int:
        """Take no new work, hand back what has not begun, and let the rest end.

        Returns what is unfinished when all has ended, the deadline has passed or `resume` was called.
        """
        if not self.draining:
            self.draining = True
            self._metrics.drains.inc()
            log.info("draining", unfinished=self.unfinished)
            self._changed()
        self._hand_back()
        self._drained.clear()
        if not self._accepted:
            self._drained.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self._drained.wait()
        return self.unfinished

    def resume(self) -> None:
        """Take new work again."""
        if self.draining:
            self.draining = False
            log.info("resumed")
            self._drained.set()
            self._changed()

    async def close(self) -> None:
        """End every session and everything that is carried."""
        self._hand_back()
        for session in self._sessions:
            session.close()
        for carried in list(self._accepted.values()):
            carried.cancelled()
        self._reader.shutdown(wait=False, cancel_futures=True)
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _hand_back(self) -> None:
        """End what has not begun: at another replica it loses nothing, here it would wait to be cut off."""
        for carried in list(self._accepted.values()):
            if carried.state is State.WAITING and not self._begun(carried):
                self._metrics.returned.inc()
                with self._faults.of(carried, "drain"):
                    carried.returned()

    def _begun(self, carried: Carried) -> bool:
        """Whether the engine computes it, as far as is known."""
        if self._gate is not None and self._gate.holds(carried.key):
            return False
        return self._mirror.computes(carried.key, shows_output=carried.streams)

    def tick(self) -> None:
        """What time alone brings about; called every second or so."""
        now_s = self._now_s()
        self._metrics.telemetry_live.set(self._mirror.check(now_s))
        self._rest(now_s)
        self._lose_overdue(now_s)
        self._metrics.stands(self._standing(), len(self._accepted), self.engine_ready, self.draining)
        for session in self._sessions:
            session.outbox.nudge()

    def _lose_overdue(self, now_s: float) -> None:
        """End requests that the engine has taken and does not go on with, however well it says it is."""
        if not self._accepted:
            return
        now = self._standing()
        for carried in list(self._accepted.values()):
            if self._gate is not None and self._gate.holds(carried.key):
                continue
            expected, signs = _expected(carried, now), None
            for key in carried.keys:  # until one that is not overdue is found
                signs = self._mirror.signs(key, carried.streams)
                if signs is None or not is_overdue(signs, expected, now_s, self.bounds.silence_s):
                    signs = None
                    break
            if signs is None:
                continue
            log.warning(
                "request lost in the engine",
                request=carried.request_id,
                at=signs.where.value,
                silent_s=round(now_s - signs.own_s, 1),
            )
            self._metrics.stalled.labels(carried.tier, signs.where.value).inc()
            with self._faults.of(carried, "engine"):
                carried.engine_lost()
            self.engine_lost()

    def _rest(self, now_s: float) -> None:
        """With nothing to do there is nothing to learn from, and what was learned gets old."""
        if not self._accepted:
            self._learned.rest(now_s - self._ticked_s)
            self._metrics.time_scale.set(self._learned.model.scale)
        self._ticked_s = now_s

    def prompt_known(self, key: str, prompt_tokens: int) -> None:
        """The engine has revealed how long a request's prompt is."""
        if (carried := self._accepted.get(key)) and carried.body is not None and carried.body.prompts == 1:
            self._learned.prompt(carried.body, prompt_tokens)
            carried.prompt_told = True

    def _standing(self) -> Snapshot:
        return self._mirror.snapshot(self._now_s(), self._learned.model)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _take_long(self, carried: Carried, submit: wire.Submit, raw: bytes) -> None:
        """Take a request in whose body is read off the event loop. It may end before that."""
        self._reading += 1
        try:
            with self._faults.of(carried, "submit"):
                most = self._serving.max_sequences
                read = await asyncio.wrap_future(self._reader.submit(_read, submit.endpoint, raw, most))
                if not carried.ended:
                    self._take(carried, submit, read)
        finally:
            self._reading -= 1

    def _take(self, carried: Carried, submit: wire.Submit, read: ClientBody | ApiError) -> None:
        """It waits for its verdict from here on, unless it cannot be served."""
        try:
            if isinstance(read, ApiError):
                raise read
            self._plan(carried, submit, read)
        except ApiError as error:
            carried.invalid(error)
        else:
            self._newcomers.add(carried)

    def _plan(self, carried: Carried, submit: wire.Submit, body: ClientBody) -> None:
        tier = self._serving.tiers.get(submit.tier)
        if tier is None:
            raise ApiError(
                400, f"this replica has no tier '{submit.tier}'", param="tier", code="unknown_tier"
            )
        check_times(submit)
        if error := over_context(body, self.max_model_len):
            raise error
        carried.body = body
        carried.job = job_of(
            submit,
            body,
            tier,
            self._learned,
            key=carried.key,
            context_tokens=self.max_model_len,
            delivery_s=self._serving.delivery_s,
            now_s=carried.arrived_s,
        )

    def _decide(self, new: Sequence[Carried]) -> None:
        """Give verdicts. A request of several answers is planned alone: it is taken whole or not at all."""
        one_each = [carried for carried in new if carried.sequences == 1]
        before = len(self._accepted)
        for group in (one_each, *([carried] for carried in new if carried.sequences > 1)):
            self._decide_group(group)
        if len(self._accepted) > before:
            self._spread()

    def _decide_group(self, new: Sequence[Carried]) -> None:
        """Give verdicts. Where planning breaks, each is planned alone, and who breaks it alone fails."""
        if not new:
            return
        try:
            verdicts = self._verdicts(new)
        except Exception:
            if len(new) > 1:
                for carried in new:
                    self._decide_group([carried])
                return
            with self._faults.of(new[0], "planning"):
                raise
            return
        for carried, verdict in zip(new, verdicts, strict=True):
            with self._faults.of(carried, "verdict"):
                self._tell(carried, verdict)

    def _verdicts(self, new: Sequence[Carried]) -> Sequence[Verdict]:
        """One for each: of several that ask for one answer each, or of one that asks for more."""
        jobs = [job for carried in new for job in carried.jobs]
        standing = Standing(self.draining, self.engine_ready, self._sequences, len(self._best_effort))
        began_s = perf_counter()
        view = self._mirror.view(self._now_s(), self._learned.model)
        verdicts = decide(self._serving.policy, view, jobs, standing, self.bounds.holds)
        self._metrics.planned(perf_counter() - began_s)
        if len(verdicts) != len(jobs):
            raise ValueError(f"{len(verdicts)} verdicts for {len(jobs)} answers")
        return verdicts if len(new) == len(jobs) else [for_all(verdicts)]

    def _spread(self) -> None:
        """Let all routers know what some have brought, before they decide by old news."""
        within_s = self.bounds.news_s * len(self._sessions)
        for session in self._sessions:
            session.outbox.news(within_s)

    def _tell(self, carried: Carried, verdict: Verdict) -> None:
        """Give a newcomer its verdict; one that is accepted stands in the mirror from here on."""
        word, reason = verdict_words(verdict)
        self._metrics.verdicts.labels(carried.tier, word, reason).inc()
        log.debug(word, request=carried.request_id, tier=carried.tier, reason=reason)
        if carried.job is not None and not isinstance(verdict, Rejected):
            carried.job = carried.job._replace(best_effort=isinstance(verdict, BestEffort))
            self._accept(carried)
        carried.decided(verdict)

    def _accept(self, carried: Carried) -> None:
        body = carried.body
        assert body is not None
        self._accepted[carried.key] = carried
        self._sequences += carried.sequences
        now_s, timed = self._now_s(), not body.stream
        known = (
            body.prompt_token_ids is not None and body.prompts == 1
        )  # of several, only the longest one's is
        for job in carried.jobs:
            if job.best_effort:
                self._best_effort.add(job.request.id)
            self._mirror.accept(job, now_s, prompt_known=known, timed=timed)

    async def _carry(self, carried: Carried) -> None:
        body, job = carried.body, carried.job
        with self._faults.of(carried, "carrying"):
            assert body is not None and job is not None
            if self._gate is not None:
                await self._gate.turn(carried.key)
            try:
                way = Way(self._engine, self._now_s, self.bounds)
                await carry(carried, job, self._sending(body, job), way)
            except EngineGone as gone:
                log.warning("engine lost", request=carried.request_id, cause=str(gone))
                self.engine_lost()

    def _sending(self, body: ClientBody, job: Job) -> Sending:
        if self._serving.reads_fields:
            return Sending(body.with_fields(to_fields(job, self._now_s())))
        asking = body.asking_usage() if self._engine.takes_stream_options else None
        return Sending(body.raw) if asking is None else Sending(asking, plain=body.raw)

    def _learn(self, carried: Carried) -> None:
        """An answer that has come whole tells how long answers are, and how fast."""
        self._metrics.ttft.labels(carried.tier).observe(carried.first_s - carried.arrived_s)
        if carried.tokens > 1:
            self._metrics.tpot.labels(carried.tier).observe(carried.tpot_s)
        if (usage := carried.usage) and carried.body is not None and carried.job is not None:
            prompts, answer_tokens = carried.body.prompts, usage.completion_tokens // carried.sequences
            if not carried.prompt_told and prompts == 1:
                self._learned.prompt(carried.body, usage.prompt_tokens)
            self._learned.answer(carried.job.request, usage.prompt_tokens // prompts, answer_tokens)

    def _changed(self) -> None:
        self.standing_changed()
        for session in self._sessions:
            session.outbox.nudge()


def _shares(carried: Carried, tokens: int) -> list[tuple[str, int]]:
    """The last tokens that passed, by answer. Those of several answers take turns, since they pass as one."""
    after, keys = carried.tokens, carried.keys
    before, last = after - tokens, len(keys) - 1
    return [
        (key, (after + last - at) // len(keys) - (before + last - at) // len(keys))
        for at, key in enumerate(keys)
    ]


def _expected(carried: Carried, now: Snapshot) -> Expected:
    """What the planner forecasts for a request that it has accepted."""
    assert carried.job is not None
    first_s, step_s = 0.0, now.step_s
    if isinstance(verdict := carried.verdict, Admitted):
        first_s, step_s = verdict.ttft_predicted_s, max(step_s, verdict.tpot_predicted_s)
    return Expected(first_s, step_s, now.work_s, carried.job.request.max_output_tokens)


def _read(endpoint: wire.Endpoint.ValueType, raw: bytes, most_sequences: int) -> ClientBody | ApiError:
    """The body, or why it cannot be served: as a value, so that none is left behind by a cancel."""
    try:
        return read_body(endpoint, raw, most_sequences)
    except ApiError as error:
        return error
