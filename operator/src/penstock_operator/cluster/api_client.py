"""Client of the Kubernetes API server: a few verbs on plain JSON.

lightkube finds the server and its credentials (in a pod the service account's, otherwise a kubeconfig), and
reads a rotated token again when the server refuses the old one. This module handles a rotated certificate
authority: after a TLS failure it connects again, with the files as they are now.

Every write is a server-side apply under the operator's field manager with strict validation, so the server
rejects unknown fields instead of dropping them. If several operators share a Lease, `fence` is called
immediately before the bytes of a write are sent, because a request may wait for a connection and a process
may be frozen. This module does not retry, because its callers reconcile again anyway. Every failure is one of
two exceptions.
"""

import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx2
import orjson
from lightkube import KubeConfig, SingleConfig
from lightkube.config import client_adapter
from penstock_runtime.certificate_chains import not_strict
from penstock_runtime.serving import StartError

from penstock_operator.cluster.kinds import ResourceKind, kind_of
from penstock_operator.manifests.manifest import Manifest, Ref
from penstock_operator.manifests.names import FIELD_MANAGER

REQUEST_TIMEOUT_S = 10.0
"""Timeout of the API server in seconds, whose webhooks may take that long."""

PAGE_SIZE = "100"
"""Objects per page of a list. Parsing a page blocks the event loop for a few milliseconds."""

_WRITE_PARAMS = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
_MERGE_PATCH = {"content-type": "application/merge-patch+json"}
_APPLY_PATCH = {"content-type": "application/apply-patch+yaml"}  # JSON is YAML
_METADATA_ONLY = {"accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}


class ApiStatusError(Exception):
    """The API server answered with an error. code: HTTP status; reason, causes: fields of its Status."""

    def __init__(self, code: int, reason: str, message: str, causes: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.code, self.reason, self.causes = code, reason, causes

    @property
    def namespace_terminating(self) -> bool:
        """Return whether the object's namespace is being deleted."""
        return "NamespaceTerminating" in self.causes

    @property
    def retryable(self) -> bool:
        """Return whether a retry may succeed: the server, or a service behind it, is busy or unavailable."""
        return self.code == 429 or self.code >= 500


class ApiUnreachable(Exception):
    """The API server did not answer."""


def api_server_access() -> SingleConfig:
    """Return address and credentials of the API server, from the pod or $KUBECONFIG. Raises StartError."""
    try:
        access = KubeConfig.from_env().get()
    except Exception as error:  # lightkube raises ConfigError, and its parsers many other types
        missing = f"the kubeconfig has no {error}" if isinstance(error, KeyError) else error
        raise StartError(f"no API server is known: {missing}") from error
    assert access is not None, "without a current context it raises"
    return access


class Api:
    """One connection pool to one API server.

    fence: called before a write is sent. If it raises, the write is not sent and raises the same exception.
    """

    def __init__(self, access: SingleConfig, fence: Callable[[], None] | None = None) -> None:
        self._access = access
        self._fence = fence
        self._http = self._connect()

    def _connect(self) -> httpx2.AsyncClient:
        timeout = httpx2.Timeout(REQUEST_TIMEOUT_S)
        parameters = client_adapter.ConnectionParams(timeout=timeout).httpx_params(self._access)
        return httpx2.AsyncClient(**{**parameters, "verify": not_strict(parameters["verify"])})

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def get(self, ref: Ref) -> Manifest | None:
        """Return an object, or None if it does not exist."""
        return await self._request_or_none("GET", kind_of(ref).path(ref.namespace, ref.name))

    async def exists(self, ref: Ref) -> bool:
        """Return whether an object exists.

        Only its metadata is read, so a Secret's content is never transferred.
        """
        path = kind_of(ref).path(ref.namespace, ref.name)
        return await self._request_or_none("GET", path, headers=_METADATA_ONLY) is not None

    async def read(self, path: str) -> Manifest | None:
        """Return the JSON at a path of the server, or None if there is none."""
        return await self._request_or_none("GET", path)

    async def list(
        self, kind: ResourceKind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> tuple[list[Manifest], int]:
        """Return all objects of a kind that match the selectors, and the list's resource version."""
        selected = {"labelSelector": labels, "fieldSelector": fields, "limit": PAGE_SIZE}
        params = {name: value for name, value in selected.items() if value}
        items: list[Manifest] = []
        while True:
            page = await self._request("GET", kind.path(namespace), params)
            items += ({"apiVersion": kind.api_version, "kind": kind.kind} | item for item in page["items"])
            if not page["metadata"].get("continue"):
                return items, int(page["metadata"]["resourceVersion"])
            params["continue"] = page["metadata"]["continue"]

    async def apply(
        self, manifest: Manifest, subresource: str | None = None, dry_run: bool = False
    ) -> Manifest:
        """Apply a manifest by forced server-side apply. Returns the resulting object."""
        metadata = manifest["metadata"]
        path = kind_of(manifest).path(metadata.get("namespace"), metadata["name"], subresource)
        params = _WRITE_PARAMS | {"force": "true"} | ({"dryRun": "All"} if dry_run else {})
        return await self._request("PATCH", path, params, _APPLY_PATCH, orjson.dumps(manifest))

    async def overwrite(self, manifest: Manifest) -> Manifest:
        """Merge a manifest into an existing object.

        Lists are replaced, including entries of other managers.
        """
        metadata = manifest["metadata"]
        path = kind_of(manifest).path(metadata.get("namespace"), metadata["name"])
        return await self._request("PATCH", path, _WRITE_PARAMS, _MERGE_PATCH, orjson.dumps(manifest))

    async def put(self, manifest: Manifest) -> Manifest:
        """Replace an object if it still has the manifest's resource version."""
        metadata = manifest["metadata"]
        path = kind_of(manifest).path(metadata["namespace"], metadata["name"])
        return await self._request("PUT", path, _WRITE_PARAMS, None, orjson.dumps(manifest))

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object that does not exist yet."""
        path = kind_of(manifest).path(manifest["metadata"]["namespace"])
        body = orjson.dumps(manifest)
        return await self._request("POST", path, _WRITE_PARAMS, None, body)

    async def delete(self, ref: Ref, uid: str) -> None:
        """Delete an object in the background if it still has this uid. An absent object is not an error."""
        options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        path = kind_of(ref).path(ref.namespace, ref.name)
        await self._request_or_none("DELETE", path, body=orjson.dumps(options))

    async def _request_or_none(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Manifest | None:
        try:
            return await self._request(method, path, None, headers, body)
        except ApiStatusError as error:
            if error.code == 404:
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
        extensions = {} if method == "GET" or self._fence is None else {"trace": self._check_fence}
        request: dict[str, Any] = {
            "params": params,
            "headers": headers,
            "content": body,
            "extensions": extensions,
        }
        async with self._unreachable_on_failure():
            try:
                response = await self._http.request(method, path, **request)
            except httpx2.ConnectError as error:
                if not _is_tls(error):
                    raise
                old, self._http = self._http, self._connect()
                await old.aclose()
                response = await self._http.request(method, path, **request)
        if response.is_success:
            return _parse_json(response)
        raise _status_error(response)

    async def _check_fence(self, step: str, _: dict[str, Any]) -> None:
        """Call the fence when httpcore begins to send a request's head, and again for its body."""
        if self._fence is not None and ".send_request_" in step and step.endswith(".started"):
            self._fence()

    @contextlib.asynccontextmanager
    async def _unreachable_on_failure(self) -> AsyncIterator[None]:
        try:
            yield
        except (httpx2.TransportError, OSError) as error:
            message = str(error) or type(error).__name__
            raise ApiUnreachable(f"the API server does not answer: {message}") from error


def _is_tls(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _parse_json(response: httpx2.Response) -> dict[str, Any]:
    content: dict[str, Any] = orjson.loads(response.content)
    return content


def _status_error(response: httpx2.Response) -> ApiStatusError:
    try:
        status = _parse_json(response)
    except orjson.JSONDecodeError:
        return ApiStatusError(response.status_code, response.reason_phrase, response.text[:500])
    message = status.get("message") or response.reason_phrase
    causes = tuple(cause.get("reason", "") for cause in (status.get("details") or {}).get("causes") or ())
    return ApiStatusError(
        response.status_code, status.get("reason") or response.reason_phrase, message, causes
    )
