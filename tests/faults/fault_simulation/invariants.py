"""Invariants of every run. Each function returns what is broken, as lines that begin with the number in
docs/invariants.md.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

import orjson
from fault_simulation.clients import Answer
from fault_simulation.processes import EngineProcess, PickerProcess, RouterProcess, SidecarProcess
from penstock_core.routing.replica_load import estimated_tokens
from penstock_pool import Pool
from penstock_routing.replicas.replica_link import ReplicaLink
from penstock_routing.settings import settings_of
from penstock_sidecar.http.http_owner import HttpOwner
from penstock_simulator.http.request_body import ApiEndpoint

DONE = b"[DONE]"

Front = RouterProcess | PickerProcess

ON_ITS_WAY_S = 5.0
"""Longest time that an event takes to a client that reads."""

WAYS = 20
"""Packets one after another, at most, from a client's request to its first token, some of them in pieces."""


def broken_answer(answer: Answer, *, may_be_cut: bool) -> Iterator[str]:
    """Yield the errors in one client's answer. may_be_cut: it needs no end."""
    who = answer.plan.id
    if answer.left or (may_be_cut and not answer.whole):
        yield from _begun(answer)
        return
    if answer.error:
        yield f"1 {who}: {answer.error}"
    if not answer.whole:
        yield f"1 {who}: its answer has no end (status {answer.status}, {len(answer.body)} bytes)"
    if answer.excess:
        yield f"1 {who}: bytes behind the end: {answer.excess[:80]!r}"
    if answer.headers.get(b"x-request-id", who.encode()) != who.encode():
        yield f"4 {who}: the answer is of {answer.headers[b'x-request-id']!r}"
    if answer.whole and answer.status == 200:
        yield from _broken_text(answer)
    elif answer.whole:
        yield from _broken_error(answer)


def broken_service(answer: Answer, well: list[str], pool: Pool) -> Iterator[str]:
    """Yield where a request was not served, or cut, although a replica could have served it.

    well: replicas that no fault has touched for long, and that the router had in service.
    """
    if not answer.whole or (answer.status == 200 and not error_of(answer)):
        return
    message = str(error_of(answer).get("message"))
    if error_of(answer).get("code") in ("rate_limit_exceeded", "router_full"):
        return
    most = settings_of(pool).max_moves
    spent = f"has been moved {most} times" in message or "replicas were lost" in message
    if well and not spent and (most or answer.status != 200):
        yield f"5 {answer.plan.id}: {', '.join(well)} was well: status {answer.status}: {message}"


def broken_wait(answer: Answer, pool: Pool) -> Iterator[str]:
    """Yield where a stream was cut because no replica was in service, without having waited for one."""
    message = str(error_of(answer).get("message")) if answer.whole and answer.status == 200 else ""
    *_, last_s, error_s = (answer.sent_s, answer.sent_s, *answer.times_s)
    waited_s = error_s - last_s
    if "no replica is in service" in message and waited_s < settings_of(pool).move_wait_s - ON_ITS_WAY_S:
        yield f"5 {answer.plan.id}: cut after {waited_s:.1f} s: {message}"


def broken_refusal(answer: Answer, well: list[str]) -> Iterator[str]:
    """Yield where a router refused a request because it had lost all replicas, although one was well.

    well: replicas that no fault has touched for long, and that the router has had in service. After it was
        stopped, or its clock jumped, it reaches them again at once.
    """
    if well and answer.whole and answer.status == 503 and error_of(answer).get("code") == "no_replicas":
        yield f"5 {answer.plan.id}: {', '.join(well)} was well: refused without a wait for a lost replica"


def missed_slo(answer: Answer, pool: Pool, delay_s: float) -> Iterator[str]:
    """Yield where an admitted request did not keep its SLO, beyond what its way through the network takes."""
    slo = pool.tiers()[answer.plan.tier].slo
    assert slo.ttft_s is not None and slo.tpot_s is not None
    way_s = WAYS * delay_s
    times_s, tokens = answer.times_s, answer.plan.body["max_tokens"]
    first_s = times_s[0] - answer.sent_s
    if first_s > slo.ttft_s + way_s:
        yield f"11 {answer.plan.id} of {answer.plan.tier}: its first token came after {first_s:.3f} s"
    if tokens > 1 and (times_s[-1] - times_s[0] - way_s) / (tokens - 1) > slo.tpot_s:
        tpot_s = (times_s[-1] - times_s[0]) / (tokens - 1)
        yield f"11 {answer.plan.id} of {answer.plan.tier}: its {tokens} tokens took {tpot_s:.4f} s each"


def broken_bounds(
    fronts: Iterable[Front], sidecars: Iterable[SidecarProcess], engines: Iterable[EngineProcess]
) -> Iterator[str]:
    """Yield bounds that do not hold at this moment."""
    for front in fronts:
        if isinstance(front, RouterProcess):
            budget = front.app._request_path._budget
            if not 0 <= budget.held_bytes <= budget.bound_bytes:
                yield f"7 {front.host.name}: {budget.held_bytes} bytes held"
            for name, ledger in front.app._request_path._intake._limits._ledgers.items():
                if not 0 <= ledger._open <= ledger._max_concurrent:
                    yield f"7 {front.host.name}: {ledger._open} requests of {name} at once"
    for sidecar in sidecars:
        if sidecar.replica.unfinished > sidecar.replica._bounds.requests:
            yield f"7 {sidecar.host.name}: {sidecar.replica.unfinished} requests"
    for engine in engines:
        state = engine.loop.state
        if not 0 <= state.free_blocks <= state.total_blocks or state.running_count > state.limits.running:
            yield f"7 {engine.host.name}: {state.free_blocks} blocks free, {state.running_count} running"


def orphans_of(links: Sequence[ReplicaLink], sidecar: SidecarProcess, engine: EngineProcess) -> Iterator[str]:
    """Yield a sidecar's requests that no router or engine has, and an engine's that its sidecar has not.

    Ids are of each router's own, so it is counted how many requests have one.
    """
    replica, name = sidecar.replica, sidecar.host.name
    requests = Counter(each.id for session in replica._sessions for each in session._requests.values())
    for id in requests - Counter(id for link in links for id in link._upstreams):
        yield f"{name} carries a request {id}, and no router does"
    of_gateways = [each for each in replica.accepted._requests.values() if isinstance(each._owner, HttpOwner)]
    if len(of_gateways) > sidecar.of_gateways:
        yield f"{name} carries {len(of_gateways)} requests over HTTP, and answers {sidecar.of_gateways}"
    calls = {id for connection in sidecar.engines.open for id in connection.calls}
    for id in calls ^ engine.calls._open.keys():
        yield f"{name if id in calls else engine.host.name} carries call {id}, and its peer does not"
    known = {each.request_id for each in replica.accepted._requests.values()}
    if replica._forwarder._reads_fields:
        known = set(replica.accepted._requests)
    for job_id in {
        each.removeprefix("cmpl-").removeprefix("chatcmpl-") for each in engine.loop._streams
    } - known:
        yield f"{engine.host.name} generates {job_id}, and its sidecar does not carry it"


def broken_limits(fronts: Iterable[Front], most: int) -> Iterator[str]:
    """Yield where routers that have shared limits all the time admit more than these together."""
    limits = [front.limits for front in fronts if isinstance(front, RouterProcess)]
    if (open := sum(use.open for each in limits if each is not None for use in each._uses.values())) > most:
        yield f"12 {open} requests of an application at once, of {most}"


def broken_minute(answers: Iterable[Answer], most: int | None) -> Iterator[str]:
    """Yield where more requests were accepted than the limit of a minute."""
    served = [answer for answer in answers if answer.status not in (0, 429)]
    if most is not None and len(served) > most:
        yield f"12 {len(served)} requests of an application in a minute, of {most}"


def broken_tokens(answers: Iterable[Answer], most: int | None, counted: int) -> Iterator[str]:
    """Yield where answers have more tokens than the limit of a minute, or than have been counted.

    counted: in the Redis. Prompts' tokens are estimated until requests end, and may be more.
    """
    whole = [
        answer.plan for answer in answers if answer.whole and answer.status == 200 and not error_of(answer)
    ]
    used = sum(plan.prompt_tokens + plan.body["max_tokens"] for plan in whole)
    more = sum(max(plan.prompt_tokens - estimated_tokens(plan.body_bytes), 0) for plan in whole)
    if most is not None and used > most + more:
        yield f"12 {used} tokens of an application in a minute, of {most}"
    if used > counted:
        yield f"12 {used} tokens of an application, of which {counted} were counted"


def broken_caches(
    fronts: Iterable[Front], sidecars: Mapping[str, SidecarProcess], engines: Mapping[str, EngineProcess]
) -> Iterator[str]:
    """Yield where, at rest, a process counts as cached what is not.

    Of an engine that reports nothing a sidecar estimates what is cached, from earlier answers.
    """
    for front in fronts:
        for link in front.replica_set.links:
            sidecar = sidecars.get(link.name)
            if sidecar is not None:
                reported = set(sidecar.replica._mirror.prefixes.reported._prompts)
                if differing := len(link.cached._keys ^ reported):
                    yield f"13 {front.host.name} and {link.name} differ in {differing} cached prefixes"
    for name, sidecar in sidecars.items():
        index, cached = sidecar.replica._mirror.prefixes, engines[name].loop.state.cached
        instance, _ = index._cache_version
        if not instance or cached is None:
            continue
        for id, known in index._known.items():
            served = cached.served._served.get(id)
            blocks = 0 if served is None else len(cached.cache.pool.find(served.keys))
            counted, tokens = known.cached_tokens, blocks * cached.cache.block_tokens
            if counted > tokens:
                yield f"13 {sidecar.host.name} counts {counted} cached tokens of {id}, and there are {tokens}"


def error_of(answer: Answer) -> dict[str, Any]:
    """Return the error that a client got, as a status or as an event; empty where it got none."""
    found = orjson.loads(answer.body) if answer.status != 200 else None
    for event in _events(answer.body) if answer.status == 200 and answer.plan.body["stream"] else ():
        found = event if isinstance(event, dict) and "error" in event else found
    return dict(found["error"]) if found is not None and "error" in found else {}


def _broken_error(answer: Answer) -> Iterator[str]:
    """Check that an error is whole and has a message."""
    try:
        error = error_of(answer)
    except ValueError:
        error = {}
    if not error.get("message"):
        yield f"1 {answer.plan.id}: status {answer.status} without an error: {answer.body[:80]!r}"


def _begun(answer: Answer) -> Iterator[str]:
    """Yield errors unless a disconnected client has a prefix of its answer."""
    if answer.status == 200 and answer.plan.body["stream"]:
        whole, _, _ = answer.body.rpartition(b"\n\n")
        text = _text(answer, list(_events(whole)))
        if not answer.plan.answer.startswith(text):
            yield f"3 {answer.plan.id}: got {text[-60:]!r} of {answer.plan.answer!r}"


def _broken_text(answer: Answer) -> Iterator[str]:
    """A whole answer is the expected one, token for token."""
    plan = answer.plan
    if not plan.body["stream"]:
        yield from _broken_whole(answer)
        return
    try:
        events = list(_events(answer.body))
    except ValueError as error:
        yield f"3 {plan.id}: an event is not JSON: {error}: {answer.body[-200:]!r}"
        return
    text = _text(answer, events)
    ended_in_error = bool(error_of(answer))
    if not plan.answer.startswith(text) or (text != plan.answer and not ended_in_error):
        yield f"3 {plan.id}: {_difference(text, plan.answer)}"
    if ended_in_error:
        return
    if events.count(DONE) != 1 or events[-1] != DONE:
        yield f"2 {plan.id}: {events.count(DONE)} [DONE], last event {events[-1]!r}"
    yield from _broken_frame(answer, [event for event in events if isinstance(event, dict)])


def _broken_frame(answer: Answer, events: list[dict[str, Any]]) -> Iterator[str]:
    """One answer has one id, one end, and a usage that adds up."""
    who = answer.plan.id
    for name in ("id", "created", "model", "object"):
        if len({event.get(name) for event in events}) != 1:
            yield f"3 {who}: {name} changes: {sorted({str(event.get(name)) for event in events})}"
    reasons = [choice["finish_reason"] for event in events for choice in event["choices"]]
    if [reason for reason in reasons if reason] != ["length"]:
        yield f"2 {who}: finish reasons {[reason for reason in reasons if reason]}"
    if any(
        "token_ids" in choice or "prompt_token_ids" in choice
        for event in events
        for choice in event["choices"]
    ):
        yield f"3 {who}: token ids that it has not asked for"
    usages = [event["usage"] for event in events if event.get("usage")]
    if bool(usages) != bool(answer.plan.body.get("stream_options")) or len(usages) > 1:
        yield f"3 {who}: {len(usages)} usages"
    for usage in usages:
        yield from _broken_usage(answer, usage)


def _broken_whole(answer: Answer) -> Iterator[str]:
    plan, document = answer.plan, orjson.loads(answer.body)
    choice = document["choices"][0]
    text = choice["message"]["content"] if plan.endpoint is ApiEndpoint.CHAT else choice["text"]
    if text != plan.answer:
        yield f"3 {plan.id}: {_difference(text, plan.answer)}"
    yield from _broken_usage(answer, document["usage"])


def _broken_usage(answer: Answer, usage: dict[str, Any]) -> Iterator[str]:
    plan = answer.plan
    tokens = plan.body["max_tokens"]
    counted = (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"])
    if counted != (plan.prompt_tokens, tokens, plan.prompt_tokens + tokens):
        yield f"3 {plan.id}: usage {counted} for {plan.prompt_tokens} + {tokens} tokens"


def _difference(text: str, expected: str) -> str:
    same = takewhile(lambda pair: pair[0] == pair[1], zip(text, expected, strict=False))
    at = len(list(same))
    return (
        f"{len(text) / 4:g} of {len(expected) / 4:g} tokens; "
        f"at token {at / 4:g} {text[at : at + 12]!r}, not {expected[at : at + 12]!r}"
    )


def _events(body: bytes) -> Iterator[Any]:
    """Yield each event of a stream, parsed; DONE as it is. Raises ValueError."""
    for event in body.split(b"\n\n"):
        data = event.removeprefix(b"data: ")
        if data:
            yield DONE if data == DONE else orjson.loads(data)


def _text(answer: Answer, events: list[Any]) -> str:
    choices = [choice for event in events if isinstance(event, dict) for choice in event.get("choices", ())]
    if answer.plan.endpoint is ApiEndpoint.CHAT:
        return "".join(choice["delta"].get("content") or "" for choice in choices)
    return "".join(choice["text"] for choice in choices)


def broken_rest(
    fronts: Collection[Front], sidecars: Iterable[SidecarProcess], engines: Iterable[EngineProcess]
) -> Iterator[str]:
    """Yield the state that remains without requests."""
    for front in fronts:
        yield from _left_at_front(front)
    for sidecar in sidecars:
        yield from _left_at_sidecar(sidecar, len(fronts))
    for engine in engines:
        state = engine.loop.state
        yield from _left(
            engine.host.name,
            running=state.running_count,
            waiting=state.waiting_count,
            blocks=state.total_blocks - state.free_blocks,
            streams=len(engine.loop._streams),
            answering=len(engine.server.tasks),
            calls=len(engine.calls._open),
        )


def _left_at_front(front: Front) -> Iterator[str]:
    yield from _left(
        front.host.name, answering=len(front.server.tasks), connections=len(front.server.connections)
    )
    if isinstance(front, RouterProcess):
        budget, direct = front.app._request_path._budget, front.app._request_path._placement._direct
        yield from _left(
            front.host.name,
            open=front.app._open,
            held=front.app._room.waiting,
            held_bytes=budget.held_bytes,
            holders=len(budget._holders),
            at_engines=0 if direct is None else len(direct._tasks),
        )
        ledgers = front.app._request_path._intake._limits._ledgers.values()
        yield from _left(front.host.name, of_applications=sum(ledger._open for ledger in ledgers))
        if front.limits is not None:
            shared = sum(use.open for use in front.limits._uses.values())
            yield from _left(front.host.name, shared=shared, not_shared=not front.limits.connected)
    for link in front.replica_set.links:
        yield from _left(
            f"{front.host.name}'s link to {link.name}",
            carried=len(link._upstreams),
            unanswered=len(link._known_load.unanswered),
            sent=link._known_load.own.sent,
            sent_tokens=link._known_load.own.sent_tokens,
            unwritten=len(link._writer._attempts) + len(link._writer._cancels),
            not_idle=not link._idle.is_set(),
        )
        if link.state != "ready":
            yield f"6 {front.host.name}'s link to {link.name}: {link.state.value}"


def _left_at_sidecar(sidecar: SidecarProcess, fronts: int) -> Iterator[str]:
    replica = sidecar.replica
    yield from _left(
        sidecar.host.name,
        unfinished=replica.unfinished,
        best_effort=replica.accepted.best_effort,
        sequences=replica.accepted.sequences,
        mirrored=len(replica._mirror._accepted),
        of_sessions=sum(len(session._requests) for session in replica._sessions),
        forwarding=len(replica._forwarder._tasks),
        answering=len(sidecar.http.tasks),
        of_gateways=len(sidecar.http.connections),
        calls=sum(len(each.calls) for each in sidecar.engines.open),
    )
    if len(replica._sessions) != fronts:
        yield f"6 {sidecar.host.name}: {len(replica._sessions)} sessions of {fronts} routers"


def _left(where: str, **counts: float) -> Iterator[str]:
    for name, count in counts.items():
        if count:
            yield f"6 {where}: {name} is {count} at rest"
