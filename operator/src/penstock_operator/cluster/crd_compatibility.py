"""Compares the cluster's ServingPool CRD with the schema of this operator, once at start.

The CRD's fields are read from the OpenAPI document that the API server publishes to every client, which needs
no permission. An operator that could not write the status does not start. Any other difference is logged in
one line, and fields that both sides know are served. A pool with a field that this operator does not know is
not served in part: it is Degraded with reason SpecInvalid and the name of the field.
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import structlog
from penstock_pool.crd.definition import schema
from penstock_runtime.serving import StartError

from penstock_operator.cluster.api_client import Api
from penstock_operator.cluster.kinds import GROUP, VERSION

log = structlog.get_logger()

APPLY = "kubectl apply --server-side -f crds/servingpools.yaml"
WAIT_S = 30.0
"""Seconds to wait until a CRD that was just applied is published."""

POLL_S = 1.0
"""Seconds between reads of a CRD that is not published yet."""
MOST_NAMED = 8
"""Most missing fields that the error names."""


async def check_crd(api: Api, wait_s: float = WAIT_S) -> None:
    """Compare the schemas and log differences.

    Raises StartError if the operator cannot work; ApiUnreachable.
    """
    found: Mapping[str, Any] | None = None
    deadline_s = asyncio.get_running_loop().time() + wait_s
    while found is None and asyncio.get_running_loop().time() < deadline_s:
        page = await api.read(f"/openapi/v3/apis/{GROUP}/{VERSION}")
        found = published(page) if page is not None else None
        if found is None:
            log.warning("no ServingPool in this cluster yet", to_do=APPLY)
            await asyncio.sleep(POLL_S)
    if found is None:
        raise StartError(f"this cluster has no ServingPool {VERSION}; {APPLY}")
    for line in judge(set(fields(schema())), set(fields(found))):
        log.warning(line)


def published(page: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the ServingPool schema in an API server's OpenAPI document; None if there is none."""
    for schema_ in page.get("components", {}).get("schemas", {}).values():
        kinds = schema_.get("x-kubernetes-group-version-kind", ())
        if {"group": GROUP, "kind": "ServingPool", "version": VERSION} in kinds:
            return dict(schema_)
    return None


def fields(schema_: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """Yield every field of a schema's spec and status, like `spec.tiers[].slo.tpot`."""
    for name, inner in schema_.get("properties", {}).items():
        path = f"{at}.{name}" if at else name
        if path.startswith(("spec", "status")):
            yield path
            yield from fields(inner, path)
    if isinstance(items := schema_.get("items"), Mapping):
        yield from fields(items, f"{at}[]")


def judge(ours: set[str], theirs: set[str]) -> list[str]:
    """Return one line per difference. Raises StartError if the status could not be written."""
    older, newer = sorted(ours - theirs), sorted(theirs - ours)
    definition = "this cluster's ServingPool"
    if unwritable := [field for field in older if field.startswith("status")]:
        raise StartError(
            f"{definition} is older than the operator, which could not report {_named(unwritable)}; {APPLY}"
        )
    differences = []
    if older:
        differences.append(f"{definition} is older than the operator and lacks {_named(older)}; {APPLY}")
    if newer:
        differences.append(f"{definition} is newer than the operator, which does not know {_named(newer)}")
    return differences


def _named(paths: list[str]) -> str:
    more = len(paths) - MOST_NAMED
    return ", ".join(paths[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
