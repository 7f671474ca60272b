"""What every object of a pool file has in common: frozen, camelCase outside, no unknown fields."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


def file_name(field: str) -> str:
    """A field's name in the file: camelCase, and without the unit, which the value carries there."""
    return to_camel(field.removesuffix("_s"))


class Spec(BaseModel):
    """One object of the pool file."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=file_name,
        validate_by_name=False,
        validate_by_alias=True,
        validate_default=False,
        protected_namespaces=(),
    )
