"""The CustomResourceDefinition of ServingPools: the schema of the models, and `kubectl`'s columns."""

import hashlib
import json
from typing import Any

from pydantic import BaseModel

from penstock_pool.crd.structural import Schema, structural
from penstock_pool.serving_pool import KIND, Pool, PoolSpec
from penstock_pool.status import PoolStatus

GROUP, VERSION = "penstock.dev", "v1alpha1"
PLURAL, SINGULAR = "servingpools", "servingpool"
SCHEMA_ANNOTATION = "penstock.dev/schema"
"""Annotation with the schema's digest, by which an operator recognizes an older definition."""


def definition() -> dict[str, Any]:
    """Return the whole object."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{PLURAL}.{GROUP}",
            "annotations": {SCHEMA_ANNOTATION: schema_digest()},
        },
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": SINGULAR,
                "shortNames": ["pool", "pools"],
                "categories": ["penstock"],
            },
            "scope": "Namespaced",
            "conversion": {"strategy": "None"},
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": columns(),
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "schema": {"openAPIV3Schema": schema()},
                }
            ],
        },
    }


def schema() -> Schema:
    """Return the schema of a ServingPool's spec and status."""
    root = Pool.model_json_schema(by_alias=True)
    rules = {key: value for key, value in root.items() if key.startswith("x-kubernetes-")}
    return {
        "description": "ServingPool describes replicas that serve one model and meet the SLOs of all "
        "requests that they admit, and the routers in front of them.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"Always {GROUP}/{VERSION}."},
            "kind": {"type": "string", "description": f"Always {KIND}."},
            "metadata": {"type": "object"},
            "spec": _schema_of(PoolSpec),
            "status": _without_defaults(_schema_of(PoolStatus)),
        },
        **rules,
    }


def schema_digest() -> str:
    """Return twelve characters that change with the schema."""
    return hashlib.sha256(json.dumps(schema(), sort_keys=True).encode()).hexdigest()[:12]


def columns() -> list[dict[str, Any]]:
    """Return the columns of `kubectl get pools`; those with a priority only appear with `-o wide`."""
    ready = '.status.conditions[?(@.type=="Ready")]'
    return [
        _column("Ready", "string", f"{ready}.status", "Whether the pool matches its spec."),
        _column("Replicas", "integer", ".status.replicas", "Number of replicas."),
        _column("Serving", "integer", ".status.readyReplicas", "Replicas that take requests."),
        _column("Policy", "string", ".status.policy", "The scheduling policy that replicas run."),
        _column("Attainment", "string", ".status.attainment", "Share of requests whose SLO was met."),
        _column("Model", "string", ".spec.model.name", "The model's name in clients' requests.", priority=1),
        _column("Engine", "string", ".spec.engine.type", "The engine that runs it.", priority=1),
        _column("Reason", "string", f"{ready}.reason", "Reason of the condition Ready.", priority=1),
        _column("Age", "date", ".metadata.creationTimestamp", "Time since its creation."),
    ]


def _without_defaults(status: Schema) -> Schema:
    """Return a schema without defaults, because absent values mean that nothing was observed."""
    kept = {key: value for key, value in status.items() if key != "default"}
    if "properties" in kept:
        fields = kept["properties"].items()
        kept["properties"] = {name: _without_defaults(field) for name, field in fields}
    if "items" in kept:
        kept["items"] = _without_defaults(kept["items"])
    return kept


def _column(name: str, kind: str, path: str, about: str, priority: int = 0) -> dict[str, Any]:
    column = {"name": name, "type": kind, "jsonPath": path, "description": about}
    return column | ({"priority": priority} if priority else {})


def _schema_of(model: type[BaseModel]) -> Schema:
    whole = model.model_json_schema(by_alias=True)
    return structural(whole, whole.pop("$defs", {}))
