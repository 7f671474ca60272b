"""Fields are named in the file as the contract spells them."""

import pytest
from penstock_pool.spec import file_name


@pytest.mark.parametrize(
    ("field", "name"),
    [("e2e_s", "e2e"), ("tpot_s", "tpot"), ("kv_cache_tokens", "kvCacheTokens"), ("model", "model")],
)
def test_fields_have_the_files_names(field: str, name: str) -> None:
    assert file_name(field) == name
