"""The API server over HTTP: for tables of objects, where kubectl would be fifty times slower."""

import ssl
from pathlib import Path
from typing import Any

import httpx2
import yaml
from patience import PATIENCE_S
from penstock_runtime.certificate_chains import not_strict

NOT_CHECKED = "some validation rules were not checked"
"""A cause that only says that there may be more, once the others are fixed."""


def administrator(kubeconfig: Path) -> httpx2.Client:
    """Return a client with the kubeconfig's rights. The caller closes it."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    return httpx2.Client(
        base_url=cluster["server"],
        headers={"authorization": f"Bearer {user['token']}"},
        verify=not_strict(ssl.create_default_context(cafile=cluster["certificate-authority"])),
        timeout=PATIENCE_S,
        trust_env=False,
    )


class Pools:
    """ServingPools of one namespace."""

    def __init__(self, client: httpx2.Client, namespace: str) -> None:
        self._client = client
        self._path = f"/apis/penstock.dev/v1alpha1/namespaces/{namespace}/servingpools"

    def create(self, document: dict[str, Any], *, dry: bool = False) -> httpx2.Response:
        """Asks for a new one; unknown fields are errors, as with kubectl. dry: only whether it could be."""
        flags = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry else {})
        return self._client.post(self._path, params=flags, json=document)

    def change(self, name: str, patch: dict[str, Any], part: str = "") -> httpx2.Response:
        """Merges a change into one. part: a subresource."""
        return self._client.patch(
            self.path_of(name, part),
            json=patch,
            headers={"content-type": "application/merge-patch+json"},
        )

    def path_of(self, name: str, part: str = "") -> str:
        """Return the path of a pool."""
        return f"{self._path}/{name}{f'/{part}' if part else ''}"

    def accepts(self, document: dict[str, Any]) -> bool:
        """Return whether a pool can be created."""
        answer = self.create(document, dry=True)
        assert answer.status_code in {201, 400, 413, 422}, answer.text
        return answer.status_code == 201

    def refusals(self, document: dict[str, Any]) -> list[str]:
        """Return why it cannot be created: `field: message` for each cause, or the message without causes."""
        answer = self.create(document, dry=True)
        assert answer.status_code in {400, 413, 422}, f"accepted: {answer.text}"
        return refusals_in(answer)


def refusals_in(answer: httpx2.Response) -> list[str]:
    """Return the causes of a refusal as `field: message`; its message if it has no causes."""
    status = answer.json()
    causes = status.get("details", {}).get("causes", ())
    reported = [
        f"{cause['field']}: {cause['message']}" for cause in causes if NOT_CHECKED not in cause["message"]
    ]
    return reported or [status["message"]]
