"""The CustomResourceDefinition, generated from the models that read pool files."""

from penstock_pool.crd.definition import SCHEMA_ANNOTATION, definition, schema_digest

__all__ = ["SCHEMA_ANNOTATION", "definition", "schema_digest"]
