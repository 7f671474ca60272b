"""Reading a pool file's YAML, with errors that say where, and writing it.

PyYAML takes the last of two equal keys without a word; a pool must not lose a tier that way.
"""

from pathlib import Path
from typing import Any

import yaml


class DocumentError(Exception):
    """The file is not one YAML document. The message is one line without the file's name."""


class _Loader(yaml.SafeLoader):
    """Safe loading that refuses a key given twice."""

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


def read_document(path: Path) -> Any:
    """The file's one YAML document. Raises DocumentError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DocumentError("no such file") from None
    except OSError as error:
        raise DocumentError(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DocumentError(f"is not UTF-8 text: byte {error.start}") from None
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        raise DocumentError(_where(error)) from None
    except yaml.YAMLError as error:
        raise DocumentError(f"is not YAML: {str(error).splitlines()[0]}") from None


def write_document(document: Any) -> str:
    """A document as a file has it: one line for each value, in the order that they have."""
    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=1000))


def _where(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
    return f"{place}{error.problem or error.context}"
