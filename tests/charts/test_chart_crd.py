"""The chart carries the definition of ServingPool, installs and upgrades it, and leaves it behind."""

import yaml
from chart.rendered import CHART, ROOT, of_kind, rendered, the

SOURCE = ROOT / "crds" / "servingpools.yaml"


def test_the_chart_has_the_same_definition() -> None:
    copy = CHART / "files" / "servingpools.yaml"
    assert copy.read_bytes() == SOURCE.read_bytes(), "stale: make chart"


def test_the_definition_is_a_template_so_that_helm_upgrades_it() -> None:
    assert not (CHART / "crds").exists()
    installed, source = the(rendered(), "CustomResourceDefinition"), yaml.safe_load(SOURCE.read_text())
    assert installed["spec"] == source["spec"]
    assert source["metadata"].get("annotations", {}).items() <= installed["metadata"]["annotations"].items()


def test_uninstalling_keeps_the_definition_and_every_pool() -> None:
    annotations = the(rendered(), "CustomResourceDefinition")["metadata"]["annotations"]
    assert annotations["helm.sh/resource-policy"] == "keep"


def test_the_definition_is_uninstalled_on_request() -> None:
    definition = the(rendered(flags=["--set", "crds.keep=false"]), "CustomResourceDefinition")
    assert "helm.sh/resource-policy" not in (definition["metadata"].get("annotations") or {})


def test_another_user_may_install_it() -> None:
    assert of_kind(rendered(flags=["--set", "crds.install=false"]), "CustomResourceDefinition") == []
