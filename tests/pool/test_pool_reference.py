"""The page that people read is the schema that reads their file."""

from pathlib import Path

from penstock_pool.reference import page

DOCS = Path(__file__).resolve().parents[2] / "docs" / "pool-file.md"


def test_the_page_is_fresh() -> None:
    assert DOCS.read_text() == page(), "stale: run make crds"


def test_every_object_and_its_defaults_are_on_the_page() -> None:
    text = page()
    for heading in ("spec.tiers[].slo.ttft", "spec.applications[].keys", "spec.engine.speculation"):
        assert f"## `{heading}`\n" in text
    assert "| `maxHops` | `3` |" in text
    assert "| `deliveryAllowance` | `5ms` |" in text
    assert "| `name` | required | Name of the model in clients' requests" in text
