"""The router's end of the session with one replica, maintained while the replica is in the set.

A link connects, asks the replica for its description, and opens the session. Events of a frame are delivered
to their requests in one pass. When the connection breaks, every request on it ends as `Lost`, and the link
reconnects with exponential backoff until it is cancelled.

No message of a replica ends a link or the process. Fields of a later version are ignored. An invalid
description prevents the session, an invalid snapshot stops new requests until the next valid one, and an
invalid event fails only its own request.

A replica may also stop responding while its connection is open. HTTP/2 pings detect an unreachable host, an
unanswered query for its description detects a hung process, and meanwhile `Ejection` stops new requests. A
request without any message for far longer than forecast is ended, even if the replica sends other messages.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from math import inf

import structlog
from penstock_core.domain.verdict import Admitted, BestEffort, Reason, Rejected
from penstock_core.forecast.snapshot import is_valid
from penstock_core.routing.progress import longest_silence_s
from penstock_core.routing.replica_load import ReplicaLoad, estimated_tokens
from penstock_proto import replica_pb2 as wire
from penstock_proto.replica_methods import DESCRIBE, DETOKENIZE, SESSION
from penstock_runtime.clock import monotonic
from penstock_runtime.grpc.client import Channel
from penstock_runtime.grpc.status import RpcError

from penstock_routing.connections.backoff import Backoff
from penstock_routing.connections.replica_channel import Connect
from penstock_routing.discovery.endpoints import Condition
from penstock_routing.replicas import wire_conversion
from penstock_routing.replicas.cached_prefixes import CachedPrefixes
from penstock_routing.replicas.ejection import Ejection
from penstock_routing.replicas.known_load import KnownLoad
from penstock_routing.replicas.link_state import CONDITION_STATES, NO_SESSION, LinkState, reported_state
from penstock_routing.replicas.peer_placements import PeerPlacements
from penstock_routing.replicas.replica_description import ReplicaDescription, description_of
from penstock_routing.replicas.session_writer import Attempt, SessionWriter
from penstock_routing.replicas.upstream_request import Lost, UpstreamRequest

DETOKENIZE_S = 1.0
"""Longest wait for the text of some tokens."""

CONNECT_S = 5.0
"""Longest wait for a replica to describe itself."""

DESCRIBE_INTERVAL_S = 15.0
"""Interval between queries for the description, which changes when the engine is replaced."""

MOST_UNANSWERED = 2
"""Queries in a row without a description or any other message, after which the replica counts as lost."""

SWEEP_S = 5.0
"""Interval between checks for requests without progress."""

LONGEST_ANSWER_TOKENS = 2**17
"""Assumed longest answer of a replica that has not sent its longest sequence."""

log = structlog.get_logger()


class Unresponsive(Exception):
    """A replica that sends nothing although the connection is open."""


class ReplicaLink:
    """The session with one replica, and the replica's state as this process knows it.

    changed: called when the state changes.
    placed: called with the replica's name and each request's estimated prompt tokens.
    draw: returns a random number in [0, 1), to spread ejections.
    cached: prefixes that the replica reports as cached.
    description: the last description received.
    last_received_s: when the last frame was received.
    malformed: number of unusable messages.
    ejection: whether the replica is ejected. stalled: requests ended for lack of progress.
    """

    def __init__(
        self,
        name: str,
        address: str,
        connect: Connect,
        backoff: Backoff,
        *,
        changed: Callable[[], None] = lambda: None,
        placed: Callable[[str, int], None] = lambda replica, prompt_tokens: None,
        draw: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.name, self.address = name, address
        self._condition_state: LinkState | None = None
        self._changed, self._placed = changed, placed
        self.cached = CachedPrefixes().holder(name)
        self.description = ReplicaDescription()
        self.last_received_s = float("-inf")
        self.malformed = self.stalled = 0
        self.ejection = Ejection(name, draw)
        self._connect, self._backoff = connect, backoff
        self._known_load = KnownLoad(name)
        self._state = LinkState.CONNECTING
        self._upstreams: dict[int, UpstreamRequest] = {}
        self._last_why = ""
        self._ids = count(1)
        self._channel: Channel | None = None  # while there is a session
        self._writer = SessionWriter(monotonic)
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def state(self) -> LinkState:
        """The state, which is `READY` if the replica takes requests."""
        condition_state = self._condition_state
        return (
            self._state if condition_state is None or self._state is not LinkState.READY else condition_state
        )

    def set_condition(self, condition: Condition) -> None:
        """Set the condition of its endpoint."""
        self._condition_state = CONDITION_STATES.get(condition)

    @property
    def load(self) -> ReplicaLoad:
        """The last snapshot, and the requests sent since then, as far as this router knows."""
        known = self._known_load
        return known.with_peers(monotonic()) if known.peers.placements else known.own

    @property
    def peers(self) -> PeerPlacements:
        """Requests that other routers have just sent to the replica."""
        return self._known_load.peers

    def submit(
        self,
        attempt: Attempt,
        bound_bytes: int | None,
        on_overflow: Callable[[], None],
        verdict_within_s: float = inf,
    ) -> UpstreamRequest:
        """Send a request. Without a session, or without a verdict in time, it ends as `Lost`."""
        upstream = UpstreamRequest(next(self._ids), bound_bytes, on_overflow)
        if self._state in NO_SESSION:
            upstream.finish(Lost(self.name, "no connection", reached=False))
            return upstream
        self._upstreams[upstream.id] = upstream
        tokens = max(estimated_tokens(len(attempt.request.body)) - attempt.cached_tokens, 1)
        self._known_load.sent(upstream.id, tokens)
        self._placed(self.name, tokens)
        self._idle.clear()
        self._writer.submit(upstream.id, attempt)
        self.ejection.sent(upstream.id)
        if verdict_within_s < inf:
            upstream.verdict_timer = asyncio.get_running_loop().call_later(
                verdict_within_s, self._end_unanswered, upstream, monotonic()
            )
        return upstream

    def abandon(self, upstream: UpstreamRequest) -> None:
        """Give up a request. If it has not ended, cancel it at the replica."""
        upstream.stop_verdict_timer()
        if self._upstreams.get(upstream.id) is upstream:
            self._forget(upstream.id)
            self._writer.cancel(upstream.id)
            self.ejection.probe_cancelled(upstream.id)

    def answered(self, upstream: UpstreamRequest, answer: wire.EngineAnswer) -> None:
        """Report to the replica the state of an answer that this router reads from the engine."""
        if self._upstreams.get(upstream.id) is upstream:
            answer.id = upstream.id
            self._writer.answered(answer)

    def _end_unanswered(self, upstream: UpstreamRequest, sent_s: float) -> None:
        """End a request without a verdict: as rejected if the replica has sent other frames, else as lost."""
        self.ejection.failed()
        self.abandon(upstream)
        responds = self.last_received_s > sent_s
        upstream.finish(Rejected(Reason.QUEUE_FULL) if responds else Lost(self.name, "it does not respond"))

    async def detokenize(self, tokens: Sequence[int]) -> str | None:
        """Return the engine's text of tokens; None if it does not return it."""
        if self._channel is None:
            return None
        request = wire.DetokenizeRequest(tokens=tokens)
        try:
            async with asyncio.timeout(DETOKENIZE_S):
                reply = await self._channel.request(DETOKENIZE, request, wire.DetokenizeReply)
        except (RpcError, TimeoutError):
            return None
        return reply.text

    async def idle(self) -> None:
        """Wait until no request is in progress."""
        await self._idle.wait()

    async def run(self) -> None:
        """Maintain the session until cancelled."""
        while True:
            try:
                async with self._connect(self.address) as channel:
                    await self._session(channel)
                why = "the replica ended the session"
            except RpcError as error:
                why = str(error)
            except (Unresponsive, TimeoutError):
                why = "it is connected but does not respond"
            except wire_conversion.MalformedMessage as error:
                self.malformed += 1
                why = str(error)
            except Exception as error:  # one replica must not end the router
                why = f"{type(error).__name__}: {error}"
                log.exception("replica link failed", replica=self.name)
            finally:
                self._end_session("the session ended")
            await self._wait_to_retry(why)

    async def _wait_to_retry(self, why: str) -> None:
        if why != self._last_why:  # log once for each cause, not for each attempt
            log.warning("replica not connected", replica=self.name, address=self.address, why=why)
            self._last_why = why
        await asyncio.sleep(self._backoff.wait_s())

    async def _session(self, channel: Channel) -> None:
        await self._describe(channel)
        session, self._channel = channel.open(SESSION), channel
        tasks = [
            asyncio.create_task(self._writer.run(session.write)),
            asyncio.create_task(self._keep_described(channel)),
            asyncio.create_task(self._end_stalled()),
        ]
        for task in tasks:
            task.add_done_callback(lambda _: session.cancel())
        try:
            await session.receive(wire.ReplicaFrame, self._deliver)
        finally:
            session.cancel()
            self._channel = None
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            errors = [task.exception() for task in tasks if not task.cancelled()]
        for error in errors:
            if error is not None:
                raise error

    async def _keep_described(self, channel: Channel) -> None:
        """Refresh the description periodically. Raises Unresponsive if the replica sends nothing any more.

        A replica that is too busy to send its description, but sends frames, keeps its session.
        """
        unanswered = 0
        while True:
            await asyncio.sleep(DESCRIBE_INTERVAL_S if unanswered == 0 else 0)
            unanswered = 0 if await self._responds(channel) else unanswered + 1
            if unanswered == MOST_UNANSWERED:
                raise Unresponsive

    async def _responds(self, channel: Channel) -> bool:
        """Query the description. Return whether it, or another message, was received in time."""
        sent_s = monotonic()
        try:
            await self._describe(channel)
        except wire_conversion.MalformedMessage as error:  # the previous one stays
            self._count_malformed(str(error))
        except RpcError:  # an error is a response, and a broken connection also ends the session
            pass
        except TimeoutError:
            return self.last_received_s >= sent_s
        return True

    async def _end_stalled(self) -> None:
        """End requests without a message for far longer than forecast."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now_s = monotonic()
            for upstream in list(self._upstreams.values()):
                silent_s = now_s - upstream.last_received_s
                if silent_s > upstream.longest_silence_s:
                    self.stalled += 1
                    self.abandon(upstream)
                    upstream.finish(Lost(self.name, f"no message about the request for {silent_s:.0f} s"))

    async def _describe(self, channel: Channel) -> None:
        async with asyncio.timeout(CONNECT_S):
            reply = await channel.request(DESCRIBE, wire.DescribeRequest(), wire.DescribeReply)
        self.description = description_of(self.address, reply)

    def _count_malformed(self, why: str) -> None:
        """Count a malformed message, and log it unless the last line was the same."""
        self.malformed += 1
        if why != self._last_why:
            log.warning("malformed message", replica=self.name, why=why)
            self._last_why = why

    def _deliver(self, frame: wire.ReplicaFrame) -> None:
        self.last_received_s = monotonic()
        upstreams = self._upstreams
        for event in frame.events:
            upstream = upstreams.get(event.id)
            if upstream is None:  # it was cancelled after the event was sent
                continue
            upstream.last_received_s = self.last_received_s
            try:
                if event.HasField("output"):
                    output = event.output
                    if not upstream.put(output.data, output.tokens):
                        self.abandon(upstream)
                else:
                    self._progress(event, upstream)
            except Exception:  # a fault of one request ends that request
                log.exception("event not handled", replica=self.name, id=event.id)
                self.abandon(upstream)
                upstream.finish(wire_conversion.INTERNAL)
        if frame.HasField("snapshot"):
            self._observe(frame.snapshot)
        if frame.HasField("cached_prefixes"):
            self.cached.update(frame.cached_prefixes)

    def _progress(self, event: wire.Event, upstream: UpstreamRequest) -> None:
        """Apply a verdict or an end."""
        kind = event.WhichOneof("kind")
        if kind in ("admitted", "best_effort"):
            self._known_load.answered(event.id)
            self.ejection.answered(self.last_received_s)
            upstream.engine_fields = event.engine_fields
            self._note_accepted(upstream, wire_conversion.accepted(event))
        elif kind is not None:  # None: an event of a later version
            self._forget(event.id)
            self.ejection.answered(self.last_received_s)
            upstream.finish(wire_conversion.end(event, kind))

    def _note_accepted(self, upstream: UpstreamRequest, verdict: Admitted | BestEffort) -> None:
        silent_tokens = 1 if upstream.streamed else self.description.max_model_len or LONGEST_ANSWER_TOKENS
        upstream.longest_silence_s = longest_silence_s(verdict, silent_tokens)
        upstream.accepted(verdict)

    def _observe(self, message: wire.Snapshot) -> None:
        snapshot = wire_conversion.snapshot(message)
        if is_valid(snapshot):
            self._known_load.observe(snapshot, self.last_received_s)
            state = reported_state(message)
        else:
            self.malformed += 1
            state = LinkState.MALFORMED
        if state is not self._state:
            log.info("replica", replica=self.name, state=state.value)
            self._state, self._last_why = state, ""
            self._backoff.reset()
            self._changed()

    def _forget(self, id: int) -> None:
        del self._upstreams[id]
        self._known_load.answered(id)
        if not self._upstreams:
            self._idle.set()

    def _end_session(self, why: str) -> None:
        self.cached.forget()
        drained = self._state is LinkState.DRAINING
        if self._state is not LinkState.CONNECTING:
            self._state = LinkState.LOST
            self._changed()
        if self._known_load.unanswered:
            self.ejection.failed()
        lost, self._upstreams = self._upstreams, {}
        unsent, self._writer = self._writer, SessionWriter(monotonic)
        self._known_load.forget_sent()
        self._idle.set()
        for upstream in lost.values():
            reached = not unsent.holds(upstream.id)
            upstream.finish(Lost(self.name, why, reached, drained))
