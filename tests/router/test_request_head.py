"""Headers of every kind: read as they mean, or refused by name; never anything else."""

from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_routing.request import request_head
from penstock_runtime.openai_errors import ApiError

VALUES = st.binary(max_size=200)


@given(VALUES)
def test_a_request_id_is_always_printable_and_short(given_id: bytes) -> None:
    made = request_head.request_id({b"x-request-id": given_id})
    assert 0 < len(made) <= 128
    assert made.isascii()
    assert made.isprintable()
    assert " " not in made


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=128))
def test_a_clients_own_id_is_kept(given_id: str) -> None:
    assert request_head.request_id({b"x-request-id": given_id.encode()}) == given_id


def test_generated_ids_differ() -> None:
    assert len({request_head.request_id({}) for _ in range(100)}) == 100


@given(VALUES | st.floats().map(lambda x: str(x).encode()) | st.integers().map(lambda n: str(n).encode()))
def test_a_target_is_a_positive_number_or_an_error_that_names_its_header(value: bytes) -> None:
    head = {b"x-slo-ttft-ms": value}
    try:
        target_s = request_head.targets(head).ttft_s
    except ApiError as error:
        assert (error.status, error.param) == (400, "x-slo-ttft-ms")
        assert len(error.message) < 200
    else:
        assert target_s is not None
        assert isfinite(target_s)
        assert target_s > 0
        assert target_s == float(value) / 1000


@given(st.floats(min_value=1e-3, max_value=1e12))
def test_every_valid_target_is_accepted(value_ms: float) -> None:
    assert request_head.targets({b"x-slo-tpot-ms": str(value_ms).encode()}).tpot_s == value_ms / 1000


def test_our_own_header_has_precedence() -> None:
    head = {b"x-llm-d-slo-ttft-ms": b"900", b"x-slo-ttft-ms": b"100"}
    assert request_head.targets(head).ttft_s == 0.1


def test_the_other_header_is_validated_too() -> None:
    with pytest.raises(ApiError, match="x-llm-d-slo-ttft-ms"):
        request_head.targets({b"x-llm-d-slo-ttft-ms": b"x", b"x-slo-ttft-ms": b"100"})


@pytest.mark.parametrize(
    ("given_header", "key"),
    [
        (b"Bearer abc", "abc"),
        (b"bearer  abc ", "abc"),
        (b"Basic abc", None),
        (b"Bearer ", None),
        (b"Bearer", None),
        (b"", None),
        (b"\xff\xff", None),
    ],
)
def test_the_key_is_read_from_the_authorization_header(given_header: bytes, key: str | None) -> None:
    assert request_head.api_key({b"authorization": given_header}) == key


@given(VALUES)
def test_a_key_of_any_bytes_and_length_can_be_read(value: bytes) -> None:
    request_head.api_key({b"authorization": value})
    length_bytes = request_head.content_length({b"content-length": value})
    assert length_bytes is None or length_bytes >= 0


@pytest.mark.parametrize(
    ("given_header", "session"),
    [(b" run-7 ", b"run-7"), (b"", None), (b"  ", None), (b"x" * 600, b"x" * request_head.LONGEST_SESSION)],
)
def test_a_session_is_a_hint_of_bounded_length(given_header: bytes, session: bytes | None) -> None:
    assert request_head.session({b"x-session-id": given_header}) == session
    assert request_head.session({}) is None
