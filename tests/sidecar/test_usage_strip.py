import pytest
from penstock_proto import replica_pb2 as wire
from penstock_sidecar.engine.metrics import EngineLoad, load_of
from penstock_sidecar.engine.usage_strip import UsageStrip
from penstock_sidecar.requests.client_body import read_body

EVENTS = [
    b'data: {"choices":[{"text":"\\"usage\\":null"}],"usage":null}\n\n',
    b'data: {"choices":[{"text":"b"}]}\n\n',
    b'data: {"choices":[{"text":"c"}],"usage":{"completion_tokens":3}}\n\n',
    b'data: {"choices":[],"usage":{"completion_tokens":3}}\n\n',
    b"data: [DONE]\n\n",
]
PASSED = b'data: {"choices":[{"text":"\\"usage\\":null"}]}\n\n' + EVENTS[1] + EVENTS[2] + EVENTS[4]


@pytest.mark.parametrize("size", [1, 7, 50, 10_000])
@pytest.mark.parametrize("crlf", [False, True])
def test_unrequested_usage_is_removed_however_the_bytes_arrive(size: int, crlf: bool) -> None:
    data, strip = b"".join(EVENTS), UsageStrip()
    wanted = PASSED.replace(b"\n", b"\r\n") if crlf else PASSED
    data = data.replace(b"\n", b"\r\n") if crlf else data
    pieces = [strip.feed(data[at : at + size]) for at in range(0, len(data), size)]
    assert b"".join(pieces) == wanted


def test_text_outside_events_is_unchanged() -> None:
    strip = UsageStrip()
    assert strip.feed(b'data: {"usage": broken\n\n') == b'data: {"usage": broken\n\n'
    assert strip.feed(b': "usage"\n\n') == b': "usage"\n\n'


@pytest.mark.parametrize(
    ("more", "sent"),
    [
        (b"", b',"stream_options":{"include_usage":true}'),
        (b',"stream_options":{"include_usage":false,"x":1}', None),
        (b',"stream_options":null', None),
    ],
)
def test_usage_is_requested_without_changing_the_clients_other_fields(
    more: bytes, sent: bytes | None
) -> None:
    raw = b'{"prompt":"a","stream":true' + more + b"}"
    asking = read_body(wire.ENDPOINT_COMPLETIONS, raw).requesting_usage()
    assert asking is not None and b'"include_usage":true' in asking
    assert sent is None or asking == raw[:-1] + sent + b"}"
    assert (b'"x":1' in asking) == (b'"x":1' in raw)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"prompt":"a"}',
        b'{"prompt":"a","stream":true,"stream_options":{"include_usage":true}}',
        b'{"prompt":"a","stream":true,"stream_options":0}',
    ],
)
def test_usage_is_not_requested_if_it_is_already_or_if_the_body_is_invalid(raw: bytes) -> None:
    assert read_body(wire.ENDPOINT_COMPLETIONS, raw).requesting_usage() is None


def test_an_engines_metrics_page_is_parsed() -> None:
    page = b"""# HELP vllm:num_requests_running x
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting_by_reason{engine="0"} 7.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 1.5e-1
"""
    assert load_of(page) == EngineLoad(5, 1, 0.25)
    assert load_of(b"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n") == EngineLoad(1, 0, 0.0)
    assert load_of(b"vllm:num_requests_running 1\n") is None
    assert load_of(b"vllm:num_requests_running 1e\nvllm:num_requests_waiting 0\n") is None
    for number in (b"1e999", b"-1e999", b"-1"):
        assert load_of(b"vllm:num_requests_running " + number + b"\nvllm:num_requests_waiting 0\n") is None
        assert load_of(b"vllm:num_requests_running 0\nvllm:num_requests_waiting " + number + b"\n") is None
    assert load_of(b"<html>") is None
