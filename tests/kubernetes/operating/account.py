"""The operator's own service account, with exactly the rights of its table and a kubeconfig for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import yaml
from penstock_operator.cluster.permissions import CLUSTER, LEASE, POOLS, PermissionRule, manifest_rules

ACCOUNT = "penstock-operator"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


@contextmanager
def operator_home(client: httpx2.Client) -> Iterator[str]:
    """Create a namespace for an operator's account and Lease."""
    body = {"metadata": {"generateName": "penstock-"}}
    home = _maker(client)("/api/v1/namespaces", body)["metadata"]["name"]
    try:
        yield home
    finally:
        client.delete(f"/api/v1/namespaces/{home}")


def operator_account(
    client: httpx2.Client, administrator: Path, home: str, folder: Path, namespaces: tuple[str, ...] = ()
) -> Path:
    """Create the account in the namespace `home` and return its kubeconfig.

    namespaces: those that it may serve; none: all.
    """
    make = _maker(client)
    make(f"/api/v1/namespaces/{home}/serviceaccounts", {"metadata": {"name": ACCOUNT}})
    _grant(make, home, f"{ACCOUNT}-lease", LEASE, home)
    for namespace in namespaces:
        _grant(make, home, ACCOUNT, POOLS, namespace)
    if not namespaces:
        name = f"{ACCOUNT}-{home}"
        make(
            f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": manifest_rules((*POOLS, *CLUSTER))}
        )
        make(f"{RBAC}/clusterrolebindings", _binding(name, "ClusterRole", home))
    token = make(f"/api/v1/namespaces/{home}/serviceaccounts/{ACCOUNT}/token", {"spec": {}})["status"][
        "token"
    ]
    return _kubeconfig(administrator, token, folder / f"{home}.kubeconfig")


def _grant(make: Any, home: str, name: str, rules: tuple[PermissionRule, ...], namespace: str) -> None:
    make(f"{RBAC}/namespaces/{namespace}/roles", {"metadata": {"name": name}, "rules": manifest_rules(rules)})
    make(f"{RBAC}/namespaces/{namespace}/rolebindings", _binding(name, "Role", home))


def _binding(name: str, role: str, home: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": home}],
    }


def _maker(client: httpx2.Client) -> Any:
    def make(path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = client.post(path, json=body)
        assert answer.is_success, answer.text
        return dict(answer.json())

    return make


def _kubeconfig(administrator: Path, token: str, path: Path) -> Path:
    config = yaml.safe_load(administrator.read_text())
    config["users"][0]["user"] = {"token": token}
    path.write_text(yaml.safe_dump(config))
    return path
