"""The chart's files and their rendering by Helm.

    rendered("ha")                          # a value set of charts/penstock/ci
    rendered(flags=["--set", "crds.keep=false"])

The version given to Helm is only what its templates see; nothing here needs a cluster.
"""

import functools
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "penstock"
VALUE_SETS = ("default", "ha", "locked-down")
NAMESPACE = "penstock-system"
MONITORS = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
KUBERNETES = ("--kube-version", "1.34.0")
MONITORING = "monitoring.coreos.com/v1"
PROMETHEUS = ("--api-versions", ",".join(f"{MONITORING}/{kind}" for kind in MONITORS))

Manifest = dict[str, Any]


@functools.cache
def tool(name: str) -> Path:
    """A pinned program of `e2e/cluster`, built where it is missing."""
    built = subprocess.run([ROOT / "e2e/cluster/build", name], check=True, stdout=subprocess.PIPE, text=True)
    return Path(built.stdout.strip()) / name


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run Helm and return its output, whether it failed or not."""
    return subprocess.run([tool("helm"), *arguments], check=False, capture_output=True, text=True)


def values_of(value_set: str) -> list[str]:
    """Flags that choose one of the chart's value sets."""
    return ["--values", str(CHART / "ci" / f"{value_set}-values.yaml")]


def template(
    value_set: str = "default", flags: Sequence[str] = (), namespace: str = NAMESPACE
) -> subprocess.CompletedProcess[str]:
    """`helm template` of a release `penstock`, failed or not."""
    return _template(value_set, tuple(flags), namespace)


@functools.cache
def _template(value_set: str, flags: tuple[str, ...], namespace: str) -> subprocess.CompletedProcess[str]:
    return helm(
        "template", "penstock", CHART, "--namespace", namespace, *KUBERNETES, *values_of(value_set), *flags
    )


def rendered(
    value_set: str = "default", flags: Sequence[str] = (), namespace: str = NAMESPACE
) -> list[Manifest]:
    """Every object that would be installed, with the test's own."""
    done = template(value_set, flags, namespace)
    assert done.returncode == 0, done.stderr
    return [manifest for manifest in yaml.load_all(done.stdout, yaml.CSafeLoader) if manifest]


def of_kind(manifests: Iterable[Manifest], kind: str) -> list[Manifest]:
    """Those of one kind that are installed, without `helm test`'s."""
    return [m for m in manifests if m["kind"] == kind and not is_test(m)]


def is_test(manifest: Manifest) -> bool:
    """Whether an object is only there while `helm test` runs."""
    return "helm.sh/hook" in manifest["metadata"].get("annotations", {})


def the(manifests: Iterable[Manifest], kind: str) -> Manifest:
    """The only object of a kind."""
    (found,) = of_kind(manifests, kind)
    return found


def pod_spec(manifest: Manifest) -> Manifest:
    """Of a Pod or of what makes pods."""
    spec: Manifest = manifest["spec"]
    if manifest["kind"] == "Pod":
        return spec
    inner: Manifest = spec["template"]["spec"]
    return inner
