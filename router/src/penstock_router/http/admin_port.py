"""The router's admin port: metrics, and the state of the pool as this router sees it.

Operators of the pool, Prometheus and probes use it. Only this machine or the cluster can reach it. It stays
up while the router drains.
"""

from penstock_runtime.http_request import App
from penstock_runtime.pages import PROMETHEUS, Page, pages_app

from penstock_router.http.app import RouterApp


def admin_app(router: RouterApp, pool: str) -> App:
    """Return the pages of a router. pool: the pool's name."""
    pages = {
        "/metrics": Page("metrics for Prometheus", router.metrics.page, PROMETHEUS),
        "/penstock/v1/pool": Page("tiers, targets, time model and replicas", router.pool_page),
        "/penstock/v1/demand": Page("demand on the pool, for autoscaling", router.demand_page),
        "/health": Page("200 while the process runs", router.health_page),
        "/ready": Page("200 while the router takes requests", router.ready_page),
    }
    return pages_app(f"penstock-router of the pool {pool}", pages)
