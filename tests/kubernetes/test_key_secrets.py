"""API keys in Secrets of a real API server, read by an account that may get only these."""

import base64
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from penstock_routing.applications.key_sources import KeySecrets, SecretName, Unreadable
from penstock_routing.connections.api_server import Access


def written(name: str, keys: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": {"keys": base64.b64encode(keys.encode()).decode()}}


def send(client: httpx2.Client, method: str, path: str, body: Any = None) -> Any:
    return client.request(method, path, json=body).raise_for_status().json()


@pytest.fixture
def router(client: httpx2.Client, namespace: str, apiserver: Path, tmp_path: Path) -> Path:
    """The kubeconfig of an account with a router's right on one Secret."""
    core, rbac = f"/api/v1/namespaces/{namespace}", "rbac.authorization.k8s.io"
    roles = f"/apis/{rbac}/v1/namespaces/{namespace}"
    rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": ["ide-keys"]}
    subject = {"kind": "ServiceAccount", "name": "router", "namespace": namespace}
    role = {"apiGroup": rbac, "kind": "Role", "name": "router"}
    named = {"metadata": {"name": "router"}}
    send(client, "POST", f"{core}/serviceaccounts", named)
    send(client, "POST", f"{roles}/roles", {**named, "rules": [rule]})
    send(client, "POST", f"{roles}/rolebindings", {**named, "roleRef": role, "subjects": [subject]})
    token = send(client, "POST", f"{core}/serviceaccounts/router/token", {"spec": {}})["status"]["token"]
    config = yaml.safe_load(apiserver.read_text())
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    return kubeconfig


async def test_a_router_reads_only_its_own_secrets_and_their_changes(
    client: httpx2.Client, namespace: str, router: Path
) -> None:
    secrets = f"/api/v1/namespaces/{namespace}/secrets"
    source = KeySecrets({"ide": SecretName(namespace, "ide-keys")}, Access(router))
    others = KeySecrets({"web": SecretName(namespace, "web-keys")}, Access(router))
    send(client, "POST", secrets, written("ide-keys", "first\n"))
    send(client, "POST", secrets, written("web-keys", "not theirs\n"))
    assert await source.read() == {"ide": "first\n"}
    send(client, "PUT", f"{secrets}/ide-keys", written("ide-keys", "second\n"))
    assert await source.read() == {"ide": "second\n"}
    send(client, "DELETE", f"{secrets}/ide-keys")
    assert await source.read() == {"ide": ""}
    forbidden = (await others.read())["web"]
    assert isinstance(forbidden, Unreadable)
    assert "HTTP 403" in str(forbidden)
    await source.close()
    await others.close()
