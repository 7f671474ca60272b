"""A pool behind a real Gateway: Envoy Gateway, from its own chart, configured as in docs/gateways.md.

The controller is built from its module; its Envoy is the project's image of a stock Envoy.
"""

import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any, NamedTuple

import openai

from pool_on_cluster.clusters import CLUSTER_SCRIPTS
from pool_on_cluster.context import ROOT, ClusterContext, not_terminating, reconciled
from pool_on_cluster.pool import MODEL, NAMESPACE, document
from pool_on_cluster.steps.clients import serves_model
from pool_on_cluster.steps.kills import kill
from pool_on_cluster.traffic import PROMPT, PoolTraffic
from pool_on_cluster.waiting import until

NAME, REPLICAS, SYSTEM = "behind", 2, "envoy-gateway-system"
HOST = f"{NAME}.example.com"
PAGE = ROOT / "docs" / "gateways.md"
SECTION = re.compile(r"^#### Envoy Gateway by its own policies\n(.*?)^## ", re.DOTALL | re.MULTILINE)
PATCHES = "config.envoyGateway.extensionApis.enableEnvoyPatchPolicy=true"
YAML = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)
LONG_PROMPT = PROMPT * 100
"""Its prefill takes more than half of the target for the first token, so a replica takes one at a time."""
LONG_ANSWER = 1200
"""Output tokens that take longer than the timeout."""
ENVOYS_DEFAULT_TIMEOUT_S = 15
START_S = 0.3
"""Time in which a request reaches its replica, much less than its prefill."""
SMUGGLED = {"x-gateway-destination-endpoint": "198.18.0.1:10250", "x-penstock-max-hops": "0"}
"""Headers that only the picker may set, from a client: the picker replaces them."""
MARGIN_REQUESTS = 4
OWN = f"penstock.dev/pool={NAME}"


class Served(NamedTuple):
    """How a request was served."""

    verdict: str
    replica: str
    hops: int


def installation(context: ClusterContext) -> None:
    """Envoy Gateway is installed by its own chart, and its Gateway is ready."""
    chart = context.tools.binaries / "envoy-gateway-chart"
    flags = ["--namespace", SYSTEM, "--create-namespace", "--wait", "--timeout=3m"]
    context.tools.helm("upgrade", "--install", "envoy-gateway", chart, *flags, "--set", PATCHES)
    context.tools.kubectl("apply", "--filename", _definition("inferencepools"))
    context.tools.kubectl("apply", "--filename", CLUSTER_SCRIPTS / "envoy-gateway.yaml")
    context.tools.kubectl(
        "wait", "--for=condition=Programmed", "gateway/public", "--namespace", NAMESPACE, "--timeout=120s"
    )


def routers(context: ClusterContext) -> None:
    """Envoy Gateway accepts the operator's HTTPRoute, and a pool's routers answer through it."""
    context.tools.apply(_pool(), NAMESPACE)
    _wait_reconciled(context)
    _check_answers(context)


def inference_pool(context: ClusterContext) -> None:
    """The pool changes to an InferencePool, and answers through the objects of the documentation."""
    spec = {"gateway": "inferencePool", "ingress": None}
    context.tools.patch("pool", NAME, NAMESPACE, {"spec": spec})
    context.tools.kubectl("apply", "--namespace", NAMESPACE, "--filename=-", stdin=_documented_objects())
    until(lambda: context.tools.exists("inferencepool", NAME, "--namespace", NAMESPACE), "the InferencePool")
    _wait_reconciled(context)
    _check_answers(context)


def hops(context: ClusterContext) -> None:
    """Envoy Gateway sends rejected requests with their bodies to the next replica, then as best effort."""
    with _client(context) as client, ThreadPoolExecutor() as threads:
        first = threads.submit(_ask, client, LONG_PROMPT)
        sleep(START_S)
        short = _ask(client, PROMPT)
        second = threads.submit(_ask, client, LONG_PROMPT)
        sleep(START_S)
        third = _ask(client, LONG_PROMPT)
        served = [_served(answer) for answer in (first.result(), short, second.result(), third)]
    busy, other = served[0].replica, served[1].replica
    assert served[:3] == [
        Served("admitted", busy, 1),
        Served("admitted", other, 1),
        Served("admitted", other, 2),
    ], served
    assert (served[3].verdict, served[3].hops) == ("best-effort", 3), served


def rolling_updates(context: ClusterContext) -> None:
    """Replicas and pickers behind Envoy Gateway roll one after the other, and no request is lost."""
    for spec in ({"scheduling": {"policy": "sarathi"}}, {"router": {"maxHeaderBytes": 16384}}):
        with _traffic(context, "rolled"):
            context.tools.patch("pool", NAME, NAMESPACE, {"spec": spec})
            _wait_reconciled(context)


def picker_kill(context: ClusterContext) -> None:
    """The picker behind Envoy Gateway is killed; requests pass without it, and none is lost."""
    with _traffic(context, "picker_killed"):
        kill(context, _pods(context, "router")[0], "picker")
        _wait_reconciled(context)


def engine_kill(context: ClusterContext) -> None:
    """An engine behind Envoy Gateway is killed; only its streams are lost, and requests before them hop."""
    _kill_in_replica(context, "engine", begun=True)


def sidecar_kill(context: ClusterContext) -> None:
    """A sidecar behind Envoy Gateway is killed; only its open requests are lost."""
    _kill_in_replica(context, "sidecar", begun=False)


def _kill_in_replica(context: ClusterContext, container: str, *, begun: bool) -> None:
    """Kill a process of a replica under traffic. begun: only requests whose answer has begun may be lost."""
    pod = _pods(context, "replica")[0]
    name = pod["metadata"]["name"]
    served_by = {name} if begun else {name, None}
    with _traffic(context, f"{container}_killed") as traffic:
        killed_s = kill(context, pod, container)
        traffic.allow_losses(lambda request: request.replica in served_by and request.started_s <= killed_s)
        _wait_reconciled(context)


def removal(context: ClusterContext) -> None:
    """The pool behind Envoy Gateway is removed, and Envoy Gateway."""
    context.tools.kubectl("delete", "pool", NAME, "--namespace", NAMESPACE, "--timeout=60s")
    context.tools.kubectl("delete", "--namespace", NAMESPACE, "--filename=-", stdin=_documented_objects())
    context.tools.kubectl("delete", "--filename", CLUSTER_SCRIPTS / "envoy-gateway.yaml", "--timeout=60s")
    context.tools.helm("uninstall", "envoy-gateway", "--namespace", SYSTEM)
    until(
        lambda: not context.tools.exists("pods,inferencepools", "--namespace", NAMESPACE, "--selector", OWN),
        "its pods and its InferencePool are gone",
    )


@contextmanager
def _traffic(context: ClusterContext, what: str) -> Iterator[PoolTraffic]:
    """Send requests through Envoy Gateway. Raises AssertionError if one is lost that must not be."""
    with PoolTraffic(_url(context), MODEL, host=HOST) as traffic:
        traffic.wait_for_requests(MARGIN_REQUESTS)
        yield traffic
        traffic.wait_for_requests(MARGIN_REQUESTS)
        summary = traffic.summary()
    figures = {"sent": summary.sent, "allowed_losses": summary.allowed_losses}
    context.figures.setdefault("behind_envoy_gateway", {})[what] = figures
    assert not summary.lost, summary.lost


def _definition(kind: str) -> str:
    """Return the path of the CRD of a kind of another project."""
    paths = subprocess.run([CLUSTER_SCRIPTS / "definitions"], check=True, stdout=subprocess.PIPE, text=True)
    (path,) = [line for line in paths.stdout.splitlines() if line.endswith(f"_{kind}.yaml")]
    return path


def _pool() -> dict[str, Any]:
    pool = document("", NAME, replicas=REPLICAS)
    spec = pool["spec"]
    spec["ingress"] = {"host": HOST, "kind": "HTTPRoute", "gateway": {"name": "public"}}
    spec["engine"] |= {"maxModelLen": 32768, "kvCacheTokens": 100_000}
    spec["routing"] = {"order": "round-robin", "maxHops": REPLICAS, "backup": "best-effort"}
    spec["router"] |= {"replicas": 1}
    return pool


def _documented_objects() -> str:
    """Return the objects of the documentation for this pool."""
    (section,) = SECTION.findall(PAGE.read_text())
    named = "---\n".join(YAML.findall(section)).replace("llama3", NAME)
    return named.replace(".default.svc", f".{NAMESPACE}.svc").replace("default/public", f"{NAMESPACE}/public")


def _url(context: ClusterContext) -> str:
    (address,) = _got(context, "gateway", "public")["status"]["addresses"]
    forwarded = context.cluster.forward(f"{address['value']}:80")
    return f"http://{forwarded}"


def _client(context: ClusterContext) -> openai.OpenAI:
    url = f"{_url(context)}/v1"
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0, default_headers={"host": HOST})


def _check_answers(context: ClusterContext) -> None:
    """Check that the official client gets an answer, and a stream that takes longer than Envoy's default."""
    with _client(context) as client:
        until(lambda: serves_model(client), f"pool {NAME} answers through Envoy Gateway")
        chat = _ask(client, PROMPT, max_tokens=20).parse()
        assert chat.usage is not None and chat.usage.completion_tokens == 20, chat
        started_s = monotonic()
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": PROMPT}],
            max_tokens=LONG_ANSWER,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        chunks = [chunk for chunk in stream if chunk.choices]
    assert chunks[-1].choices[0].finish_reason == "length", chunks[-1]
    assert monotonic() - started_s > ENVOYS_DEFAULT_TIMEOUT_S, "the answer was too short to test the timeout"


def _ask(client: openai.OpenAI, prompt: str, max_tokens: int = 1) -> Any:
    return client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[{"role": "user", "content": prompt}],
        max_tokens=max_tokens,
        extra_headers=SMUGGLED,
    )


def _served(answer: Any) -> Served:
    headers = answer.headers
    return Served(
        headers["x-penstock-verdict"], headers["x-penstock-replica"], int(headers["x-penstock-hops"])
    )


def _wait_reconciled(context: ClusterContext) -> None:
    until(lambda: reconciled(_got(context, "pool", NAME), REPLICAS), f"pool {NAME} is reconciled")


def _pods(context: ClusterContext, component: str) -> list[Any]:
    selector = f"{OWN},app.kubernetes.io/component={component}"
    return not_terminating(context.tools.items("pods", "--namespace", NAMESPACE, "--selector", selector))


def _got(context: ClusterContext, kind: str, name: str) -> Any:
    return context.tools.get(kind, name, "--namespace", NAMESPACE)
