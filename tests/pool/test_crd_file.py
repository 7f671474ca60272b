"""The CustomResourceDefinition is the schema that reads pool files, in the dialect of Kubernetes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from penstock_core.policies import POLICIES
from penstock_core.routing.orders import ORDERS
from penstock_pool.cel import CelRule, FieldErrorReason
from penstock_pool.crd import SCHEMA_ANNOTATION, definition, schema_digest
from penstock_pool.crd.page import page

FILE = Path(__file__).resolve().parents[2] / "crds" / "servingpools.yaml"
VERSION = definition()["spec"]["versions"][0]
SCHEMA: dict[str, Any] = VERSION["schema"]["openAPIV3Schema"]


def fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field at any depth, by its path."""
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from fields(field, f"{path}.{name}")
    for inner in ("items", "additionalProperties"):
        if inner in schema:
            yield from fields(schema[inner], f"{path}[]")


FIELDS = dict(fields(SCHEMA["properties"]["spec"], "spec"))


def test_the_file_is_fresh() -> None:
    assert FILE.read_text() == page(), "stale: run make crds"


def test_the_file_names_its_schema() -> None:
    assert definition()["metadata"]["annotations"] == {SCHEMA_ANNOTATION: schema_digest()}


@pytest.mark.parametrize(("path", "schema"), FIELDS.items(), ids=FIELDS)
def test_every_field_is_described_and_has_one_place(path: str, schema: dict[str, Any]) -> None:
    assert not {"$ref", "title", "examples", "const"} & schema.keys()
    assert path.endswith("[]") or schema["description"]


@pytest.mark.parametrize(("path", "schema"), FIELDS.items(), ids=FIELDS)
def test_every_array_string_and_map_has_a_bound(path: str, schema: dict[str, Any]) -> None:
    """A spec of any size is refused by its fields, and rules over them have a cost that can be foreseen."""
    kind = schema.get("type")
    if kind == "array":
        assert "maxItems" in schema
    if kind == "string":
        assert "maxLength" in schema or "enum" in schema
    if kind == "object" and "additionalProperties" in schema:
        assert "maxProperties" in schema


@pytest.mark.parametrize(
    ("path", "default"),
    [
        ("spec.replicas", 1),
        ("spec.router.replicas", 2),
        ("spec.scheduling.deliveryAllowance", "5ms"),
        ("spec.autoscaling.scaleDown.stabilizationWindow", "5m"),
        ("spec.autoscaling.scaleUp", {"stabilizationWindow": "15s"}),
        ("spec.tiers[].slo.judge", "mean"),
        ("spec.monitoring", {"serviceMonitor": False}),
    ],
)
def test_defaults_are_written_as_in_a_file(path: str, default: object) -> None:
    assert FIELDS[path]["default"] == default


@pytest.mark.parametrize(
    "path", ["spec.defaultTier", "spec.autoscaling", "spec.applications", "spec.ingress"]
)
def test_optional_fields_without_a_default_have_none_in_the_crd(path: str) -> None:
    assert "default" not in FIELDS[path]


def test_names_that_the_core_knows_are_listed() -> None:
    assert FIELDS["spec.scheduling.policy"]["enum"] == list(POLICIES)
    assert FIELDS["spec.routing.order"]["enum"] == list(ORDERS)


def test_a_status_has_no_defaults() -> None:
    observed = dict(fields(SCHEMA["properties"]["status"], "status"))
    assert [path for path, schema in observed.items() if "default" in schema] == []
    assert {"status.conditions", "status.selector", "status.tiers[].attainment"} <= observed.keys()


def test_the_description_has_an_example() -> None:
    assert FIELDS["spec.tiers[].slo.tpot"]["description"].endswith("Like `50ms`.")
    assert "Like" not in FIELDS["spec.scheduling.policy"]["description"]  # its default says it already


@pytest.mark.parametrize(
    ("rule", "document"),
    [
        (CelRule("self.a > 0", "is none"), {"rule": "self.a > 0", "message": "is none"}),
        (
            CelRule("has(self.a)", "missing", field_path="a", reason=FieldErrorReason.MISSING),
            {
                "rule": "has(self.a)",
                "message": "missing",
                "fieldPath": ".a",
                "reason": "FieldValueRequired",
            },
        ),
        (
            CelRule("self.ok", '"{self.a}" isn\'t {self.b}'),
            {
                "rule": "self.ok",
                "messageExpression": r"""'"' + self.a + '" isn\'t ' + self.b""",
            },
        ),
    ],
)
def test_a_rule_uses_kubernetes_format(rule: CelRule, document: dict[str, str]) -> None:
    assert rule.document() == document
