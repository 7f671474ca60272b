"""Tokens that applications use: expected before a request, counted after it."""

import pytest
from penstock_core.domain.slo import Targets, Tier
from penstock_core.routing.replica_load import estimated_tokens
from penstock_pool import Application
from penstock_proto import replica_pb2 as wire
from penstock_routing.applications.token_usage import FIRST_ANSWER_TOKENS, Usage, UsageMetrics
from penstock_routing.request.outcome import Outcome
from penstock_routing.request.request_body import BodyFields
from prometheus_client import CollectorRegistry

CONTEXT = 1000
BODY_BYTES = 400
IDE, WEB = (
    Application.model_validate({"name": name, "tier": "chat", "keys": {"file": "x"}})
    for name in ("ide", "web")
)


def asking(max_tokens: int | None = None, sequences: int = 1) -> BodyFields:
    return BodyFields("m", False, None, sequences, max_tokens)


def outcome(finished: wire.Finished | None = None, written: int = 0) -> Outcome:
    made = Outcome(Tier("chat"), Targets(), 0.0, stream=True)
    made.finished, made.token_times_s = finished, [1.0] * written
    return made


class Counted:
    """Usage of two applications, and what its metrics say."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.usage = Usage((IDE, WEB), CONTEXT, UsageMetrics(self.registry))

    def tokens(self, application: str, kind: str) -> float | None:
        labels = {"application": application, "kind": kind}
        return self.registry.get_sample_value("penstock_router_application_tokens_total", labels)


@pytest.mark.parametrize(
    ("max_tokens", "sequences", "answer_tokens"),
    [
        (None, 1, FIRST_ANSWER_TOKENS),
        (None, 3, 3 * FIRST_ANSWER_TOKENS),
        (100, 1, 100),
        (100, 4, 400),
        (0, 1, 0),
        (-5, 1, 0),
        (CONTEXT, 1, CONTEXT),
        (10**9, 2, 2 * CONTEXT),
    ],
)
def test_a_request_is_expected_to_use_its_prompt_and_its_longest_answers(
    max_tokens: int | None, sequences: int, answer_tokens: int
) -> None:
    expected = Counted().usage.expected(IDE, BODY_BYTES, asking(max_tokens, sequences))
    assert expected == estimated_tokens(BODY_BYTES) + answer_tokens


def test_without_limits_no_usage_is_expected_or_counted() -> None:
    counted = Counted()
    assert counted.usage.expected(None, BODY_BYTES, asking(100)) == 0
    assert counted.usage.ended(None, outcome(wire.Finished(prompt_tokens=5)), BODY_BYTES) == 0


def test_a_requests_usage_is_its_replicas_figures() -> None:
    counted = Counted()
    reported = wire.Finished(prompt_tokens=40, completion_tokens=7, cached_tokens=32)
    assert counted.usage.ended(IDE, outcome(reported, written=3), BODY_BYTES) == 47
    assert [counted.tokens("ide", kind) for kind in ("prompt", "completion", "cached")] == [40, 7, 32]
    assert counted.tokens("web", "prompt") is None


def test_the_usage_of_a_request_that_was_cut_off_is_its_written_tokens() -> None:
    counted = Counted()
    assert counted.usage.ended(IDE, outcome(written=3), BODY_BYTES) == estimated_tokens(BODY_BYTES) + 3
    assert counted.tokens("ide", "prompt") == estimated_tokens(BODY_BYTES)
    assert counted.tokens("ide", "completion") == 3


def test_a_request_without_output_has_no_usage() -> None:
    counted = Counted()
    assert counted.usage.ended(IDE, outcome(), BODY_BYTES) == 0
    assert counted.tokens("ide", "prompt") == 0


def test_each_answer_moves_the_expected_length_by_a_tenth() -> None:
    counted = Counted()
    for expected in (231, 209):  # from 256 towards 10
        counted.usage.ended(IDE, outcome(wire.Finished(completion_tokens=10)), BODY_BYTES)
        assert counted.usage.expected(IDE, 0, asking()) - estimated_tokens(0) == expected
    assert counted.usage.expected(WEB, 0, asking()) - estimated_tokens(0) == FIRST_ANSWER_TOKENS
