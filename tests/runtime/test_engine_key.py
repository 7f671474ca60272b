import pytest
from penstock_runtime.engine_key import VARIABLE, bearer, carries, engine_key


@pytest.mark.parametrize(
    ("environment", "key"),
    [({}, ""), ({VARIABLE: ""}, ""), ({VARIABLE: "k1"}, "k1"), ({VARIABLE: "k1\n"}, "k1")],
)
def test_the_key_is_read_from_the_environment(environment: dict[str, str], key: str) -> None:
    assert engine_key(environment) == key


def test_a_key_is_sent_as_a_bearer_token_and_only_that_key_is_accepted() -> None:
    assert bearer("") == {}
    sent = {name.encode(): value.encode() for name, value in bearer("k1").items()}
    assert carries(sent, "k1")
    for wrong in ({}, {b"authorization": b"k1"}, {b"authorization": b"Bearer k2"}):
        assert not carries(wrong, "k1")
