"""Names that YAML reads as a number or a boolean, and names of releases that no Service can have."""

from collections.abc import Iterator

import pytest
import yaml
from chart.rendered import CHART, KUBERNETES, helm
from yaml import MappingNode, Node, ScalarNode

INSTANCE = "app.kubernetes.io/instance"
TEXTS = {"namespace", "name", "value", "priorityClassName", "serviceAccountName", INSTANCE}
"""Keys whose values are names, which the API server accepts as strings only."""


def not_texts(node: Node | None) -> Iterator[str]:
    """Yield each of these keys that has a scalar other than a string."""
    for key, value in node.value if isinstance(node, MappingNode) else ():
        scalar = key.value in TEXTS and isinstance(value, ScalarNode)
        if scalar and value.tag != "tag:yaml.org,2002:str":
            yield f"{key.value}: {value.value}"
        yield from not_texts(value)
    if isinstance(node, yaml.SequenceNode):
        for each in node.value:
            yield from not_texts(each)


@pytest.mark.parametrize("release", ["on", "penstock"])
@pytest.mark.parametrize("namespace", ["123", "no"])
def test_names_are_strings_even_if_they_look_like_numbers_or_booleans(release: str, namespace: str) -> None:
    names = "watchNamespaces={1e3,no},images.pullSecrets={7},operator.priorityClassName=8"
    others = "operator.replicas=2,monitoring.rules.enabled=true,monitoring.dashboard.enabled=true"
    flags = ["--set-string", f"{names},serviceAccount.name=9", "--set", others]
    done = helm("template", release, CHART, "--namespace", namespace, *KUBERNETES, *flags)
    assert done.returncode == 0, done.stderr
    documents = [node for node in yaml.compose_all(done.stdout) if node is not None]
    custom = [node for node in documents if ("kind", "CustomResourceDefinition") not in scalars(node)]
    assert [each for node in custom for each in not_texts(node)] == []


def scalars(node: Node) -> list[tuple[str, str]]:
    """Return the keys of a document that have scalars, with these."""
    pairs = node.value if isinstance(node, MappingNode) else ()
    return [(key.value, value.value) for key, value in pairs if isinstance(value, ScalarNode)]


@pytest.mark.parametrize("release", ["123", "my.penstock"])
def test_a_release_whose_name_no_service_can_have_asks_for_another_prefix(release: str) -> None:
    assert "nameOverride: missing" in helm("template", release, CHART, *KUBERNETES).stderr
    named = helm("template", release, CHART, *KUBERNETES, "--set", "nameOverride=penstock")
    assert named.returncode == 0, named.stderr
