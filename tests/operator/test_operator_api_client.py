"""The operator's client: its requests to an API server, and how it reads the answers."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from clusterless.http_api import HttpApi
from cryptography.x509.oid import ExtendedKeyUsageOID
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import Cluster, User
from penstock_operator.cluster.api_client import Api, ApiStatusError, ApiUnreachable, api_server_access
from penstock_operator.cluster.kinds import EVENT, POD, POOL, ResourceKind
from penstock_operator.manifests.manifest import Manifest, Ref
from penstock_operator.reconcile.reconciler import new_key
from penstock_operator.tls.certificates import CertificateAndKey, Subject, authority, issue
from penstock_runtime.serving import StartError

T = TypeVar("T")

REF = Ref("apps/v1", "StatefulSet", "team", "chat")
PATH = "/apis/apps/v1/namespaces/team/statefulsets/chat"
MADE: Manifest = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "chat", "namespace": "team", "resourceVersion": "7"},
    "spec": {"replicas": 2},
}
WRITTEN = {"fieldManager": "penstock-operator", "fieldValidation": "Strict"}
CONFLICT = {
    "reason": "Conflict",
    "message": "the object has been modified",
    "details": {"causes": [{"reason": "NamespaceTerminating"}, {}]},
}


def access(url: str, authority: Path | None = None) -> SingleConfig:
    cluster = Cluster(server=url, certificate_auth=None if authority is None else str(authority))
    found = KubeConfig.from_one(cluster=cluster, user=User()).get()
    assert found is not None
    return found


def asked(server: HttpApi, use: Callable[[Api], Awaitable[T]]) -> T:
    """Return the result of a use of the client against a server."""

    async def story() -> T:
        async with server.listening():
            api = Api(access(server.url))
            try:
                return await use(api)
            finally:
                await api.close()

    return asyncio.run(story())


def refused(*answer: Any) -> ApiStatusError:
    """Return the exception of a request with this answer."""
    with pytest.raises(ApiStatusError) as caught:
        asked(HttpApi([answer]), lambda api: api.apply(MADE))
    return caught.value


def test_an_object_is_read_from_its_path() -> None:
    server = HttpApi([(200, MADE)])
    assert asked(server, lambda api: api.get(REF)) == MADE
    (request,) = server.requests
    assert (request.method, request.path, request.query) == ("GET", PATH, {})


def test_a_missing_object_is_read_as_none() -> None:
    assert asked(HttpApi([(404, {"reason": "NotFound"})]), lambda api: api.get(REF)) is None
    with pytest.raises(ApiStatusError):
        asked(HttpApi([(403, {"reason": "Forbidden"})]), lambda api: api.get(REF))


@pytest.mark.parametrize(("status", "there"), [(200, True), (404, False)])
def test_an_existence_check_does_not_read_the_object(status: int, there: bool) -> None:
    server = HttpApi([(status, {})])
    assert asked(server, lambda api: api.exists(REF)) is there
    (request,) = server.requests
    assert request.path == PATH
    assert request.headers["accept"] == "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


def test_any_page_of_the_server_can_be_read() -> None:
    server = HttpApi([(200, {"a": 1}), (404, {})])
    assert asked(server, lambda api: api.read("/openapi/v3")) == {"a": 1}
    assert server.requests[0].path == "/openapi/v3"


def test_a_list_is_read_page_by_page_and_has_the_last_pages_version() -> None:
    def page(name: str, version: str, more: str | None = None) -> tuple[int, Any]:
        following = {"continue": more} if more else {}
        items = [{"metadata": {"name": name}}]
        return 200, {"items": items, "metadata": {"resourceVersion": version, **following}}

    server = HttpApi([page("a", "10", "next"), page("b", "11", ""), page("c", "12")])
    found = asked(server, lambda api: api.list(POOL, "team", labels="own=true", fields="type=Warning"))
    kind = {"apiVersion": POOL.api_version, "kind": POOL.kind}
    assert found == ([kind | {"metadata": {"name": name}} for name in "ab"], 11)
    selected = {"labelSelector": "own=true", "fieldSelector": "type=Warning", "limit": "100"}
    assert [request.query for request in server.requests] == [selected, selected | {"continue": "next"}]
    assert server.requests[0].path == "/apis/penstock.dev/v1alpha1/namespaces/team/servingpools"


def test_a_list_without_selectors_has_all_objects() -> None:
    server = HttpApi([(200, {"items": [], "metadata": {"resourceVersion": "3"}})])
    assert asked(server, lambda api: api.list(POD)) == ([], 3)
    assert (server.requests[0].path, server.requests[0].query) == ("/api/v1/pods", {"limit": "100"})


FORCED = WRITTEN | {"force": "true"}
APPLY, MERGE, JSON = "application/apply-patch+yaml", "application/merge-patch+json", "application/json"
WRITES: dict[str, tuple[Callable[[Api], Awaitable[Manifest]], str, str, dict[str, str], str]] = {
    "apply": (lambda api: api.apply(MADE), "PATCH", PATH, FORCED, APPLY),
    "apply status": (lambda api: api.apply(MADE, "status"), "PATCH", f"{PATH}/status", FORCED, APPLY),
    "dry run": (
        lambda api: api.apply(MADE, dry_run=True),
        "PATCH",
        PATH,
        FORCED | {"dryRun": "All"},
        APPLY,
    ),
    "overwrite": (lambda api: api.overwrite(MADE), "PATCH", PATH, WRITTEN, MERGE),
    "put": (lambda api: api.put(MADE), "PUT", PATH, WRITTEN, JSON),
    "create": (lambda api: api.create(MADE), "POST", PATH.removesuffix("/chat"), WRITTEN, JSON),
}


@pytest.mark.parametrize(
    ("write", "method", "path", "query", "content_type"), list(WRITES.values()), ids=list(WRITES)
)
def test_a_write_sends_the_manifest_and_returns_the_object(
    write: Callable[[Api], Awaitable[Manifest]],
    method: str,
    path: str,
    query: dict[str, str],
    content_type: str,
) -> None:
    server = HttpApi([(200, {"made": True})])
    assert asked(server, write) == {"made": True}
    (request,) = server.requests
    assert (request.method, request.path, request.query) == (method, path, query)
    assert (request.headers["content-type"], request.json) == (content_type, MADE)


def test_a_deletion_names_the_uid_and_ignores_a_missing_object() -> None:
    server = HttpApi([(200, {}), (404, {"reason": "NotFound"}), (409, CONFLICT)])

    async def delete_three_times(api: Api) -> None:
        await api.delete(REF, "uid-1")
        await api.delete(REF, "uid-2")
        with pytest.raises(ApiStatusError, match="the object has been modified"):
            await api.delete(REF, "uid-3")

    asked(server, delete_three_times)
    first = server.requests[0]
    assert (first.method, first.path) == ("DELETE", PATH)
    assert first.json == {"propagationPolicy": "Background", "preconditions": {"uid": "uid-1"}}


def test_a_refusal_has_the_servers_message() -> None:
    found = refused(409, CONFLICT)
    assert (found.code, found.reason, str(found)) == (409, "Conflict", "the object has been modified")
    assert found.causes == ("NamespaceTerminating", "")
    assert found.namespace_terminating


def test_a_refusal_without_a_message_has_its_status_line() -> None:
    found = refused(403, {"details": None})
    assert (found.code, found.reason, str(found), found.causes) == (403, "Said", "Said", ())
    assert not found.namespace_terminating


def test_a_refusal_of_a_proxy_is_shortened() -> None:
    found = refused(502, b"<html>" + b"x" * 1000)
    assert (found.code, found.reason, len(str(found))) == (502, "Said", 500)


@pytest.mark.parametrize(("code", "passes"), [(429, True), (500, True), (503, True), (499, False)])
def test_a_busy_servers_refusals_are_temporary(code: int, passes: bool) -> None:
    assert ApiStatusError(code, "", "").retryable is passes


def test_a_server_that_closes_the_connection_is_unreachable() -> None:
    with pytest.raises(ApiUnreachable, match=r"^the API server does not answer: \S"):
        asked(HttpApi([None]), lambda api: api.get(REF))


def test_a_missing_server_is_unreachable() -> None:
    async def story() -> None:
        async with HttpApi().listening() as server:
            url = server.url
        api = Api(access(url))
        try:
            await api.get(REF)
        finally:
            await api.close()

    with pytest.raises(ApiUnreachable, match=r"^the API server does not answer: "):
        asyncio.run(story())


def made_authority() -> CertificateAndKey:
    return authority("localhost", datetime.now(UTC), timedelta(days=1), new_key)


def shown(signer: CertificateAndKey, folder: Path, context: ssl.SSLContext | None = None) -> ssl.SSLContext:
    """Return a server's TLS context with a new certificate of this authority."""
    subject = Subject("localhost", ExtendedKeyUsageOID.SERVER_AUTH)
    pair = issue(subject, signer, datetime.now(UTC), timedelta(days=1), new_key)
    (folder / "tls.pem").write_bytes(pair.certificate + pair.key)
    context = context or ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "tls.pem")
    return context


def test_a_renewed_authority_of_the_server_is_read_again(tmp_path: Path) -> None:
    first, second, trusted = made_authority(), made_authority(), tmp_path / "ca.crt"

    async def story() -> None:
        trusted.write_bytes(first.certificate)
        context = shown(first, tmp_path)
        async with HttpApi([(200, MADE), None, (200, MADE)]).listening(context) as server:
            api = Api(access(server.url, trusted))
            assert await api.get(REF) == MADE
            with pytest.raises(ApiUnreachable):
                await api.get(REF)
            shown(second, tmp_path, context)
            trusted.write_bytes(second.certificate)
            assert await api.get(REF) == MADE
            await api.close()

    asyncio.run(story())


def test_a_server_of_an_unknown_authority_is_unreachable(tmp_path: Path) -> None:
    async def story() -> None:
        trusted = tmp_path / "ca.crt"
        trusted.write_bytes(made_authority().certificate)
        async with HttpApi().listening(shown(made_authority(), tmp_path)) as server:
            api = Api(access(server.url, trusted))
            with pytest.raises(ApiUnreachable, match="certificate"):
                await api.get(REF)
            await api.close()

    asyncio.run(story())


def test_access_is_read_from_the_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config"
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(StartError, match=r"^no API server is known: "):
        api_server_access()
    file.write_text("clusters: []\ncontexts: []\n")
    with pytest.raises(StartError, match=r"^no API server is known: No current context set"):
        api_server_access()
    file.write_text(
        "clusters: [{name: a, cluster: {server: 'http://localhost:1'}}]\nusers: [{name: a, user: {}}]\n"
        "contexts: [{name: a, context: {cluster: a, user: a}}]\ncurrent-context: a\n"
    )
    assert api_server_access().cluster.server == "http://localhost:1"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "{current-context: a, contexts: [{name: a, context: {cluster: c}}]}",
            "the kubeconfig has no 'clusters'",
        ),
        ("current-context: [", "while parsing"),
        ("just text", ""),
    ],
)
def test_a_kubeconfig_that_cannot_be_read_is_a_start_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(StartError, match=f"^no API server is known: {why}"):
        api_server_access()


def test_a_path_has_the_group_the_namespace_and_the_name() -> None:
    assert EVENT.path("team", "one") == "/api/v1/namespaces/team/events/one"
    assert EVENT.path(None) == "/api/v1/events"
    node = ResourceKind("example.com/v1", "Node", "nodes", namespaced=False)
    assert node.path("team", "one", "status") == "/apis/example.com/v1/nodes/one/status"
    assert (node.group, node.version, EVENT.group, EVENT.version) == ("example.com", "v1", "", "v1")
