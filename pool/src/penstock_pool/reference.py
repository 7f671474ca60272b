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

Generated from the schema in `pool/`; a test checks that it is current. `penstock validate -f pool.yaml`
checks a file and names each invalid field. Durations are written with their unit: `800ms`, `1.5s`, `2m`.

`kubectl apply` accepts the same file: [`crds/servingpools.yaml`](../crds/servingpools.yaml) is generated from
the same schema (`make crds`), and `kubectl explain servingpool.spec` shows the same texts as this page.

    apiVersion: penstock.dev/v1alpha1
    kind: ServingPool
    metadata: {name: llama3-8b}
    spec: …

## In a cluster

An invalid pool is refused when it is applied, with the field and a valid value. Local tools check fields "for
a cluster", but do not use them. In addition to these rules, a cluster

- requires `engine.image` for engines of type `openai`, and reads API keys from Secrets (`keys.secret`) only;
- does not allow a change of `model.name`, because replicas are replaced one by one, and meanwhile clients
  would get answers of both models;
- treats `replicas: 0` as a stopped pool, which local commands refuse to run;
- treats `null` as absent if a field has a default.

The cluster's schema language cannot check the length of a `ttft` that is a duration, nor the names of labels,
annotations and resources. If these are invalid, the pool is applied, and its condition `Degraded`, reason
`SpecInvalid`, names the problem and the field. `penstock validate` reports this without a cluster.
"""


def page() -> str:
    """Return the whole page as Markdown."""
    return "\n".join([INTRO, *_sections("spec", PoolSpec)])


def _sections(path: str, spec: type[Spec]) -> Iterator[str]:
    yield f"## `{path}`\n"
    yield "| field | default | meaning |\n|---|---|---|"
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
