"""Reads and writes a pool file's YAML, with errors that name the line.

A file for `kubectl apply` may contain other objects, such as a volume or a ConfigMap, which are skipped.
PyYAML silently keeps the last of two equal keys, which could lose a tier, so duplicate keys are errors.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml


class DocumentError(Exception):
    """A file without a readable document. The message is one line without the file's name."""


class _Loader(yaml.SafeLoader):
    """Safe loader that rejects duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen and isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, f'"{key.value}" is given twice; once is allowed', key.start_mark
                )
            if isinstance(key, yaml.ScalarNode):
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_document(path: Path, kind: str) -> Any:
    """Return the file's one YAML document, or of several the one of this kind. Raises DocumentError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DocumentError("no such file") from None
    except OSError as error:
        raise DocumentError(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DocumentError(f"is not UTF-8 text: byte {error.start}") from None
    try:
        documents = [document for document in yaml.load_all(text, _Loader) if document is not None]
    except yaml.MarkedYAMLError as error:
        raise DocumentError(_where(error)) from None
    except yaml.YAMLError as error:
        raise DocumentError(f"is not YAML: {str(error).splitlines()[0]}") from None
    return _one(documents, kind) if documents else None


def _one(documents: Sequence[Any], kind: str) -> Any:
    if len(documents) == 1:
        return documents[0]
    found = [
        document for document in documents if isinstance(document, dict) and document.get("kind") == kind
    ]
    if len(found) != 1:
        counted = f"{len(found)} are" if found else "none is"
        raise DocumentError(f"of its {len(documents)} documents {counted} a {kind}; exactly one must be")
    return found[0]


def write_document(document: Any) -> str:
    """Return a document as YAML: one line per value, in order."""
    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=1000))


def _where(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
    return f"{place}{error.problem or error.context}"
