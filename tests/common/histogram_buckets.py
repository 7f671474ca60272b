"""The buckets of histograms: as docs/metrics.md has them, and as a registry does."""

import re
from pathlib import Path

from prometheus_client import CollectorRegistry

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def documented(prefix: str) -> dict[str, list[float]]:
    """Return the upper bounds of each histogram with this prefix, by name."""
    rows = re.findall(rf"^\| `({prefix}\w+)` \| ([\d., ]+) \|$", PAGE.read_text(), re.MULTILINE)
    return {name: [float(bound) for bound in bounds.split(",")] for name, bounds in rows}


def exported(registry: CollectorRegistry) -> dict[str, list[float]]:
    """Return the upper bounds of a registry's histograms, which have observations."""
    found: dict[str, list[float]] = {}
    for family in registry.collect():
        bounds = {sample.labels["le"] for sample in family.samples if "le" in sample.labels}
        if bounds:
            found[family.name] = sorted(float(bound) for bound in bounds if bound != "+Inf")
    return found
