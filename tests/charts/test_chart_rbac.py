"""Permissions: those that the operator uses, each with its reason, and those that it grants to routers."""

import re
from collections.abc import Iterator

from chart.rendered import ROOT, Manifest, of_kind, rendered
from chart.tables import between, rights
from penstock_operator.cluster.kinds import WATCHED

PAGE = (ROOT / "docs" / "kubernetes" / "rbac.md").read_text()

Right = tuple[str, str, str]
"""API group, resource (with its name, where only that one), verb."""

READ = {"get", "list", "watch"}
WRITE = {"create", "patch", "delete"}


def role(manifests: list[Manifest], kind: str, name: str) -> list[Manifest]:
    (found,) = [m for m in of_kind(manifests, kind) if m["metadata"]["name"] == name]
    rules: list[Manifest] = found["rules"]
    return rules


def operator_rules() -> list[Manifest]:
    return role(rendered(), "ClusterRole", "penstock-operator")


def rows(name: str) -> Iterator[list[str]]:
    for line in between(PAGE, name).splitlines()[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def reported(group: str, resources: str, verbs: str) -> set[Right]:
    """One row of a table as rights."""
    named = re.match(r"`(\w+)`: `([\w-]+)`", resources)
    listed = [f"{named[1]}:{named[2]}"] if named else re.findall(r"`([\w/]+)`", resources)
    api = "" if group == "core" else group.strip("`")
    return {(api, resource, verb) for resource in listed for verb in verbs.split(", ")}


def documented_in(name: str) -> set[Right]:
    return {right for group, resources, verbs, _ in rows(name) for right in reported(group, resources, verbs)}


def test_the_page_lists_every_permission_of_the_operator_and_no_other() -> None:
    assert documented_in("operator") | documented_in("cluster") == rights(operator_rules())


def test_in_watched_namespaces_the_operator_has_the_same_rights_and_none_in_the_cluster() -> None:
    flags = ["--set", "watchNamespaces={team-a,team-b}"]
    roles = [
        m for m in of_kind(rendered(flags=flags), "Role") if m["metadata"]["name"] == "penstock-operator"
    ]
    assert [m["metadata"]["namespace"] for m in roles] == ["team-a", "team-b"]
    for made in roles:
        assert rights(made["rules"]) == documented_in("operator")
    bound = of_kind(rendered(flags=flags), "ClusterRoleBinding")
    assert bound == []


def test_the_page_lists_the_permissions_for_its_lease() -> None:
    assert documented_in("lease") == rights(role(rendered(), "Role", "penstock-operator-lease"))


def test_the_page_lists_the_roles_of_users() -> None:
    found: dict[str, set[Right]] = {}
    for name, group, resources, verbs, _ in rows("people"):
        found.setdefault(name.strip("`"), set()).update(reported(group, resources, verbs))
    roles = {
        m["metadata"]["name"]: m["metadata"].get("labels", {}) for m in of_kind(rendered(), "ClusterRole")
    }
    aggregated = {
        name for name, labels in roles.items() if any("/aggregate-to-" in label for label in labels)
    }
    assert set(found) == aggregated != set()
    for name, output in found.items():
        assert output == rights(role(rendered(), "ClusterRole", name))


def test_every_rbac_rule_is_documented_with_its_purpose() -> None:
    for name in ("operator", "cluster", "lease", "people"):
        found = list(rows(name))
        assert found, name
        assert [row for row in found if not row[-1].strip(" -–")] == []


def test_the_operator_may_watch_and_apply_every_kind_of_a_pools_objects() -> None:
    has = rights(operator_rules())
    for kind in WATCHED:
        verbs = READ if kind.plural == "pods" else READ | WRITE
        assert {(kind.group, kind.plural, verb) for verb in verbs} <= has, kind


def test_no_rule_is_broader_than_documented() -> None:
    for group, resource, verb in rights(operator_rules()):
        assert "*" not in (group, resource, verb)
        assert verb not in ("escalate", "bind", "impersonate", "deletecollection")
    assert {verb for _, resource, verb in rights(operator_rules()) if resource == "secrets"} == {
        "get",
        *WRITE,
    }


def test_users_read_and_change_pools_with_the_clusters_own_roles() -> None:
    labels = {m["metadata"]["name"]: m["metadata"]["labels"] for m in of_kind(rendered(), "ClusterRole")}
    assert labels["penstock-view"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert labels["penstock-edit"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
