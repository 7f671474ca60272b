"""Pages for operators list exactly the conditions and reasons that exist."""

import re
from collections.abc import Iterable

import pytest
from chart.rendered import CHART, ROOT
from chart.tables import between
from penstock_core.autoscaling.terms import ScalingReason
from penstock_operator.status.conditions import ConditionReason
from penstock_operator.status.diagnosis import Cause
from penstock_pool import parse_pool
from penstock_pool.status import CONDITIONS
from yaml import safe_load_all

PAGE = (ROOT / "docs" / "kubernetes" / "operations.md").read_text()


def rows(name: str) -> list[list[str]]:
    lines = between(PAGE, name).splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def camel(words: Iterable[str]) -> list[str]:
    return ["".join(part.capitalize() for part in word.split("_")) for word in words]


@pytest.mark.parametrize(
    ("name", "words"),
    [("reasons", list(ConditionReason)), ("causes", list(Cause)), ("autoscaling", camel(ScalingReason))],
)
def test_every_reason_is_listed_in_its_order_and_no_other(name: str, words: list[str]) -> None:
    assert [row[0].strip("`") for row in rows(name)] == words
    assert [row for row in rows(name) if not all(row)] == []


def test_conditions_are_described_as_in_kubectl_explain() -> None:
    assert {row[0].strip("`"): row[1] for row in rows("conditions")} == CONDITIONS


def test_links_of_pages_exist() -> None:
    pages = [*(ROOT / "docs" / "kubernetes").glob("*.md"), CHART / "README.md"]
    assert len(pages) == 7
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_example_pools_are_valid() -> None:
    found = sorted((ROOT / "examples" / "kubernetes").glob("*.yaml"))
    assert [path.stem for path in found] == ["autoscaled", "gpus", "simulated", "vllm"]
    for path in found:
        for document in safe_load_all(path.read_text()):
            if document["kind"] == "ServingPool":
                parse_pool(document, path.name)
