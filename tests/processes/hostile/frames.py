"""Invalid frames of one gRPC session from a router to a replica, as bytes.

Some are right and wrong in what they say (ids in use, endpoints that there are not, numbers that are none),
some are no messages at all, and some sessions end in the middle.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, nan
from random import Random
from typing import cast

from hostile.bodies import CHAT, make_body
from live.raw_http import chat
from penstock_proto import replica_pb2 as wire


@dataclass(frozen=True, slots=True)
class Frames:
    """The frames of a session. cancels: the call is cancelled behind the last one, else it ends in order."""

    frames: tuple[bytes, ...]
    cancels: bool


def make_frames(random: Random) -> Frames:
    """Return the frames of one session."""
    count = random.choice((0, 1, 1, 2, 3, 6))
    return Frames(tuple(random.choice(KINDS)(random) for _ in range(count)), random.random() < 0.5)


NUMBERS = (0.0, -1.0, 1e-320, 1e308, inf, -inf, nan, 5.0)
IDS = (0, 1, 1, 2, 2, 3, 2**32, 2**64 - 1)
TEXTS = ("", "chat", "batch", "nothing", "\x00", "é\U0001f600", "x" * 5000)


def _submit(random: Random) -> wire.Submit:
    """A submit that is mostly right."""
    body = make_body(random, 1 << 12)
    right = random.random() < 0.5
    submit = wire.Submit(
        id=random.choice(IDS),
        request_id=f"fuzz-{random.randrange(1000)}" if right else random.choice(TEXTS),
        endpoint=wire.ENDPOINT_CHAT_COMPLETIONS if body.path == CHAT else wire.ENDPOINT_COMPLETIONS,
        body=chat(stream=True) if right else body.data,
        tier="chat" if right else random.choice(TEXTS),
        hop=1,
    )
    for _ in range(random.choice((0, 0, 1, 2))):
        random.choice(SUBMIT_CHANGES)(random, submit)
    return submit


def _endpoint(random: Random, submit: wire.Submit) -> None:
    submit.endpoint = cast("wire.Endpoint.ValueType", random.choice((0, 1, 2, 3, 77, 2**31 - 1, -1)))


def _spent(random: Random, submit: wire.Submit) -> None:
    submit.spent_s = random.choice(NUMBERS)


def _targets(random: Random, submit: wire.Submit) -> None:
    submit.ttft_s, submit.tpot_s = random.choice(NUMBERS), random.choice(NUMBERS)


def _hop(random: Random, submit: wire.Submit) -> None:
    submit.hop, submit.backup = random.choice((0, 2**32 - 1)), random.random() < 0.5


SUBMIT_CHANGES: tuple[Callable[[Random, wire.Submit], None], ...] = (_endpoint, _spent, _targets, _hop)


def _submits(random: Random) -> bytes:
    submits = [_submit(random) for _ in range(random.choice((1, 1, 2, 5)))]
    cancels = [random.choice(IDS) for _ in range(random.choice((0, 0, 1, 4)))]
    return wire.RouterFrame(submits=submits, cancels=cancels).SerializeToString()


def _cancels(random: Random) -> bytes:
    return wire.RouterFrame(
        cancels=[random.choice(IDS) for _ in range(random.choice((1, 50, 20_000)))]
    ).SerializeToString()


def _empty(random: Random) -> bytes:
    return b""


def _large(random: Random) -> bytes:
    body = chat(user="x" * random.choice((1 << 16, 1 << 20, 3 << 20)))
    submit = wire.Submit(id=9, endpoint=wire.ENDPOINT_CHAT_COMPLETIONS, body=body, tier="chat", hop=1)
    return wire.RouterFrame(submits=[submit]).SerializeToString()


def _unknown_fields(random: Random) -> bytes:
    """As of a router of a later version."""
    return _submits(random) + b"\xfa\x3f\x03new" + b"\x98\x06\x01"


def _another_message(random: Random) -> bytes:
    return wire.ReplicaFrame(snapshot=wire.Snapshot(running=2**32 - 1, work_s=nan)).SerializeToString()


def _cut(random: Random) -> bytes:
    data = _submits(random)
    return data[: random.randrange(len(data))]


def _flipped(random: Random) -> bytes:
    changed = bytearray(_submits(random))
    for _ in range(random.randint(1, 6)):
        changed[random.randrange(len(changed))] = random.randrange(256)
    return bytes(changed)


def _noise(random: Random) -> bytes:
    return random.randbytes(random.choice((1, 10, 300, 5000)))


KINDS: tuple[Callable[[Random], bytes], ...] = (
    _submits,
    _submits,
    _submits,
    _cancels,
    _empty,
    _large,
    _unknown_fields,
    _another_message,
    _cut,
    _flipped,
    _noise,
)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


def make_http2(random: Random) -> bytes:
    """Return the bytes of a peer that sends no gRPC, or invalid HTTP/2, to a sidecar's port."""
    frames = b"".join(_http2_frame(random) for _ in range(random.randint(0, 8)))
    start = random.choice((PREFACE + SETTINGS, PREFACE + SETTINGS, PREFACE, b"", b"GET / HTTP/1.1\r\n\r\n"))
    return start + frames


def _http2_frame(random: Random) -> bytes:
    """A frame with a random head; its length may be a lie."""
    payload = random.randbytes(random.choice((0, 4, 5, 8, 100, 2000)))
    length = len(payload) if random.random() < 0.8 else random.randrange(1 << 24)
    kind, flags = random.randrange(12), random.choice((0, 1, 4, 5, 255))
    stream = random.choice((0, 1, 3, 2, 2**31 - 1))
    return length.to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
