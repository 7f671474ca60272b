"""A profile that draws more examples draws more of every property."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples


@pytest.mark.parametrize(("profile", "count"), [("fixed", 7), ("explore", 70)])
def test_a_propertys_examples_are_scaled_by_the_profile(profile: str, count: int) -> None:
    before = settings.get_current_profile_name()
    settings.load_profile(profile)
    try:
        drawn = examples(7)(given(st.integers())(_nothing))
    finally:
        settings.load_profile(before)
    assert drawn._hypothesis_internal_use_settings.max_examples == count


def _nothing(number: int) -> None:
    """A property that always holds."""
