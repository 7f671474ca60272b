"""The chart as Helm's linter and a linter of manifests see it.

What is ignored, and why: an image is pulled again only when its tag or digest changed, so that nodes may have
it already; a CPU limit would stop the operator in the middle of a burst; pods spread by topology, which says
more than anti-affinity; and one operator is enough, it is not in the way of requests.
"""

import subprocess
from pathlib import Path

import pytest
from chart.rendered import CHART, KUBERNETES, NAMESPACE, VALUE_SETS, helm, tool, values_of

IGNORED = (
    "container-image-pull-policy",
    "deployment-has-host-podantiaffinity",
    "deployment-replicas",
    "pod-networkpolicy",
)
"""The last: egress is closed by a value, which another test covers."""


@pytest.mark.parametrize("value_set", VALUE_SETS)
def test_helm_lint_finds_no_problem(value_set: str) -> None:
    done = helm("lint", CHART, "--strict", *KUBERNETES, *values_of(value_set))
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout


@pytest.mark.parametrize("value_set", VALUE_SETS)
def test_kube_score_finds_no_problem(value_set: str, tmp_path: Path) -> None:
    done = helm(
        "template",
        "penstock",
        CHART,
        "--skip-tests",
        "--namespace",
        NAMESPACE,
        *KUBERNETES,
        *values_of(value_set),
    )
    manifests = tmp_path / "manifests.yaml"
    manifests.write_text(done.stdout)
    ignored = [flag for check in IGNORED for flag in ("--ignore-test", check)]
    flags = ["--output-format", "ci", "--ignore-container-cpu-limit", *ignored]
    scored = subprocess.run(
        [tool("kube-score"), "score", *flags, manifests], check=False, capture_output=True, text=True
    )
    problems = [line for line in scored.stdout.splitlines() if line.startswith(("[CRITICAL]", "[WARNING]"))]
    assert problems == []
    assert scored.returncode == 0, scored.stderr


def test_the_package_has_only_the_installed_files(tmp_path: Path) -> None:
    done = helm("package", CHART, "--destination", tmp_path)
    (package,) = tmp_path.glob("penstock-*.tgz")
    assert done.returncode == 0, done.stderr
    shown = helm("template", "penstock", package, *KUBERNETES)
    assert "kind: Deployment" in shown.stdout, shown.stderr
    listed = subprocess.run(["tar", "tf", package], check=True, capture_output=True, text=True).stdout.split()
    assert [name for name in listed if "/ci/" in name] == []
    assert "penstock/files/servingpools.yaml" in listed
