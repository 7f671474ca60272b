"""What every object of a pool file has in common: frozen, camelCase outside, no unknown fields."""

from pydantic import BaseModel, ConfigDict


def file_name(field: str) -> str:
    """A field's name in the file: camelCase, and without the unit, which the value carries there."""
    head, *rest = field.removesuffix("_s").split("_")
    return head + "".join(word.capitalize() for word in rest)  # pydantic's own would make e2e e2E


class Spec(BaseModel):
    """One object of the pool file."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=file_name,
        validate_by_name=False,
        validate_by_alias=True,
        protected_namespaces=(),
    )
