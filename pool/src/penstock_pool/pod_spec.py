"""A pool's settings of its pods in Kubernetes' terms: resources, and a pod template to merge."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainValidator, WithJsonSchema

from penstock_pool.scalars import LabelName, wrong
from penstock_pool.spec import Spec

QUANTITY = (
    r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)"
    r"([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"
)
_QUANTITY = re.compile(QUANTITY, re.ASCII)
TEMPLATE_PARTS = ("metadata", "spec")


def _known_quantity(given: Any) -> str | int:
    if isinstance(given, str | int) and not isinstance(given, bool) and _QUANTITY.fullmatch(str(given)):
        return given
    raise wrong(f'"{given}" is not a quantity; write for example 40Gi, 500m or 1')


Quantity = Annotated[
    str | int,
    PlainValidator(_known_quantity),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "minimum": 0,
            "pattern": QUANTITY,
            "maxLength": 64,
        }
    ),
]
"""A quantity in Kubernetes' notation."""


class Resources(Spec):
    """Kubernetes resources of a container."""

    limits: Annotated[dict[LabelName, Quantity], Field(max_length=64)] = Field(
        default_factory=dict, description="Upper bounds.", examples=[{"nvidia.com/gpu": "1"}]
    )
    requests: Annotated[dict[LabelName, Quantity], Field(max_length=64)] = Field(
        default_factory=dict, description="Lower bounds.", examples=[{"memory": "40Gi"}]
    )


def _template(given: dict[str, Any]) -> dict[str, Any]:
    """Check the two parts of a pod's template. Their content is validated by Kubernetes."""
    for part, content in given.items():
        if part not in TEMPLATE_PARTS:
            raise wrong(f'has a field "{part}"; a pod\'s template has metadata and spec')
        if not isinstance(content, Mapping):
            raise wrong(f"has a {part} that is not a mapping; write it as in a Deployment's template")
    return given


def _part(description: str) -> dict[str, Any]:
    return {"type": "object", "description": description, "x-kubernetes-preserve-unknown-fields": True}


PodTemplate = Annotated[
    dict[str, Any],
    AfterValidator(_template),
    WithJsonSchema(
        {
            "type": "object",
            "properties": {
                "metadata": _part("Labels and annotations, as in a Deployment's template."),
                "spec": _part("A PodSpec, as in a Deployment's template."),
            },
        }
    ),
]
"""Parts of a pod's template, merged into Penstock's own."""
