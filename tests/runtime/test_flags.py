"""Ports as they are given on a command line."""

from argparse import ArgumentTypeError

import pytest
from penstock_runtime.flags import port


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("8000", 8000), ("65535", 65535)])
def test_a_port_is_a_number(text: str, number: int) -> None:
    assert port(text) == number


@pytest.mark.parametrize("text", ["", "-1", "65536", "http", "80.0", "²"])
def test_an_invalid_port_is_reported_with_its_bounds(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"'{text}' is not a port: 0 to 65535"):
        port(text)
