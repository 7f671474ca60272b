"""Reads numbers from the `/metrics` of processes."""

import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

ANSWER_S = 10.0


class Sample(NamedTuple):
    """One line of a page."""

    labels: dict[str, str]
    value: float


def answers(url: str) -> str | None:
    """The page at a URL; None where there is no good answer."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_S) as page:
            return str(page.read().decode())
    except OSError:  # what urllib raises, and what sockets do
        return None


def samples(url: str, name: str) -> Iterator[Sample]:
    """Of one metric, by the full name of its lines. Raises AssertionError where there is no page."""
    page = answers(f"{url}/metrics")
    assert page is not None, f"{url}/metrics does not answer"
    for family in text_string_to_metric_families(page):
        yield from (Sample(line.labels, line.value) for line in family.samples if line.name == name)


def total(url: str, name: str, **labels: str) -> float:
    """The sum over all lines that have these labels."""
    return sum(sample.value for sample in samples(url, name) if labels.items() <= sample.labels.items())


def by_label(url: str, name: str, label: str) -> Counter[str]:
    """The sum for each value of a label."""
    found: Counter[str] = Counter()
    for sample in samples(url, name):
        found[sample.labels[label]] += int(sample.value)
    return found
