"""The API server: a few verbs on plain JSON.

lightkube finds the server and its credentials (in a pod the service account's, else a kubeconfig) and reads
a rotated token again when the old one is refused. A rotated authority is this module's business: a
connection that fails on TLS is made anew, once, from the files as they are now.

Every write is server-side apply in the operator's name with strict validation: a field that the server does
not know is an error, never dropped in silence. Where several operators share a Lease, a fence is asked when a
write's bytes are about to be sent, not before: a request may wait for a connection, and a process may be
frozen meanwhile. Nothing is retried here, for a caller that works by levels has its own next time; every
failure of the server is one of two exceptions.
"""

import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx2
import orjson
from lightkube import KubeConfig, SingleConfig
from lightkube.config import client_adapter
from lightkube.core.exceptions import ConfigError
from penstock_runtime.serving import StartError

from penstock_operator.cluster.kinds import ResourceKind, kind_of
from penstock_operator.manifests.manifest import Manifest, Ref
from penstock_operator.manifests.names import FIELD_MANAGER

REQUEST_S = 10.0
"""Longest wait for the API server; its own webhooks may take that long."""

PAGE = "100"
"""Objects in one answer to a list: reading a page keeps everything else waiting for a few milliseconds."""

_WRITTEN = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
_MERGE = {"content-type": "application/merge-patch+json"}
_APPLY = {"content-type": "application/apply-patch+yaml"}  # JSON is YAML
_METADATA_ONLY = {"accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}


class ApiRefused(Exception):
    """The API server answered, and not as wished. code: HTTP; reason, causes: Kubernetes' words for it."""

    def __init__(self, code: int, reason: str, message: str, causes: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.code, self.reason, self.causes = code, reason, causes

    @property
    def leaving(self) -> bool:
        """Whether the namespace is being deleted, and everything in it with it."""
        return "NamespaceTerminating" in self.causes

    @property
    def passing(self) -> bool:
        """Whether the same may be granted in a moment: the server is busy, or something behind it is."""
        return self.code == 429 or self.code >= 500


class ApiUnreachable(Exception):
    """The API server did not answer."""


def found_access() -> SingleConfig:
    """Where the API server is and who this is: a pod's own, else $KUBECONFIG. Raises StartError."""
    try:
        found = KubeConfig.from_env().get()
    except ConfigError as error:
        raise StartError(f"no API server is known: {error}") from error
    if found is None:
        raise StartError("no API server is known: the kubeconfig has no current context")
    return found


class Api:
    """One connection pool to one API server.

    fence: called before a write is sent; what it raises is raised by the write, which is not sent then.
    """

    def __init__(self, access: SingleConfig, fence: Callable[[], None] | None = None) -> None:
        self._access = access
        self._fence = fence
        self._http = self._connect()

    def _connect(self) -> httpx2.AsyncClient:
        parameters = client_adapter.ConnectionParams(timeout=httpx2.Timeout(REQUEST_S))
        return client_adapter.AsyncClient(self._access, parameters)

    async def close(self) -> None:
        """Give the connections back."""
        await self._http.aclose()

    async def get(self, ref: Ref) -> Manifest | None:
        """An object, or None where there is none."""
        return await self._maybe("GET", kind_of(ref).path(ref.namespace, ref.name))

    async def exists(self, ref: Ref) -> bool:
        """Whether there is one. Only metadata travels, so a Secret's content never reaches the operator."""
        path = kind_of(ref).path(ref.namespace, ref.name)
        return await self._maybe("GET", path, headers=_METADATA_ONLY) is not None

    async def read(self, path: str) -> Manifest | None:
        """What is at a path of the server's, or None."""
        return await self._maybe("GET", path)

    async def list(
        self, kind: ResourceKind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> tuple[list[Manifest], int]:
        """Every object of a kind that the selectors pick, and the list's resource version."""
        selected = {"labelSelector": labels, "fieldSelector": fields, "limit": PAGE}
        params = {name: value for name, value in selected.items() if value}
        found: list[Manifest] = []
        while True:
            page = await self._request("GET", kind.path(namespace), params)
            found += ({"apiVersion": kind.api_version, "kind": kind.kind} | item for item in page["items"])
            if not page["metadata"].get("continue"):
                return found, int(page["metadata"]["resourceVersion"])
            params["continue"] = page["metadata"]["continue"]

    async def apply(
        self, manifest: Manifest, subresource: str | None = None, dry_run: bool = False
    ) -> Manifest:
        """Server-side apply, by force. The object as it is now."""
        metadata = manifest["metadata"]
        path = kind_of(manifest).path(metadata.get("namespace"), metadata["name"], subresource)
        params = _WRITTEN | {"force": "true"} | ({"dryRun": "All"} if dry_run else {})
        return await self._request("PATCH", path, params, _APPLY, orjson.dumps(manifest))

    async def overwrite(self, manifest: Manifest) -> Manifest:
        """Merge a manifest into an object that exists; lists become the manifest's, whoever wrote entries."""
        metadata = manifest["metadata"]
        path = kind_of(manifest).path(metadata.get("namespace"), metadata["name"])
        return await self._request("PATCH", path, _WRITTEN, _MERGE, orjson.dumps(manifest))

    async def put(self, manifest: Manifest) -> Manifest:
        """Replace an object, only if it is still of the resource version that the manifest names."""
        metadata = manifest["metadata"]
        path = kind_of(manifest).path(metadata["namespace"], metadata["name"])
        return await self._request("PUT", path, _WRITTEN, None, orjson.dumps(manifest))

    async def create(self, manifest: Manifest) -> Manifest:
        """Make an object that does not exist yet."""
        path = kind_of(manifest).path(manifest["metadata"]["namespace"])
        body = orjson.dumps(manifest)
        return await self._request("POST", path, _WRITTEN, None, body)

    async def delete(self, ref: Ref, uid: str) -> None:
        """Delete an object, in the background, if it is still the one with that uid; gone is fine as well."""
        options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        path = kind_of(ref).path(ref.namespace, ref.name)
        await self._maybe("DELETE", path, body=orjson.dumps(options))

    async def _maybe(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Manifest | None:
        try:
            return await self._request(method, path, None, headers, body)
        except ApiRefused as refused:
            if refused.code == 404:
                return None
            raise

    async def _request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Manifest:
        headers = {"content-type": "application/json"} | dict(headers or {})
        fenced = {} if method == "GET" or self._fence is None else {"trace": self._check_fence}
        request: dict[str, Any] = {
            "params": params,
            "headers": headers,
            "content": body,
            "extensions": fenced,
        }
        async with self._failures():
            try:
                response = await self._http.request(method, path, **request)
            except httpx2.ConnectError as error:
                if not _is_tls(error):
                    raise
                old, self._http = self._http, self._connect()
                await old.aclose()
                response = await self._http.request(method, path, **request)
        if response.is_success:
            return _json(response)
        raise _refused(response)

    async def _check_fence(self, step: str, _: dict[str, Any]) -> None:
        """Ask the fence when httpcore begins to send a request's head, and again for its body."""
        if self._fence is not None and ".send_request_" in step and step.endswith(".started"):
            self._fence()

    @contextlib.asynccontextmanager
    async def _failures(self) -> AsyncIterator[None]:
        try:
            yield
        except (httpx2.TransportError, OSError) as error:
            said = str(error) or type(error).__name__
            raise ApiUnreachable(f"the API server does not answer: {said}") from error


def _is_tls(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _json(response: httpx2.Response) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(response.content)
    return found


def _refused(response: httpx2.Response) -> ApiRefused:
    try:
        status = _json(response)
    except orjson.JSONDecodeError:
        return ApiRefused(response.status_code, response.reason_phrase, response.text[:500])
    message = status.get("message") or response.reason_phrase
    causes = tuple(cause.get("reason", "") for cause in (status.get("details") or {}).get("causes") or ())
    return ApiRefused(response.status_code, status.get("reason") or response.reason_phrase, message, causes)
