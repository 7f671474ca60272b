"""Lines for what a pool's schema does not have now: fields without a description, models inside a mapping."""

from typing import Any

import pytest
from penstock_pool.problems import schema_problems, shown
from pydantic import BaseModel, ConfigDict, Field, ValidationError


class Item(BaseModel):
    model_config = ConfigDict(extra="forbid")
    plain: int = Field(alias="plain")
    described: int = Field(default=1, alias="described", description="How many. Or none.")
    like: int = Field(default=1, alias="like", description="How Many.", examples=[5, 6])


class Required(Item):
    described: int = Field(alias="described", description="How many. Or none.")
    like: int = Field(alias="like", description="How Many.", examples=[5, 6])


class Root(BaseModel):
    item: Item | None = Field(default=None, alias="item")
    listed: list[Required] = Field(default=[], alias="listed")
    named: dict[str, Item] = Field(default={}, alias="named")


def problems(document: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(ValidationError) as caught:
        Root.model_validate(document)
    return dict(schema_problems(caught.value, Root))


def test_a_missing_field_is_described_if_it_has_a_description() -> None:
    assert problems({"listed": [{}]}) == {
        "listed[0].plain": "missing",
        "listed[0].described": "missing; how many. Or none",
        "listed[0].like": "missing; how Many; for example 5",
    }


def test_a_field_inside_a_mapping_is_named_without_its_description() -> None:
    found = problems({"named": {"x": {"plain": 1, "other": 1}, "y": {}}})
    assert found == {"named.x.other": "unknown field", "named.y.plain": "missing"}


def test_the_error_of_a_value_of_another_type_lists_the_fields() -> None:
    assert problems({"item": 5}) == {"item": "5 is not a mapping of plain, described, like"}
    assert problems({"named": {"x": None}}) == {"named.x": "null is not a mapping of fields"}


def test_the_error_of_an_unknown_field_names_the_nearest_or_all() -> None:
    assert problems({"item": {"plain": 1, "lik": 1, "xyz": 1}}) == {
        "item.lik": "unknown field; did you mean like?",
        "item.xyz": "unknown field; fields here are plain, described, like",
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, "a mapping"),
        ([], "a list"),
        ((), "a list"),
        (None, "null"),
        ("é", '"é"'),
        ("x" * 58, f'"{"x" * 58}"'),
        ("x" * 59, f'"{"x" * 56}…'),
        (1.5, "1.5"),
    ],
)
def test_a_value_is_shown_up_to_sixty_characters(value: object, text: str) -> None:
    assert shown(value) == text
