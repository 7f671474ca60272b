"""The operator's pages for Prometheus and the kubelet."""

import orjson
import pytest
from http_by_hand import asked
from penstock_operator.cluster.cache import PoolKey
from penstock_operator.pages import OperatorHealth, pages
from prometheus_client import CollectorRegistry, Gauge

KEY, OTHER = PoolKey("team", "chat"), PoolKey("team", "code")


class Page:
    """The pages of one operator, whose clock a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.health, self.now_s = OperatorHealth(stuck_s=10.0), 100.0
        registry = CollectorRegistry()
        scrapes = Gauge("scrapes", "How often it was asked.", registry=registry)
        self._app = pages(registry, self.health, scrapes.inc)
        monkeypatch.setattr("penstock_operator.pages.time.monotonic", lambda: self.now_s)

    async def get(self, path: str) -> tuple[int, bytes]:
        response = await asked(self._app, f"GET {path} HTTP/1.1".encode())
        return response.status, response.body


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Page:
    return Page(monkeypatch)


async def test_gauges_are_updated_before_each_scrape(page: Page) -> None:
    for scrapes in (1, 2):
        status, body = await page.get("/metrics")
        assert (status, f"scrapes {scrapes}.0" in body.decode()) == (200, True)


async def test_an_operator_is_ready_once_it_has_read_the_pools(page: Page) -> None:
    status, body = await page.get("/ready")
    assert (status, orjson.loads(body)["error"]["code"]) == (503, "not_ready")
    page.health.synced = True
    assert (await page.get("/ready"))[0] == 200


async def test_an_operator_is_healthy_unless_a_pool_takes_too_long(page: Page) -> None:
    with page.health.reconciling(KEY):
        page.now_s += 10.0
        assert await page.get("/health") == (200, b'{"status":"ok"}')
        with page.health.reconciling(OTHER):
            page.now_s += 0.1
            status, body = await page.get("/health")
            error = orjson.loads(body)["error"]
            assert (status, error["code"], error["message"]) == (503, "unhealthy", "stuck at team/chat")
    page.now_s += 100.0
    assert (await page.get("/health"))[0] == 200, "neither is under way any more"


async def test_an_operator_that_lost_a_task_is_unhealthy(page: Page) -> None:
    page.health.failed_task = "worker 0"
    status, body = await page.get("/health")
    assert (status, orjson.loads(body)["error"]["message"]) == (503, "worker 0 ended")
