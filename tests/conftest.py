"""What holds for every test."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ("background", "pytester")

# The same examples on every run and machine, however slow it is: no test asserts a time.
settings.register_profile("fixed", deadline=None, derandomize=True)
# Other examples on every run, and ten times as many: `make explore`.
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile("fixed")

TESTS = Path(__file__).parent
SOURCES = [str(folder) for folder in sorted(TESTS.parent.glob("*/src"))]

# Tests, and the processes that they start, run this checkout, whichever the environment was made for.
sys.path[:0] = SOURCES
os.environ["PYTHONPATH"] = os.pathsep.join([*SOURCES, *filter(None, [os.environ.get("PYTHONPATH")])])

LONGER_S = {"charts": 900, "kubernetes": 1500, "vllm_plugin": 1500, "vllm_real": 1500, "vllm_serving": 1500}
"""The bound of a test where its fixtures build programs or start servers of minutes."""


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        longer_s = LONGER_S.get(item.path.relative_to(TESTS).parts[0])
        if longer_s and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(longer_s))
