"""Rules in CEL that the API server checks when a pool is applied, equivalent to Python validators.

A rule over several fields exists twice: as a validator, which local tools run, and as a `CelRule`, which goes
into the CustomResourceDefinition. They are next to each other with the same message, and tests compare them
on a real API server.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import ConfigDict

VALIDATIONS = "x-kubernetes-validations"

KEYED_BY_NAME: dict[str, Any] = {
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name"],
}
"""Marks a list whose entries have unique names: server-side apply merges it entry by entry."""

_VALUE = re.compile(r"\{([^{}]+)\}")


class FieldErrorReason(StrEnum):
    """Kubernetes' reason of a field error, which is shown before the message."""

    INVALID = "FieldValueInvalid"
    MISSING = "FieldValueRequired"
    UNUSED = "FieldValueForbidden"


@dataclass(frozen=True, slots=True)
class CelRule:
    """A condition that must hold, with its error message.

    rule: CEL over `self`, and over `oldSelf` for rules about a change.
    message: the error message. Expressions in braces are CEL of type string with bounded length, because
        Kubernetes rejects messages that may be too expensive.
    field_path: the field of `self` that the error names, such as `pool`; "" for `self` itself.
    """

    rule: str
    message: str
    field_path: str = ""
    reason: FieldErrorReason = FieldErrorReason.INVALID

    def document(self) -> dict[str, str]:
        """Return the rule as in a CustomResourceDefinition."""
        document = {"rule": self.rule, **_message(self.message)}
        if self.field_path:
            document["fieldPath"] = f".{self.field_path}"
        if self.reason is not FieldErrorReason.INVALID:
            document["reason"] = self.reason.value
        return document


def checked_by(*rules: CelRule) -> ConfigDict:
    """Return the configuration of a model that the cluster validates by these rules."""
    return ConfigDict(json_schema_extra=documents(*rules))


def documents(*rules: CelRule) -> dict[str, Any]:
    """Return the rules as part of a schema."""
    return {VALIDATIONS: [rule.document() for rule in rules]}


def _message(message: str) -> dict[str, str]:
    if "{" not in message:
        return {"message": message}
    texts_and_values = _VALUE.split(message)  # text at even indices, expressions in braces at odd ones
    parts = [part if place % 2 else _quoted(part) for place, part in enumerate(texts_and_values) if part]
    return {"messageExpression": " + ".join(parts)}


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
