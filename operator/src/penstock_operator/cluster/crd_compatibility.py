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
PUBLISH_TIMEOUT_S = 30.0
"""Seconds to wait until a CRD that was just applied is published."""

POLL_INTERVAL_S = 1.0
"""Seconds between reads of a CRD that is not published yet."""
MAX_NAMED_FIELDS = 8
"""Maximum number of fields that an error names."""


async def check_crd(api: Api, wait_s: float = PUBLISH_TIMEOUT_S) -> None:
    """Compare the schemas and log differences.

    Raises StartError if the operator cannot work; ApiUnreachable.
    """
    schema_: Mapping[str, Any] | None = None
    deadline_s = asyncio.get_running_loop().time() + wait_s
    while schema_ is None and asyncio.get_running_loop().time() < deadline_s:
        page = await api.read(f"/openapi/v3/apis/{GROUP}/{VERSION}")
        schema_ = published_schema(page) if page is not None else None
        if schema_ is None:
            log.warning("no ServingPool in this cluster yet", to_do=APPLY)
            await asyncio.sleep(POLL_INTERVAL_S)
    if schema_ is None:
        raise StartError(f"this cluster has no ServingPool {VERSION}; {APPLY}")
    for line in compare_fields(set(fields(schema())), set(fields(schema_))):
        log.warning(line)


def published_schema(page: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the ServingPool schema in an API server's OpenAPI document; None if there is none."""
    for schema_ in page.get("components", {}).get("schemas", {}).values():
        kinds = schema_.get("x-kubernetes-group-version-kind", ())
        if {"group": GROUP, "kind": "ServingPool", "version": VERSION} in kinds:
            return dict(schema_)
    return None


def fields(schema_: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield every field of a schema's spec and status, like `spec.tiers[].slo.tpot`."""
    for name, subschema in schema_.get("properties", {}).items():
        inner_path = f"{path}.{name}" if path else name
        if inner_path.startswith(("spec", "status")):
            yield inner_path
            yield from fields(subschema, inner_path)
    if isinstance(items := schema_.get("items"), Mapping):
        yield from fields(items, f"{path}[]")


def compare_fields(known: set[str], installed: set[str]) -> list[str]:
    """Return one line per difference. Raises StartError if the status could not be written."""
    missing, unknown = sorted(known - installed), sorted(installed - known)
    definition = "this cluster's ServingPool"
    if unwritable := [field for field in missing if field.startswith("status")]:
        raise StartError(
            f"{definition} is older than the operator, which could not report {_names(unwritable)}; {APPLY}"
        )
    differences = []
    if missing:
        differences.append(f"{definition} is older than the operator and lacks {_names(missing)}; {APPLY}")
    if unknown:
        differences.append(f"{definition} is newer than the operator, which does not know {_names(unknown)}")
    return differences


def _names(paths: list[str]) -> str:
    more = len(paths) - MAX_NAMED_FIELDS
    return ", ".join(paths[:MAX_NAMED_FIELDS]) + (f" and {more} more" if more > 0 else "")
