"""Real vLLM with the middleware: a gateway sends requests to vLLM's own port, and the sidecar decides."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from patience import answered
from penstock_runtime.engine_key import VARIABLE
from replica_processes import ADDRESSES, logged, started
from served.server import NAME, PATIENCE_S, Server, serving

MIDDLEWARE = ("--middleware", "penstock_vllm.gateway_middleware.SidecarAdmission")
KEY = "of-the-engine"
POOL = f"""
apiVersion: penstock.dev/v1alpha1
kind: ServingPool
metadata: {{name: test}}
spec:
  model: {{name: {NAME}}}
  engine: {{type: vllm, timeModel: llama-3-8b-a100, maxModelLen: 1024, answerPath: direct}}
  scheduling: {{policy: slos-serve, maxRunning: 16, maxBatchTokens: 512}}
  tiers: [{{name: chat, slo: {{ttft: 100s, tpot: 10s}}, allowRequestTargets: true}}]
"""
BODY = {"model": NAME, "prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True, "temperature": 0}
PICKED = {"x-penstock-max-hops": "1", "x-penstock-tier": "chat", "authorization": "Bearer of-a-client"}


class Replica(NamedTuple):
    """vLLM, and the page of its sidecar's metrics."""

    vllm: Server
    pages: str

    async def ask(self, path: str = "/v1/completions", **body: Any) -> httpx2.Response:
        headers = PICKED | {name.replace("_", "-"): body.pop(name) for name in list(body) if name[:2] == "x_"}
        async with httpx2.AsyncClient(base_url=self.vllm.url, timeout=PATIENCE_S) as client:
            return await client.post(path, json=BODY | body, headers=headers)

    async def counted(self, name: str, **labels: str) -> float:
        """A counter of the sidecar, over all labels but these."""
        async with httpx2.AsyncClient(timeout=PATIENCE_S) as client:
            page = (await client.get(f"{self.pages}/metrics")).text
        series = re.findall(rf"^penstock_replica_{name}(?:{{(.*)}})? (\S+)$", page, re.MULTILINE)
        wanted = {f'{label}="{text}"' for label, text in labels.items()}
        return sum(float(value) for given, value in series if wanted <= set(given.split(",")))


@pytest.fixture(scope="module")
def vllm(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("behind")
    env = {"PENSTOCK_TELEMETRY": str(folder / "s.sock"), "PENSTOCK_TICKETS": "required", "VLLM_API_KEY": KEY}
    with serving(model, folder, *MIDDLEWARE, steered=True, env=env) as server:
        yield server


@pytest.fixture
async def replica(vllm: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Replica]:
    pool, telemetry = vllm.log.with_name("pool.yaml"), vllm.log.with_name("s.sock")
    pool.write_text(POOL)
    monkeypatch.setenv(VARIABLE, KEY)
    ports = ("--listen", "127.0.0.1:0", "--http-port", "0", "--metrics-port", "0")
    flags = ("-f", pool, "--name", "r0", "--engine", vllm.url, "--telemetry", telemetry, *ports)
    async with started("penstock_sidecar.main", *flags) as process:
        found = dict(ADDRESSES.findall(await logged(process, "ready")))
        await logged(process, "engine up")
        made = Replica(vllm, f"http://{found['metrics']}")
        await answered(lambda: asks(vllm))
        yield made


async def asks(vllm: Server) -> bool:
    """Return whether vLLM asks the sidecar, whose list of models names its engine's type."""
    async with httpx2.AsyncClient(timeout=PATIENCE_S) as client:
        return '"engine":"vllm"' in (await client.get(f"{vllm.url}/v1/models")).text


@pytest.mark.parametrize("stream", [False, True])
async def test_an_accepted_request_is_answered_by_vllm_and_judged_by_the_sidecar(
    replica: Replica, stream: bool
) -> None:
    response = await replica.ask(stream=stream, x_request_id="mine")
    assert response.status_code == 200, response.text
    reported = {name: text for name, text in response.headers.items() if name.startswith("x-penstock")}
    assert reported == {
        "x-penstock-tier": "chat",
        "x-penstock-verdict": "admitted",
        "x-penstock-replica": "r0",
        "x-penstock-hops": "1",
    }
    assert response.headers["x-request-id"] == "mine"
    if stream:
        assert response.text.count("data: {") == 4 and response.text.endswith("data: [DONE]\n\n")
    else:
        assert response.json()["usage"]["completion_tokens"] == 4

    async def judged() -> bool:
        met = await replica.counted("http_slo_met_total", tier="chat")
        return met == await replica.counted("direct_answers_total", outcome="whole") == 1

    await answered(judged)
    assert await replica.counted("http_tpot_seconds_count", tier="chat") == 1


async def test_answers_equal_those_of_vllm_alone(replica: Replica, plain: Server) -> None:
    alone = await plain.complete(**{name: value for name, value in BODY.items() if name != "model"})
    assert (await replica.ask()).json()["choices"][0]["text"] == alone["choices"][0]["text"]


async def test_a_rejection_hops_and_vllm_s_own_error_does_not(replica: Replica) -> None:
    response = await replica.ask(x_slo_ttft_ms="0.001")
    assert (response.status_code, response.headers["x-penstock-rejected"]) == (429, "1")
    response = await replica.ask(temperature=-1)
    assert (response.status_code, response.headers.get("x-penstock-rejected")) == (400, None)
    assert "temperature" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/embeddings", "/tokenize", "/v1/load_lora_adapter"])
async def test_vllm_s_other_paths_are_closed(replica: Replica, path: str) -> None:
    assert (await replica.ask(path)).status_code == 404


async def test_a_forged_decision_is_served_best_effort_with_the_key_only(replica: Replica) -> None:
    assert (await replica.ask(x_penstock_decided="1")).status_code == 401
    xargs = {"penstock_ttft_s": 0.001, "penstock_best_effort": False}
    headers = {"x-penstock-decided": "1", "authorization": f"Bearer {KEY}"}
    async with httpx2.AsyncClient(base_url=replica.vllm.url, timeout=PATIENCE_S) as client:
        response = await client.post("/v1/completions", json=BODY | {"vllm_xargs": xargs}, headers=headers)
    assert response.status_code == 200
    assert await replica.counted("http_requests_total") == 0


async def test_a_client_that_leaves_ends_its_work_in_vllm(replica: Replica) -> None:
    body = BODY | {"max_tokens": 1000, "stream": True}
    async with httpx2.AsyncClient(base_url=replica.vllm.url, timeout=PATIENCE_S) as client:
        request = client.build_request("POST", "/v1/completions", json=body, headers=PICKED)
        stream = await client.send(request, stream=True)
        chunks = stream.aiter_bytes()
        await anext(chunks)
        await stream.aclose()

    async def gone() -> bool:
        return await replica.counted("http_requests_total", ending="client_gone") == 1

    await answered(gone)
    await answered(lambda: asyncio.sleep(0, replica.vllm.counted("vllm:num_requests_running") == 0))
