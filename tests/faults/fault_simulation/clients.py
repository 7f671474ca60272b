"""Clients of the pool whose whole answer is known beforehand, token for token.

A simulated engine's answer follows from its prompt alone, so a client knows its request's text, whichever
engine and however many of them generate it.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httptools
import orjson
from fault_simulation.scenario import KEY, Scenario
from known_answers import known_answer, known_request
from penstock_simulator.http.request_body import ApiEndpoint

MODEL = "m"
FAULTS_S = 8.0
"""Clients come, and faults happen, within this time."""

BURST_S = 0.8
"""And within this in a busy run."""

LONG_WORDS = 3000
"""Of a long prompt in a busy run."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one client does.

    address: of the router or gateway that it asks.
    leaves_s: after its request it disconnects; None: it stays to the end.
    reads_after_s: it reads nothing of its answer before this; 0: it reads at once.
    """

    id: str
    begin_s: float
    address: str
    endpoint: ApiEndpoint
    body: dict[str, Any]
    tier: str
    leaves_s: float | None = None
    reads_after_s: float = 0.0

    @property
    def prompt_tokens(self) -> int:
        """The prompt's tokens, as the engine counts them."""
        return known_request(self.body).prompt_tokens

    @property
    def body_bytes(self) -> int:
        """The size of the request's body."""
        return len(orjson.dumps(self.body))

    @property
    def answer(self) -> str:
        """The answer's whole text."""
        return known_answer(self.body)


def plan_of(number: int, random: Random, scenario: Scenario, addresses: Sequence[str]) -> Plan:
    """Draw a client. addresses: of routers or gateways."""
    stream = random.random() < 0.8
    endpoint = random.choice((ApiEndpoint.CHAT, ApiEndpoint.COMPLETION))
    text = _prompt(number, random, scenario)
    prompt: dict[str, Any] = (
        {"messages": [{"role": "user", "content": text}]}
        if endpoint is ApiEndpoint.CHAT
        else {"prompt": text}
    )
    tokens = random.choice((1, 2, 20, 60, 100, 150, 400))
    body = {"model": MODEL, **prompt, "max_tokens": tokens, "ignore_eos": True, "stream": stream}
    if stream and random.random() < 0.5:
        body["stream_options"] = {"include_usage": True}
    return Plan(
        id=f"c{number}",
        begin_s=random.random() * (BURST_S if scenario.busy else FAULTS_S),
        address=random.choice(addresses),
        endpoint=endpoint,
        body=body,
        tier=random.choice(("chat", "chat", "tight", "batch")),
        leaves_s=random.random() * 2 if random.random() < 0.1 else None,
        reads_after_s=random.random() * 3 if random.random() < 0.1 else 0.0,
    )


def _prompt(number: int, random: Random, scenario: Scenario) -> str:
    """Draw a prompt: of a family, it begins as others do."""
    beginning = ""
    if scenario.families:
        family = Random(random.randrange(scenario.families))
        beginning = _words(family, family.randint(50, 250))
    longest = LONG_WORDS if scenario.busy and random.random() < 0.6 else 60
    return f"{beginning} {number} {_words(random, random.randint(1, longest))}"


def _words(random: Random, count: int) -> str:
    return " ".join(random.choice(("salt", "wind", "gulls", "tide", "rope")) for _ in range(count))


@dataclass(slots=True)
class Answer(asyncio.Protocol):
    """What one client got. times_s: when parts of the body came."""

    plan: Plan
    arrived: Callable[[], float]
    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""
    times_s: list[float] = field(default_factory=list)
    whole: bool = False
    lost: bool = False
    left: bool = False
    excess: bytes = b""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    error: str = ""
    sent_s: float = 0.0
    ended_s: float = 0.0
    transport: Any = None
    _parser: Any = None

    def connection_made(self, transport: Any) -> None:
        """Send the request."""
        self.transport, self._parser = transport, httptools.HttpResponseParser(self)
        body = orjson.dumps(self.plan.body)
        path = "/v1/chat/completions" if self.plan.endpoint is ApiEndpoint.CHAT else "/v1/completions"
        head = (
            f"POST {path} HTTP/1.1\r\nhost: router\r\nx-request-id: {self.plan.id}\r\n"
            f"authorization: Bearer {KEY}\r\n"
            f"x-penstock-tier: {self.plan.tier}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.sent_s = self.arrived()
        transport.write(head.encode() + body)

    def data_received(self, data: bytes) -> None:
        """Parse. What comes behind the answer is kept apart."""
        if self.whole:
            self.excess += data
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.error = f"not HTTP: {error}"
            self.transport.abort()

    def eof_received(self) -> bool:
        """Close."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        self.lost = True
        self.ended_s = self.ended_s or self.arrived()
        self.over.set()

    def pause_writing(self) -> None:
        """Requests are short."""

    def resume_writing(self) -> None:
        """Requests are short."""

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep it."""
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Keep the status."""
        self.status = self._parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        """Keep it."""
        self.body += piece
        self.times_s.append(self.arrived())

    def on_message_complete(self) -> None:
        """Note that it is whole."""
        self.whole, self.ended_s = True, self.arrived()
        self.over.set()


async def run_client(plan: Plan, answer: Answer) -> None:
    """Send one request, and wait for its planned end."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(plan.begin_s)
    host, _, port = plan.address.rpartition(":")
    try:
        transport, _ = await loop.create_connection(lambda: answer, host, int(port))
    except OSError as error:
        answer.error, answer.lost = str(error), True
        return
    if plan.reads_after_s:
        transport.pause_reading()
        loop.call_later(plan.reads_after_s, transport.resume_reading)
    if plan.leaves_s is not None:
        try:
            async with asyncio.timeout(plan.leaves_s):
                await answer.over.wait()
        except TimeoutError:
            answer.left = not answer.whole
        transport.abort()
        return
    await answer.over.wait()
    transport.abort()
