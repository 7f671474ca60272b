"""An engine with an API key serves only its sidecar."""

import httpx2
import pytest
from live.open_pool import OpenPool
from live.pool import LivePool
from live.pool_file import MODEL

KEY = "key-of-the-engine"


@pytest.fixture(scope="module")
def keyed(open_module_pool: OpenPool) -> LivePool:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PENSTOCK_ENGINE_API_KEY", KEY)
        return open_module_pool(1)


def test_only_the_sidecar_has_access_and_no_log_has_the_key(keyed: LivePool) -> None:
    with keyed.client() as client:
        answer = client.completions.create(model=MODEL, prompt="hello", max_tokens=3)
    assert answer.usage and answer.usage.completion_tokens >= 1
    host, port = keyed.address("engine", "r0")
    engine = f"http://{host}:{port}"
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 3}
    assert httpx2.post(f"{engine}/v1/completions", json=body).status_code == 401
    for key in ("", "another"):
        headers = {"authorization": f"Bearer {key}".rstrip()}
        assert httpx2.get(f"{engine}/v1/models", headers=headers).status_code == 401
    assert httpx2.get(f"{engine}/v1/models", headers={"authorization": f"Bearer {KEY}"}).status_code == 200
    assert httpx2.get(f"{engine}/health").status_code == 200
    assert not [name for name, text in keyed.logs() if KEY in text]
