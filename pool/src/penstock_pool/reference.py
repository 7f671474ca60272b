"""Generates the reference page of the pool file from its schema.

One table per object, with fields in the order of the schema. The text of a field is its `description`, which
is also in error messages and in `kubectl explain`.
"""

import json
from collections.abc import Iterator
from typing import Any, get_args

from pydantic.fields import FieldInfo

from penstock_pool.durations import format_duration
from penstock_pool.serving_pool import PoolSpec
from penstock_pool.spec import Spec, file_name

INTRO = """# The pool file

Generated from the schema in `pool/`; a test keeps it fresh. `penstock validate -f pool.yaml` checks a file
and names each field that is wrong. Durations are written with their unit: `800ms`, `1.5s`, `2m`.

The same file is what `kubectl apply` takes: [`crds/servingpools.yaml`](../crds/servingpools.yaml) is
generated from the same schema (`make crds`), and `kubectl explain servingpool.spec` reads like this page.

    apiVersion: penstock.dev/v1alpha1
    kind: ServingPool
    metadata: {name: llama3-8b}
    spec: …

## In a cluster

What is wrong is refused when it is applied, with the field and what would be right. Fields that say "for a
cluster" local tools check and then leave alone. Beyond what holds everywhere, a cluster

- needs `engine.image` for engines of type `openai`, and reads API keys from Secrets (`keys.secret`) only;
- keeps `model.name`: replicas change one by one, and meanwhile some would answer for another model;
- counts `replicas: 0` as a pool that is stopped, which local commands refuse to run;
- takes `null` as absent, where a field has a default.

Its schema language cannot see how long a `ttft` given as a duration is, nor the names of labels, annotations
and resources. A pool that is wrong there is applied, and its condition `Degraded`, reason `SpecInvalid`, says
what is wrong and where. `penstock validate` reports this without a cluster.
"""


def page() -> str:
    """Return the whole page as Markdown."""
    return "\n".join([INTRO, *_sections("spec", PoolSpec)])


def _sections(path: str, spec: type[Spec]) -> Iterator[str]:
    yield f"## `{path}`\n"
    yield "| field | default | what it is |\n|---|---|---|"
    yield from (_row(name, field) for name, field in spec.model_fields.items())
    yield ""
    for name, field in spec.model_fields.items():
        many = "[]" if "tuple" in str(field.annotation) else ""
        for inner in _specs(field.annotation):
            yield from _sections(f"{path}.{file_name(name)}{many}", inner)


def _row(name: str, field: FieldInfo) -> str:
    default = _default(name, field)
    like = _value(name, field.examples[0]) if field.examples else default
    example = "" if like == default else f" Like {like}."
    return f"| `{file_name(name)}` | {default} | {field.description}{example} |"


def _default(name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default_factory is not None or field.default in (None, ()) or isinstance(field.default, Spec):
        return ""
    return _value(name, field.default)


def _value(name: str, value: Any) -> str:
    if name.endswith("_s") and isinstance(value, float):
        return f"`{format_duration(value)}`"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _specs(annotation: Any) -> Iterator[type[Spec]]:
    """Yield the objects of the file inside a type, each once."""
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        yield annotation
        return
    for inner in get_args(annotation):
        yield from _specs(inner)


if __name__ == "__main__":
    print(page(), end="")
