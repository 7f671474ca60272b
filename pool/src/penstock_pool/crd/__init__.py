"""The cluster's side of the pool file: a CustomResourceDefinition generated from the models that read it."""

from penstock_pool.crd.definition import SCHEMA_ANNOTATION, definition, schema_digest

__all__ = ["SCHEMA_ANNOTATION", "definition", "schema_digest"]
