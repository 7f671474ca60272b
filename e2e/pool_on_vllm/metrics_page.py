"""Reads numbers from the `/metrics` of processes."""

import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

FETCH_TIMEOUT_S = 10.0


class MetricSample(NamedTuple):
    """One sample of a metric."""

    labels: dict[str, str]
    value: float


def fetch(url: str) -> str | None:
    """Return the page at a URL, or None if it cannot be fetched."""
    try:
        with urllib.request.urlopen(url, timeout=FETCH_TIMEOUT_S) as page:
            return str(page.read().decode())
    except OSError:  # includes urllib.error.URLError
        return None


def samples(url: str, name: str) -> Iterator[MetricSample]:
    """Yield the samples of this name. Raises AssertionError if the page cannot be fetched."""
    page = fetch(f"{url}/metrics")
    assert page is not None, f"{url}/metrics does not answer"
    for family in text_string_to_metric_families(page):
        yield from (MetricSample(line.labels, line.value) for line in family.samples if line.name == name)


def total(url: str, name: str, **labels: str) -> float:
    """Return the sum of all samples that have these labels."""
    return sum(sample.value for sample in samples(url, name) if labels.items() <= sample.labels.items())


def by_label(url: str, name: str, label: str) -> Counter[str]:
    """Return the sum of the samples for each value of a label."""
    sums: Counter[str] = Counter()
    for sample in samples(url, name):
        sums[sample.labels[label]] += int(sample.value)
    return sums
