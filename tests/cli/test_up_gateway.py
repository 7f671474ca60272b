"""`penstock up --gateway envoy` with its real processes: the API, failures and drains as of the router."""

import json
import os
import re
import signal
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from running_up import (
    MODEL,
    PATIENCE_S,
    Up,
    complete,
    descendants,
    is_running,
    kill_one,
    make_certificate,
    running,
    until,
)

POOL = f"""
apiVersion: penstock.dev/v1alpha1
kind: ServingPool
metadata: {{name: gateway}}
spec:
  model: {{name: {MODEL}}}
  engine: {{type: simulated, timeModel: llama-3-8b-h100}}
  replicas: 2
  tiers:
  - {{name: chat, slo: {{ttft: 5s, tpot: 200ms}}, allowRequestTargets: true}}
  - {{name: batch, bestEffort: true}}
  routing: {{order: round-robin, maxHops: 2, backup: reject}}
  router: {{maxBodyBytes: 100000, maxHeaderBytes: 8192}}
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    file = folder / "pool.yaml"
    file.write_text(POOL)
    with running(folder, "--gateway", "envoy", file=file) as up:
        yield up


@pytest.fixture
def up(shared: Up) -> Up:
    """The pool with all its processes running, whatever the previous test did."""
    wait_whole(shared)
    return shared


def wait_whole(up: Up) -> None:
    """Wait until both replicas have answered a request, and the picker is ready."""
    with client(up) as http:

        def both() -> bool:
            try:
                ready = http.get(f"{up.admin_url}/ready").status_code == 200
                answers = [http.post("/v1/completions", json=BODY) for _ in range(2)]
            except httpx2.TransportError:
                return False
            return ready and {one.headers.get("x-penstock-replica") for one in answers} == {"r0", "r1"}

        until(both, "both replicas")


BODY: dict[str, Any] = {"model": MODEL, "prompt": [5] * 40, "max_tokens": 3, "ignore_eos": True}
LONG = {**BODY, "max_tokens": 8000, "stream": True}


def client(up: Up) -> httpx2.Client:
    return httpx2.Client(base_url=up.url, timeout=PATIENCE_S)


def running_requests(up: Up) -> int:
    """Return the requests in the engines, as their metrics say."""
    engines = re.findall(r"penstock-engine .*?--port (\d+)", "\n".join(descendants(up.process.pid).values()))
    pages = [
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
        for port in engines
    ]
    found = [re.search(r"^vllm:num_requests_running\{.*\} ([\d.]+)$", page, re.MULTILINE) for page in pages]
    return sum(int(float(one[1])) for one in found if one is not None)


def test_answers_streams_and_errors_equal_the_routers(up: Up) -> None:
    with client(up) as http:
        answer = http.post("/v1/completions", json=BODY, headers={"x-request-id": "mine"})
        assert answer.json()["usage"]["completion_tokens"] == 3
        reported = {name: answer.headers[f"x-penstock-{name}"] for name in ("tier", "verdict", "hops")}
        assert reported == {"tier": "chat", "verdict": "admitted", "hops": "1"}
        assert answer.headers["x-request-id"] == "mine"

        with http.stream("POST", "/v1/completions", json={**BODY, "stream": True}) as stream:
            events = [line for line in stream.iter_lines() if line]
        assert len(events) >= 4 and events[-1] == "data: [DONE]"

        assert [each["id"] for each in http.get("/v1/models").json()["data"]] == [MODEL]
        wrong = http.post("/v1/completions", json={**BODY, "model": "other"}, headers={"x-request-id": "w"})
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (404, "model_not_found")
        assert (wrong.headers["x-request-id"], wrong.headers["x-should-retry"]) == ("w", "false")


def test_a_request_rejected_by_all_replicas_is_a_429(up: Up) -> None:
    with client(up) as http:
        answer = http.post("/v1/completions", json=BODY, headers={"x-slo-ttft-ms": "0.001"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "slo_unattainable")
    assert (answer.headers["x-penstock-hops"], answer.headers["x-should-retry"]) == ("2", "false")


def test_bodies_and_heads_over_the_bounds_are_refused(up: Up) -> None:
    with client(up) as http:
        long = http.post("/v1/completions", json={**BODY, "user": "u" * 100_001})
        assert (long.status_code, long.json()["error"]["code"]) == (413, "request_too_large")
        assert "100000 bytes" in long.json()["error"]["message"]
        chunked = http.post("/v1/completions", content=(b"x" * 50_000 for _ in range(3)))
        assert (chunked.status_code, chunked.json()["error"]["code"]) == (413, "request_too_large")
        headers = http.post("/v1/completions", json=BODY, headers={"x-long": "h" * 9000})
        assert (headers.status_code, headers.json()["error"]["type"]) == (431, "invalid_request_error")


def test_clients_cannot_choose_replicas_or_applications(up: Up) -> None:
    smuggled = {
        "x-gateway-destination-endpoint": "127.0.0.1:1",
        "x-penstock-max-hops": "9",
        "x-penstock-timeout-ms": "1",
        "x-envoy-upstream-rq-timeout-ms": "1",
        "x-envoy-retry-on": "5xx",
    }
    with client(up) as http:
        answers = [http.post("/v1/completions", json=BODY, headers=smuggled) for _ in range(4)]
    assert {answer.headers["x-penstock-replica"] for answer in answers} == {"r0", "r1"}
    assert {answer.headers["x-penstock-verdict"] for answer in answers} == {"admitted"}


def test_a_disconnected_client_ends_its_engines_work(up: Up) -> None:
    with client(up) as http, http.stream("POST", "/v1/completions", json=LONG) as stream:
        next(stream.iter_lines())
        assert running_requests(up) == 1
    until(lambda: running_requests(up) == 0, "the end of the work")


def test_a_killed_replica_fails_no_new_request_and_is_restarted(up: Up) -> None:
    kill_one(up.process.pid, "penstock-sidecar")
    assert [complete(up.url)["usage"]["completion_tokens"] for _ in range(4)] == [3] * 4
    wait_whole(up)


def test_without_keys_requests_are_served_while_the_picker_is_down(up: Up) -> None:
    picker = next(pid for pid, line in descendants(up.process.pid).items() if "penstock-picker" in line)
    with client(up) as http, http.stream("POST", "/v1/completions", json=LONG) as stream:
        lines = stream.iter_lines()
        next(lines)
        os.kill(picker, signal.SIGKILL)
        until(lambda: not is_running(picker), "the end of the picker")
        assert complete(up.url)["usage"]["completion_tokens"] == 3
        assert next(line for line in lines if line)  # streams do not pass the picker
    wait_whole(up)


def test_after_a_stop_of_the_picker_alone_envoy_serves_again(up: Up) -> None:
    picker = next(pid for pid, line in descendants(up.process.pid).items() if "penstock-picker" in line)
    os.kill(picker, signal.SIGTERM)
    until(lambda: not is_running(picker), "the end of the picker")
    wait_whole(up)
    assert "envoy is drained; restarting it" in up.log.read_text()


def test_a_killed_envoy_is_restarted(up: Up) -> None:
    kill_one(up.process.pid, "_bin/envoy")
    wait_whole(up)


def test_every_request_is_logged_as_a_line_of_json_without_keys(up: Up) -> None:
    with client(up) as http:
        http.post(
            "/v1/completions?key=sk-query",
            json=BODY,
            headers={"x-request-id": "logged", "authorization": "Bearer sk-secret"},
        )

    def logged() -> list[str]:
        return [line for line in up.log.read_text().splitlines() if '"request_id":"logged"' in line]

    until(lambda: bool(logged()), "the line")
    line = json.loads(logged()[0].partition("| ")[2])
    assert (line["path"], line["status"], line["tier"], line["hops"]) == ("/v1/completions", 200, "chat", 1)
    assert (line["verdict"], line["replica"] in ("r0", "r1")) == ("admitted", True)
    assert line["endpoint"].startswith("127.0.0.1:")
    assert "sk-" not in up.log.read_text()


def test_stopping_finishes_streams_and_leaves_no_process(tmp_path: Path) -> None:
    """Over TLS, and in a pool with keys: there the picker's answer is needed."""
    cert, key, file = tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "pool.yaml"
    make_certificate(cert, key)
    (tmp_path / "keys").write_text("sk-ide\n")
    applications = "  applications: [{name: ide, tier: chat, keys: {file: keys}}]\n"
    file.write_text(POOL + applications)
    flags = ("--gateway", "envoy", "--tls-cert", str(cert), "--tls-key", str(key), "--replicas", "1")
    trusting = ssl.create_default_context(cafile=cert)
    body = {**BODY, "max_tokens": 100, "stream": True}
    with (
        running(tmp_path, *flags, file=file) as up,
        httpx2.Client(base_url=up.url, verify=trusting, timeout=PATIENCE_S) as http,
    ):
        assert http.post("/v1/completions", json=body).json()["error"]["code"] == "invalid_api_key"
        everyone = descendants(up.process.pid)
        headers = {"authorization": "Bearer sk-ide"}
        with http.stream("POST", "/v1/completions", json=body, headers=headers) as stream:
            lines = stream.iter_lines()
            assert stream.status_code == 200, next(lines)
            up.process.send_signal(signal.SIGTERM)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert up.process.wait(PATIENCE_S) == 0
        assert 'unfinished=0 event="envoy drained"' in up.log.read_text()
        assert [line for pid, line in everyone.items() if is_running(pid)] == []
