"""Values: every one is described, none is unknown, and a wrong one is refused by its name."""

from collections.abc import Iterator
from typing import Any

import pytest
from chart.rendered import rendered, template, the
from chart.tables import README, SCHEMA, VALUES, between, documented, resolved, values_table
from penstock_vllm.versions import HOOKS, check_version


def given(values: dict[str, Any], schema: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, value in values.items():
        where = f"{path}.{name}".removeprefix(".")
        yield where
        inner = resolved(schema["properties"][name])
        if "properties" in inner:
            yield from given(value, inner, where)


def test_every_value_is_described_and_every_described_one_has_a_default() -> None:
    known = dict(documented())
    assert set(known) - {"global"} == set(given(VALUES, SCHEMA))
    assert [path for path, schema in known.items() if not schema.get("description", "").endswith(".")] == []


def test_the_charts_readme_lists_the_values_of_its_schema() -> None:
    assert between(README.read_text(), "values") == values_table(), "stale: make chart"


def test_the_default_vllm_version_is_supported_by_the_plug_in() -> None:
    check_version(VALUES["images"]["vllm"]["tag"].removeprefix("v"), HOOKS)


def test_the_charts_schemas_accept_no_unknown_values() -> None:
    open_ones = [path for path, s in documented() if "properties" in s and s["additionalProperties"]]
    assert open_ones == []


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ("operator.replicass=2", "/operator"),
        ("operator.replicas=3", "/operator/replicas"),
        ("images.router.tagg=1", "/images/router"),
        ("images.operator.digest=sha256:12", "/images/operator/digest"),
        ("images.registry=https://registry.example", "/images/registry"),
        ("images.pullPolicy=Sometimes", "/images/pullPolicy"),
        ("logging.level=loud", "/logging/level"),
        ("pools.tls=yes", "/pools/tls"),
        ("watchNamespaces=default", "/watchNamespaces"),
        ("watchNamespaces[0]=Default", "/watchNamespaces/0"),
        ("monitoring.serviceMonitor=maybe", "/monitoring/serviceMonitor"),
        ("monitoring.rules.minimumRequests=0", "/monitoring/rules/minimumRequests"),
        ("nameOverride=Penstock", "/nameOverride"),
        ("watchNamespaces[0]=team.a", "/watchNamespaces/0"),
        ("pools.gatewayNamespaces[0]=team.a", "/pools/gatewayNamespaces/0"),
        ("serviceAccount.name=My_Account", "/serviceAccount/name"),
        ("operator.priorityClassName=My_Class", "/operator/priorityClassName"),
        ("images.operator.repository=null", "/images/operator"),
        ("networkPolicy.egress=null", "/networkPolicy"),
        ("monitoring.rules.burnRates=null", "/monitoring/rules"),
    ],
)
def test_an_invalid_value_is_refused_by_its_name(value: str, where: str) -> None:
    done = template(flags=["--set", value])
    assert done.returncode != 0
    assert f"at '{where}'" in done.stderr


@pytest.mark.parametrize("value", ["watchNamespaces", "extraLabels", "pools", "podDisruptionBudget"])
def test_a_value_that_is_null_is_refused_by_its_name(value: str) -> None:
    assert f"missing property '{value}'" in template(flags=["--set", f"{value}=null"]).stderr


def test_an_account_that_is_not_created_has_to_be_named() -> None:
    done = template(flags=["--set", "serviceAccount.create=false"])
    assert "serviceAccount.name: missing" in done.stderr


def test_extra_labels_are_on_every_object_without_overriding_the_charts() -> None:
    flags = ["--set", "extraLabels.team=inference,operator.podLabels.app\\.kubernetes\\.io/name=other"]
    manifests = rendered("ha", flags)
    assert [
        m["metadata"]["name"] for m in manifests if m["metadata"]["labels"].get("team") != "inference"
    ] == []
    deployment = the(manifests, "Deployment")["spec"]
    assert (
        deployment["selector"]["matchLabels"].items() <= deployment["template"]["metadata"]["labels"].items()
    )


def test_extra_labels_do_not_hide_the_operators_service_from_its_monitor() -> None:
    extra = ("name", "instance", "component", "managed-by")
    labels = ",".join(f"extraLabels.app\\.kubernetes\\.io/{each}=other" for each in extra)
    manifests = rendered("ha", ["--set", labels])
    monitored = the(manifests, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert monitored.items() <= the(manifests, "Service")["metadata"]["labels"].items()
    assert {m["metadata"]["labels"]["app.kubernetes.io/managed-by"] for m in manifests} == {"Helm"}
