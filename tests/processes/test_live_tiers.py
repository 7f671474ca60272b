"""Which tier a request gets: header, key, `service_tier`, default; and targets of a request's own."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import openai
import pytest
from live.open_pool import OpenPool
from live.pool import LivePool
from live.pool_file import MODEL
from openai.types.chat import ChatCompletionUserMessageParam

HELLO: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hello"}]
TIERS: list[dict[str, Any]] = [
    {"name": "chat", "slo": {"ttft": "20s", "tpot": "500ms"}},
    {"name": "coder", "slo": {"ttft": "20s", "tpot": "400ms"}, "allowRequestTargets": True},
    {"name": "batch", "bestEffort": True},
]


Connect = Callable[..., openai.OpenAI]


@pytest.fixture(scope="module")
def tiered(open_module_pool: OpenPool) -> LivePool:
    return open_module_pool(tiers=TIERS)


@pytest.fixture
def anyone(tiered: LivePool) -> Connect:
    """Clients of a router that knows no applications."""
    return tiered.client


@pytest.fixture(scope="module")
def keyed(tiered: LivePool) -> Connect:
    """Clients of one that knows two."""
    (tiered.folder / "ide.txt").write_text("ide-key\n# retired soon\nide-key-of-old\n")
    (tiered.folder / "office.txt").write_text("office-key\n")
    applications = [
        {"name": "ide", "tier": "coder", "allow": ["batch"], "keys": {"file": "ide.txt"}},
        {"name": "office", "tier": "chat", "keys": {"file": "office.txt"}},
    ]
    tiered.start_router("keyed", applications=applications)
    return partial(tiered.client, "keyed")


def headers_of(
    connect: Connect, key: str = "none", extra: Mapping[str, str] | None = None, **fields: Any
) -> Mapping[str, str]:
    with connect(api_key=key) as client:
        return client.chat.completions.with_raw_response.create(
            model=MODEL, messages=HELLO, max_tokens=1, extra_headers=dict(extra or {}), **fields
        ).headers


def test_a_request_without_a_tier_has_the_default_tier(anyone: Connect) -> None:
    assert headers_of(anyone)["x-penstock-tier"] == "chat"


def test_service_tier_may_name_a_tier(anyone: Connect) -> None:
    output = headers_of(anyone, extra_body={"service_tier": "coder"})
    assert output["x-penstock-tier"] == "coder"


def test_the_header_precedes_service_tier(anyone: Connect) -> None:
    output = headers_of(anyone, extra={"x-penstock-tier": "batch"}, extra_body={"service_tier": "coder"})
    assert output["x-penstock-tier"] == "batch"
    assert output["x-penstock-verdict"] == "best-effort"


def test_an_unknown_tier_is_named(anyone: Connect) -> None:
    with pytest.raises(openai.BadRequestError, match="vip") as refusal:
        headers_of(anyone, extra={"x-penstock-tier": "vip"})
    assert refusal.value.param == "x-penstock-tier"


def test_an_unknown_key_is_an_error_for_every_prompt_length(keyed: Connect) -> None:
    with keyed(api_key="nobodys-key") as client:
        for _ in range(3):
            with pytest.raises(openai.AuthenticationError):
                client.completions.create(model=MODEL, prompt="x" * 6_000_000)


def test_a_key_selects_its_applications_tier(keyed: Connect) -> None:
    assert headers_of(keyed, "ide-key")["x-penstock-tier"] == "coder"
    assert headers_of(keyed, "ide-key-of-old")["x-penstock-tier"] == "coder"
    assert headers_of(keyed, "office-key")["x-penstock-tier"] == "chat"


def test_a_key_may_use_its_allowed_tiers(keyed: Connect) -> None:
    output = headers_of(keyed, "ide-key", extra={"x-penstock-tier": "batch"})
    assert output["x-penstock-tier"] == "batch"


def test_a_key_may_use_no_other_tier(keyed: Connect) -> None:
    with pytest.raises(openai.PermissionDeniedError) as refusal:
        headers_of(keyed, "office-key", extra={"x-penstock-tier": "coder"})
    assert refusal.value.param == "x-penstock-tier"


def test_service_tier_does_not_override_a_key(keyed: Connect) -> None:
    output = headers_of(keyed, "office-key", extra_body={"service_tier": "coder"})
    assert output["x-penstock-tier"] == "chat"


@pytest.mark.parametrize("key", ["stolen", "ide-key ide-key", "# retired soon"])
def test_an_unknown_key_is_refused(keyed: Connect, key: str) -> None:
    with pytest.raises(openai.AuthenticationError) as refusal:
        headers_of(keyed, key)
    assert refusal.value.code == "invalid_api_key"
    assert key not in refusal.value.message


def test_models_need_a_key(keyed: Connect) -> None:
    with keyed(api_key="stolen") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
    with keyed(api_key="office-key") as client:
        assert [model.id for model in client.models.list()] == [MODEL]


@pytest.mark.parametrize("prefix", ["x-slo", "x-llm-d-slo"])
def test_a_tier_may_allow_a_requests_own_targets(anyone: Connect, prefix: str) -> None:
    own = {"x-penstock-tier": "coder", f"{prefix}-ttft-ms": "15000", f"{prefix}-tpot-ms": "300"}
    assert headers_of(anyone, extra=own)["x-penstock-verdict"] == "admitted"


def test_a_requests_own_targets_count(anyone: Connect) -> None:
    """A target that no GPU could meet is judged as such: the request's own, not the tier's."""
    own = {"x-penstock-tier": "coder", "x-slo-tpot-ms": "0.001"}
    verdicts = []
    try:
        verdicts.append(headers_of(anyone, extra=own)["x-penstock-verdict"])
    except openai.RateLimitError:
        verdicts.append("rejected")
    assert verdicts != ["admitted"]


def test_own_targets_are_refused_by_a_tier_that_does_not_allow_them(anyone: Connect) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        headers_of(anyone, extra={"x-slo-ttft-ms": "100"})
    assert refusal.value.param == "x-slo-ttft-ms"


@pytest.mark.parametrize("name", ["x-slo-ttft-ms", "x-slo-tpot-ms", "x-llm-d-slo-ttft-ms"])
@pytest.mark.parametrize("value", ["nan", "inf", "0", "-5", "soon", "", "1e999", "0x10", "1_0"])
def test_invalid_targets_are_named(anyone: Connect, name: str, value: str) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        headers_of(anyone, extra={"x-penstock-tier": "coder", name: value})
    assert refusal.value.param == name
