"""Whether the cluster's ServingPool and the operator's are of one release."""

import copy
from typing import Any

import pytest
from penstock_operator.cluster.crd_compatibility import (
    POLL_INTERVAL_S,
    check_crd,
    compare_fields,
    fields,
    published_schema,
)
from penstock_pool.crd.definition import schema
from penstock_runtime.serving import StartError
from structlog.testing import capture_logs
from virtual_time import now_s, run

OURS = set(fields(schema()))


def test_fields_are_named_as_in_a_manifest() -> None:
    assert {"spec.replicas", "spec.tiers[].slo.tpot", "status.conditions[].reason"} <= OURS


def test_the_same_release_logs_nothing() -> None:
    assert compare_fields(OURS, OURS) == []


def test_an_older_definition_is_logged_with_its_missing_fields() -> None:
    (line,) = compare_fields(OURS, OURS - {"spec.ingress"})
    assert "older" in line
    assert "spec.ingress" in line
    assert "kubectl apply" in line


def test_a_newer_definition_is_logged_with_its_unknown_fields() -> None:
    (line,) = compare_fields(OURS, OURS | {"spec.teleport"})
    assert "newer" in line
    assert "spec.teleport" in line


def test_a_definition_without_the_status_stops_the_operator() -> None:
    with pytest.raises(StartError, match=r"older than the operator.*status\.autoscaling\.startedFrom"):
        compare_fields(OURS, OURS - {"status.autoscaling.startedFrom"})


def test_the_schema_is_found_in_the_file_by_its_kind() -> None:
    kind = {"group": "penstock.dev", "kind": "ServingPool", "version": "v1alpha1"}
    ours = copy.deepcopy(schema()) | {"x-kubernetes-group-version-kind": [kind]}
    page = {"components": {"schemas": {"other": {"type": "object"}, "pool": ours}}}
    found = published_schema(page)
    assert found is not None
    assert set(fields(found)) == OURS
    assert published_schema({"components": {"schemas": {}}}) is None


class Server:
    """A server that publishes a schema after `after` reads. paths: those that were read."""

    def __init__(self, schema_: dict[str, Any] | None, after: int = 0, page: Any = None) -> None:
        kind = {"group": "penstock.dev", "kind": "ServingPool", "version": "v1alpha1"}
        schemas = {"pool": {**(schema_ or {}), "x-kubernetes-group-version-kind": [kind]}}
        self.page, self.before, self.after = {"components": {"schemas": schemas}}, page, after
        self.paths: list[str] = []

    async def read(self, path: str) -> Any:
        self.paths.append(path)
        return self.page if len(self.paths) > self.after else self.before


def checked(server: Server, wait_s: float = 10.0) -> tuple[list[str], float]:
    """Return the logged messages and the time that the check took."""

    async def story() -> float:
        await check_crd(server, wait_s)  # type: ignore[arg-type]
        return now_s()

    with capture_logs() as logged:
        took_s = run(story())
    return [one["event"] for one in logged], took_s


def test_a_definition_of_this_release_is_read_once() -> None:
    server = Server(schema())
    assert checked(server) == ([], 0.0)
    assert server.paths == ["/openapi/v3/apis/penstock.dev/v1alpha1"]


@pytest.mark.parametrize("before", [None, {"components": {}}], ids=["no page", "no pool"])
def test_an_operator_waits_until_the_definition_is_published(before: Any) -> None:
    said, took_s = checked(Server(schema(), after=2, page=before))
    assert said == ["no ServingPool in this cluster yet"] * 2
    assert took_s == 2 * POLL_INTERVAL_S


def test_without_a_definition_the_operator_does_not_start() -> None:
    server = Server(schema(), after=1000)
    with pytest.raises(StartError, match=r"has no ServingPool v1alpha1; kubectl apply"):
        checked(server, 3 * POLL_INTERVAL_S)
    assert len(server.paths) == 3


def test_differences_are_logged_at_the_start() -> None:
    newer = copy.deepcopy(schema())
    newer["properties"]["spec"]["properties"]["teleport"] = {"type": "string"}
    (line,) = checked(Server(newer))[0]
    assert "spec.teleport" in line


def test_at_most_eight_missing_fields_are_named() -> None:
    many = {f"spec.a{i}" for i in range(9)}
    (line,) = compare_fields(OURS, OURS | many)
    assert "spec.a7" in line
    assert "spec.a8" not in line
    assert "1 more" in line
    assert "more" not in compare_fields(OURS, OURS | set(sorted(many)[:8]))[0]
