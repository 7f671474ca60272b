"""API keys of applications."""

from pathlib import Path

from penstock_pool.application_spec import Application
from penstock_pool.load import PoolError
from penstock_pool.serving_pool import Pool


def load_keys(pool: Pool, base_dir: Path) -> dict[str, Application]:
    """Return applications by API key, from the files that the pool names; empty without applications.

    base_dir: folder of relative file names, usually the pool file's. Raises PoolError if a file is missing,
    has no key, or has a key of another application, and if keys are in a Secret, which only a cluster can
    read.
    """
    keys: dict[str, Application] = {}
    problems: list[str] = []
    for index, application in enumerate(pool.spec.applications):
        where = f"spec.applications[{index}].keys"
        found, problem = _keys_of(application, base_dir)
        problems += [f"{where}.{problem}"] if problem else []
        for key in found:
            if keys.setdefault(key, application) is not application:
                other = keys[key].name
                problems.append(f"{where}: has a key of {other} too; a key belongs to one application")
    if problems:
        raise PoolError([f"{pool.metadata.name}: {problem}" for problem in problems])
    return keys


def _keys_of(application: Application, base_dir: Path) -> tuple[list[str], str]:
    """Return the application's keys, and the problem with their source."""
    if application.keys.file is None:
        given = application.keys.secret
        return (
            [],
            f'secret: "{given}" is in a cluster; for local tools write keys: {{file: keys.txt}}, with one '
            "key per line",
        )
    path = base_dir / application.keys.file
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        return [], f'file: "{path}" cannot be read: {reason}'
    found = keys_in(text)
    return found, "" if found else f'file: "{path}" has no keys; write one per line'


def keys_in(text: str) -> list[str]:
    """Return the keys in a file or a Secret's entry: one per line, without empty lines and `#` comments."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]
