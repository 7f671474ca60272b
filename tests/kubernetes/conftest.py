"""A real API server for all tests of a worker process, and a namespace for each test.

A server takes seconds to start and half a gigabyte of memory, so it starts only if a test uses it.
"""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from kube.api import Pools, administrator
from kube.api_server import DEFINITION, api_server, binaries, upstream_definitions
from kube.kubectl import Kubectl
from operating.account import operator_account, operator_home
from operating.eventually import eventually
from operating.process import OperatorProcess, operator_process
from operating.world import World
from penstock_operator.cluster.kinds import WATCHED

KOPF_AT_ITS_END = re.compile(
    r"an error occurred during closing of asynchronous generator <async_generator object infinite_watch .*?"
    r"RuntimeError: generator didn't stop after athrow\(\)",
    re.DOTALL,
)
"""Output of a watch of kopf that the event loop closes while it yields an event, after all work has ended."""


@pytest.fixture(scope="session")
def apiserver() -> Iterator[Path]:
    """The administrator's kubeconfig of a running API server with controllers."""
    with (
        tempfile.TemporaryDirectory(prefix="penstock-api-") as folder,
        api_server(Path(folder), "--kwok", "2") as kubeconfig,
    ):
        yield kubeconfig


@pytest.fixture(scope="session")
def client(apiserver: Path) -> Iterator[httpx2.Client]:
    """HTTP to the API server, as the administrator."""
    with administrator(apiserver) as client:
        yield client


@pytest.fixture(scope="session")
def definition(apiserver: Path, client: httpx2.Client) -> None:
    """Install the definition of ServingPool, and wait until it is served."""
    kubectl = Kubectl(binaries() / "kubectl", apiserver, "default")
    kubectl.out("apply", "--server-side", "--filename", DEFINITION)
    eventually(lambda: client.get("/openapi/v3/apis/penstock.dev/v1alpha1").is_success)
    eventually(lambda: client.get("/apis/penstock.dev/v1alpha1/servingpools").is_success)


@pytest.fixture(scope="session")
def upstream(apiserver: Path, client: httpx2.Client) -> None:
    """Install other projects' definitions of the kinds that pools use."""
    kubectl = Kubectl(binaries() / "kubectl", apiserver, "default")
    for file in upstream_definitions():
        kubectl.out("apply", "--server-side", "--filename", file)
    paths = [kind.path(None) for kind in WATCHED if kind.optional]
    eventually(lambda: all(client.get(path).is_success for path in paths))


@pytest.fixture
def namespace(client: httpx2.Client) -> Iterator[str]:
    """Create a namespace; delete it with its objects at the end."""
    made = client.post("/api/v1/namespaces", json={"metadata": {"generateName": "test-"}}).raise_for_status()
    name = made.json()["metadata"]["name"]
    yield name
    client.delete(f"/api/v1/namespaces/{name}").raise_for_status()


@pytest.fixture
def kubectl(apiserver: Path, namespace: str) -> Kubectl:
    """kubectl as the administrator, in the test's namespace."""
    return Kubectl(binaries() / "kubectl", apiserver, namespace)


@pytest.fixture
def pools(client: httpx2.Client, namespace: str, definition: None) -> Pools:
    """ServingPools in the test's namespace."""
    return Pools(client, namespace)


@pytest.fixture
def world(client: httpx2.Client, namespace: str, definition: None) -> World:
    """The test's namespace, with operations for tests of the operator."""
    return World(client, namespace)


@pytest.fixture(scope="module")
def operator(
    apiserver: Path, client: httpx2.Client, definition: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """An operator of all namespaces with exactly the rights of its table. A missing right fails the tests."""
    folder = tmp_path_factory.mktemp("operator")
    with operator_home(client) as home:
        kubeconfig = operator_account(client, apiserver, home, folder)
        with operator_process(kubeconfig, folder / "log") as operator:
            yield operator
            assert operator.stop() == 0, operator.printed_text()
    assert "forbidden" not in operator.printed_text().replace("is forbidden: exceeded quota", ""), (
        operator.printed_text()
    )
    assert "Traceback" not in KOPF_AT_ITS_END.sub("", operator.printed_text()), operator.printed_text()
