"""A stream that is cut anywhere continues at a real vLLM to the same answer, by the router's code.

The tokens of the tiny model are bytes, and its answers are random, so most of its characters are broken or
several tokens long: the hardest text there is.
"""

from typing import Any

import orjson
import pytest
from penstock_proto import replica_pb2 as wire
from penstock_router.moving.continued_body import continued_body, requesting_ids, tokens_left
from penstock_router.moving.continued_events import ContinuedEvents, closing_events
from penstock_router.moving.transcript import Transcript
from served.server import NAME, Server

CHAT, COMPLETION = wire.ENDPOINT_CHAT_COMPLETIONS, wire.ENDPOINT_COMPLETIONS
PATHS = {CHAT: "/v1/chat/completions", COMPLETION: "/v1/completions"}
TOKENS = 48
ASKED: dict[str, Any] = {
    "model": NAME,
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0,
    "max_tokens": TOKENS,
    "ignore_eos": True,
}
TEXTS = ["How does a penstock work?", "Straße, 東京, 🚰"]
HEAD = ("id", "object", "created", "model")


def asked(endpoint: "wire.Endpoint.ValueType", text: str, **more: Any) -> dict[str, Any]:
    prompt: dict[str, Any] = (
        {"prompt": text} if endpoint == COMPLETION else {"messages": [{"role": "user", "content": text}]}
    )
    return {**ASKED, **prompt, **more}


def read(transcript: Transcript, events: list[bytes]) -> list[bytes]:
    """Return the bytes that a client gets of these events."""
    out: list[bytes] = []

    def relay(data: bytes, tokens: int) -> bool:
        out.append(data)
        return True

    for event in events:
        relaying = transcript.relay_through(relay)
        if relaying is None or not relaying(event, 1):
            out += transcript.read(event)
    return out


async def kept_of(transcript: Transcript, engine: Server) -> list[int]:
    """The tokens whose text the client has, as the router finds out by asking an engine."""
    kept = transcript.kept_ids()
    for end in range(len(kept), len(kept) - transcript.uncertain_tokens() - 1, -1):
        if transcript.uncertain_tokens() == 0:
            break
        if not (await engine.detokenized([*transcript.prompt_ids, *kept[:end]][-24:])).endswith("\ufffd"):
            return kept[:end]
    return kept


async def moved(
    engine: Server, endpoint: "wire.Endpoint.ValueType", body: dict[str, Any], events: list[bytes]
) -> bytes:
    """Return the bytes that a client gets of a stream that is cut after these events and continued."""
    transcript = Transcript()
    out = b"".join(read(transcript, events))
    kept = await kept_of(transcript, engine)
    left = tokens_left(endpoint, body, len(kept))
    if transcript.finished or (left is not None and left <= 0):
        usage = None if transcript.usage_sent else (len(transcript.prompt_ids), transcript.tokens())
        finished, chat = transcript.finished, endpoint == CHAT
        return out + closing_events(transcript.head(), chat=chat, finished=finished, usage=usage)
    if kept:
        rest = continued_body(endpoint, body, transcript.prompt_ids, kept)
        endpoint_of_rest = COMPLETION
    else:
        rest, endpoint_of_rest = orjson.dumps({**body, "return_token_ids": True}), endpoint
    joined = ContinuedEvents(transcript.head(), endpoint == CHAT, len(kept))
    transcript.continue_after(kept)
    for event in read(transcript, await engine.raw_events(PATHS[endpoint_of_rest], rest)):
        out += joined.rewritten(event)
    return out


def chunks_of(stream: bytes) -> list[dict[str, Any]]:
    events = [event for event in stream.split(b"\n\n") if event and not event.endswith(b"[DONE]")]
    return [orjson.loads(event[6:]) for event in events]


def content_of(stream: bytes) -> str:
    choices = [choice for chunk in chunks_of(stream) for choice in chunk["choices"]]
    return "".join(one["text"] if "text" in one else one["delta"].get("content") or "" for one in choices)


def merged(events: list[bytes], sizes: tuple[int, ...]) -> list[bytes]:
    """Events as a busy API server writes them: the text and ids of several steps in one."""
    out, queue = [events[0]], events[1:]
    while queue:
        size = sizes[len(out) % len(sizes)]
        taken, queue = queue[:size], queue[size:]
        chunks = chunks_of(b"".join(taken))
        tokens = [chunk for chunk in chunks if chunk["choices"] and chunk["choices"][0].get("token_ids")]
        if len(tokens) != len(taken):
            out += taken
            continue
        whole = orjson.loads(orjson.dumps(tokens[-1]))
        choice = whole["choices"][0]
        choice["token_ids"] = [id for chunk in tokens for id in chunk["choices"][0]["token_ids"]]
        text = content_of(b"".join(taken))
        if "text" in choice:
            choice["text"] = text
        else:
            choice["delta"]["content"] = text
        out.append(b"data: " + orjson.dumps(whole) + b"\n\n")
    return out


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETION], ids=["chat", "completion"])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("sizes", [(1,), (3, 1, 2)], ids=["each token", "merged"])
async def test_a_stream_cut_after_any_event_continues_to_the_same_answer(
    endpoint: "wire.Endpoint.ValueType", text: str, sizes: tuple[int, ...], plain: Server
) -> None:
    body = asked(endpoint, text)
    whole = b"".join(await plain.raw_events(PATHS[endpoint], orjson.dumps(body)))
    with_ids = requesting_ids(orjson.dumps(body))
    assert with_ids is not None
    events = merged(await plain.raw_events(PATHS[endpoint], with_ids), sizes)
    assert content_of(b"".join(read(Transcript(), events))) == content_of(whole)
    for cut in range(1, len(events), 1 if sizes == (1,) else 2):
        stream = await moved(plain, endpoint, body, events[:cut])
        chunks = chunks_of(stream)
        assert content_of(stream) == content_of(whole), cut
        assert chunks[-1]["usage"] == chunks_of(whole)[-1]["usage"]
        assert len({tuple(chunk[name] for name in HEAD) for chunk in chunks}) == 1
        assert stream.count(b'"role":"assistant"') == (endpoint == CHAT)
        reasons = [one["finish_reason"] for chunk in chunks for one in chunk["choices"]]
        assert [reason for reason in reasons if reason] == ["length"]
        assert b"token_ids" not in stream.replace(b'"prompt_token_ids":null,', b"")
        assert stream.endswith(b"data: [DONE]\n\n")
