"""The chart on a real API server: validated as rendered, and installed, upgraded, rolled back, uninstalled.

This module runs its own server, because a release changes the CRD, which all tests of a server share.
"""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import yaml
from chart.rendered import CHART, ROOT, VALUE_SETS, Manifest, is_test, pod_spec, rendered, tool, values_of
from kube.api_server import api_server, binaries
from kube.kubectl import Kubectl
from operating.eventually import eventually

ABSENT = {"monitoring.coreos.com/v1"}
"""Kinds that this API server does not know; other tests cover their rendering."""

NO_MONITORS = [
    "--set",
    "monitoring.serviceMonitor=auto,monitoring.podMonitor=auto,monitoring.rules.enabled=auto",
]
ACCOUNT = "system:serviceaccount:{}:penstock-operator"


@pytest.fixture(scope="module")
def kubeconfig() -> Iterator[Path]:
    with (
        tempfile.TemporaryDirectory(prefix="penstock-chart-") as folder,
        api_server(Path(folder), "--kwok", "2") as made,
    ):
        yield made


NUMBERS = count()


@pytest.fixture
def kubectl(kubeconfig: Path) -> Iterator[Kubectl]:
    """kubectl of the administrator, in a new namespace that accepts only restricted pods."""
    kubectl = Kubectl(binaries() / "kubectl", kubeconfig, f"test-{next(NUMBERS)}")
    kubectl.out("create", "namespace", kubectl.namespace)
    kubectl.out("label", "namespace", kubectl.namespace, "pod-security.kubernetes.io/enforce=restricted")
    yield kubectl
    kubectl.out("delete", "namespace", kubectl.namespace, "--wait=false")


@pytest.fixture
def namespace(kubectl: Kubectl) -> str:
    return kubectl.namespace


@pytest.fixture
def helm(kubeconfig: Path, namespace: str) -> Callable[..., str]:
    """Run Helm in the test's namespace, require success, and return its output."""

    def run(*arguments: object) -> str:
        command = [tool("helm"), "--kubeconfig", kubeconfig, "--namespace", namespace, *arguments]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An older version of the chart, whose CRD lacks the printer columns."""
    folder = tmp_path_factory.mktemp("older") / "penstock"
    shutil.copytree(CHART, folder)
    file = folder / "files" / "servingpools.yaml"
    definition = yaml.safe_load(file.read_text())
    del definition["spec"]["versions"][0]["additionalPrinterColumns"]
    file.write_text(yaml.safe_dump(definition))
    about = yaml.safe_load((folder / "Chart.yaml").read_text())
    (folder / "Chart.yaml").write_text(yaml.safe_dump(about | {"version": "0.0.9"}))
    return folder


def has_columns(kubectl: Kubectl) -> bool:
    definition = kubectl.get("crd", "servingpools.penstock.dev")
    return "additionalPrinterColumns" in definition["spec"]["versions"][0]


def operators(kubectl: Kubectl) -> int:
    deployment = kubectl.get("deployment", "penstock-operator")
    return int(deployment["spec"]["replicas"])


def known(manifests: list[Manifest]) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["apiVersion"] not in ABSENT]


@pytest.mark.parametrize("value_set", VALUE_SETS)
def test_every_object_is_accepted_by_the_api_server(value_set: str, kubectl: Kubectl, namespace: str) -> None:
    watched = ["--set", f"watchNamespaces={{{namespace}}}"] if value_set == "locked-down" else []
    manifests = known(rendered(value_set, watched, namespace))
    accounts = [m for m in manifests if m["kind"] == "ServiceAccount"]
    kubectl.out("apply", "--filename=-", stdin=yaml.safe_dump_all(accounts))
    output = kubectl(
        "apply", "--dry-run=server", "--validate=strict", "--filename=-", stdin=yaml.safe_dump_all(manifests)
    )
    assert output.code == 0, output.err
    assert len(output.out.splitlines()) == len(manifests)
    assert "Warning" not in output.err


@pytest.mark.parametrize("value_set", VALUE_SETS)
def test_the_charts_pods_meet_the_restricted_standard(
    value_set: str, kubectl: Kubectl, namespace: str
) -> None:
    manifests = rendered(value_set, ["--set", "operator.priorityClassName="], namespace)
    for manifest in (m for m in manifests if m["kind"] in ("Deployment", "Pod")):
        spec = pod_spec(manifest) | {"serviceAccountName": "default"}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": namespace},
            "spec": spec,
        }
        eventually(lambda: kubectl("get", "sa", "default").code == 0)
        kubectl.out("create", "--dry-run=server", "--filename=-", stdin=json.dumps(pod))


def test_a_release_can_be_upgraded_rolled_back_and_uninstalled_keeping_pools(
    helm: Callable[..., str], kubectl: Kubectl, namespace: str, older: Path
) -> None:
    helm("install", "penstock", older, "--take-ownership")
    assert not has_columns(kubectl)
    kubectl.out("apply", "--filename", ROOT / "examples/kubernetes/simulated.yaml")

    helm("upgrade", "penstock", CHART, *values_of("ha"), *NO_MONITORS)
    assert has_columns(kubectl)
    assert operators(kubectl) == 2

    helm("rollback", "penstock", "1")
    assert not has_columns(kubectl)
    assert operators(kubectl) == 1

    helm("upgrade", "penstock", CHART, *values_of("default"))
    assert has_columns(kubectl)

    kinds = "deployments,services,serviceaccounts,leases,networkpolicies,configmaps,roles,rolebindings"
    own = [
        f"{kinds},clusterroles,clusterrolebindings",
        "--all-namespaces",
        "--selector=app.kubernetes.io/instance=penstock",
        "--output=name",
    ]
    assert kubectl.out("get", *own)
    helm("uninstall", "penstock", "--wait")
    assert kubectl.out("get", *own) == ""
    assert "demo" in kubectl.out("get", "pools")


def test_a_release_can_adopt_objects_of_an_earlier_one(
    helm: Callable[..., str], kubectl: Kubectl, namespace: str
) -> None:
    helm("install", "first", CHART, "--take-ownership")
    helm("uninstall", "first", "--wait")
    helm("install", "second", CHART, "--take-ownership")
    assert "second-operator" in kubectl.out("get", "deployments")
    helm("uninstall", "second", "--wait")


def test_a_namespaces_administrator_can_install_the_locked_down_chart(
    kubeconfig: Path, kubectl: Kubectl, namespace: str
) -> None:
    """Kubernetes lets a user grant only rights that the user has."""
    manifests = rendered("locked-down", ["--set", f"watchNamespaces={{{namespace}}}"], namespace)
    granted = [rule for m in manifests if m["kind"] == "Role" for rule in m["rules"]]
    kubectl.out("apply", "--filename=-", stdin=yaml.safe_dump_all(maintainer(granted)))
    output = kubectl(
        "apply",
        "--as=maintainer",
        "--filename=-",
        stdin=yaml.safe_dump_all([m for m in manifests if not is_test(m)]),
    )
    assert output.code == 0, output.err


def maintainer(granted: list[Manifest]) -> list[Manifest]:
    """Return bindings that make a user the namespace's admin, with the operator's further rights."""
    group = "rbac.authorization.k8s.io"
    more = [*granted, {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]}]
    subject = {"kind": "User", "name": "maintainer", "apiGroup": group}

    def binding(name: str, kind: str, role: str) -> Manifest:
        ref = {"apiGroup": group, "kind": kind, "name": role}
        made = {"metadata": {"name": name}, "roleRef": ref, "subjects": [subject]}
        return {"apiVersion": f"{group}/v1", "kind": "RoleBinding", **made}

    role = {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": {"name": "more"}, "rules": more}
    return [role, binding("admin", "ClusterRole", "admin"), binding("more", "Role", "more")]


def test_the_clusters_own_roles_grant_users_rights_on_pools(
    helm: Callable[..., str], kubectl: Kubectl, namespace: str
) -> None:
    helm("install", "penstock", CHART, "--take-ownership")

    def may(user: str, verb: str, part: str = "") -> bool:
        what = [verb, "servingpools.penstock.dev", f"--subresource={part}"]
        return kubectl("auth", "can-i", *what, f"--as={user}").code == 0

    for role in ("view", "edit", "admin"):
        name = f"--clusterrole={role}"
        kubectl.out("create", "rolebinding", role, name, f"--user={role}er")
    eventually(lambda: all(may(user, "list") for user in ("viewer", "editer", "adminer")))
    eventually(lambda: may("editer", "create") and may("adminer", "delete"))
    assert may("editer", "patch", "scale")
    assert not may("viewer", "create")
    assert not may("viewer", "patch", "scale")
    assert not may("editer", "patch", "status")
    helm("uninstall", "penstock", "--wait")


def test_the_operator_may_grant_only_the_rights_that_routers_need(
    helm: Callable[..., str], kubectl: Kubectl, namespace: str
) -> None:
    helm("install", "penstock", CHART, "--take-ownership")

    def grants(resource: str) -> bool:
        rule = [f"--verb={verb}" for verb in ("get", "list", "watch")]
        command = ["create", "role", "r", *rule, f"--resource={resource}", "--dry-run=server"]
        return kubectl(*command, f"--as={ACCOUNT.format(namespace)}").code == 0

    def may(*what: str) -> bool:
        who = f"--as={ACCOUNT.format(namespace)}"
        return kubectl("auth", "can-i", *what, who).code == 0

    assert grants("endpointslices.discovery.k8s.io")
    assert not grants("secrets")
    assert may("get", "leases.coordination.k8s.io/penstock-operator")
    assert not may("get", "leases.coordination.k8s.io/another")
    assert not may("list", "secrets")
    assert not may("update", "servingpools")
    helm("uninstall", "penstock", "--wait")
