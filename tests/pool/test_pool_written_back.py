"""A pool turned into JSON is a pool file again."""

from pathlib import Path

import pytest
from penstock_pool import load_pool, parse_pool

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_a_pool_reads_back_as_it_was(file: Path) -> None:
    pool = load_pool(file)
    document = pool.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    assert parse_pool(document, file.name) == pool
