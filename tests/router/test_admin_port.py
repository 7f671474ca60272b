"""The admin port: its pages, which the public port does not serve."""

import orjson
import pytest
from http_by_hand import asked
from penstock_router.http.app import RouterApp
from penstock_routing.applications.api_keys import Keys
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_routing.settings import settings_of
from scripted.replica import ScriptedReplica
from scripted.router import make_link, pool_with, running_router

MOVED = ("/metrics", "/penstock/v1/pool", "/penstock/v1/demand")
ADMIN_URL = "http://127.0.0.1:9080"


@pytest.mark.parametrize("path", MOVED)
async def test_operator_pages_are_served_on_the_admin_port_only(path: str) -> None:
    async with running_router(ScriptedReplica("r0")) as router:
        assert (await router.admin.get(path)).status_code == 200
        public = await router.http.get(path)
        assert (public.status_code, public.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_probes_find_their_pages_on_both_ports(path: str) -> None:
    async with running_router(ScriptedReplica("r0")) as router:
        pages = [await port.get(path) for port in (router.http, router.admin)]
        assert [page.status_code for page in pages] == [200, 200]
        assert pages[0].content == pages[1].content


async def test_both_ports_say_that_there_is_no_replica() -> None:
    async with running_router() as router:
        pages = [await port.get("/ready") for port in (router.http, router.admin)]
        assert [page.json()["error"]["code"] for page in pages] == ["no_replicas", "no_replicas"]


async def test_the_admin_ports_index_names_every_page() -> None:
    async with running_router(ScriptedReplica("r0")) as router:
        index = await router.admin.get("/")
        assert index.headers["content-type"] == "text/plain; charset=utf-8"
        paths = [line.split()[0] for line in index.text.splitlines() if line.startswith("/")]
        assert paths == [*MOVED, "/health", "/ready"]
        assert [(await router.admin.get(path)).status_code for path in paths] == [200] * 5


async def test_the_admin_port_takes_no_requests_of_clients() -> None:
    async with running_router(ScriptedReplica("r0")) as router:
        assert (await router.admin.post("/v1/chat/completions", json={})).status_code == 404
        refused = await router.admin.post("/metrics", content=b"")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
        assert await router.metric("penstock_router_refused_total{") == 0


@pytest.mark.parametrize(
    ("client", "admin_url", "reported"),
    [
        ("127.0.0.1", ADMIN_URL, ADMIN_URL),
        ("::1", ADMIN_URL, ADMIN_URL),
        ("10.1.2.3", ADMIN_URL, None),
        ("127.0.0.1", None, None),
    ],
    ids=["local", "local, IPv6", "another machine", "an admin port beyond loopback"],
)
async def test_only_clients_on_this_machine_get_the_admin_port(
    client: str, admin_url: str | None, reported: str | None
) -> None:
    pool = pool_with()
    app = RouterApp(pool, settings_of(pool), Keys((), {}), ReplicaSet(make_link), admin_url=admin_url)
    response = await asked(app, b"GET /v1/models HTTP/1.1", client=client)
    (model,) = orjson.loads(response.body)["data"]
    assert model.get("admin_url") == reported
