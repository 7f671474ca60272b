"""A pool turned into JSON is a pool file again."""

from pathlib import Path

import pytest
from penstock_pool import load_pool, parse_pool
from penstock_pool.document import write_document

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_a_pool_reads_back_unchanged(file: Path) -> None:
    pool = load_pool(file)
    document = pool.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    assert parse_pool(document, file.name) == pool


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_a_written_pool_loads_unchanged(file: Path, tmp_path: Path) -> None:
    pool = load_pool(file)
    written = tmp_path / "pool.yaml"
    written.write_text(write_document(pool.model_dump(mode="json", by_alias=True, exclude_defaults=True)))
    assert load_pool(written) == pool


def test_a_document_is_written_with_its_own_characters() -> None:
    assert write_document({"description": "Grüße"}) == "description: Grüße\n"
