"""Base class of a pool file's objects: frozen, camelCase in files, no unknown fields."""

from pydantic import BaseModel, ConfigDict


def file_name(field: str) -> str:
    """Return a field's name in the file: camelCase, without the unit, which is part of the value there."""
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
