"""Every script in bench/ can be imported: the names that it imports still exist."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ON_PATH = ["bench", "tests/common", "tests/faults", "tests/processes"]

NOT_INSTALLED = {"torch", "transformers"}
"""Packages whose absence a script reports itself."""

IMPORT_ALL = """
import importlib.util, json, sys
failed = {}
for file, folder in json.loads(sys.argv[1]):
    sys.path.insert(0, folder)
    try:
        spec = importlib.util.spec_from_file_location("bench_" + str(len(sys.modules)), file)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    except BaseException as error:
        failed[file] = [getattr(error, "name", None), f"{type(error).__name__}: {error}"]
    sys.path.pop(0)
print(json.dumps(failed))
"""


def test_every_script_of_bench_can_be_imported() -> None:
    files = sorted((ROOT / "bench").rglob("*.py"))
    requested = json.dumps([(str(file), str(file.parent)) for file in files])
    path = ":".join(str(ROOT / folder) for folder in ON_PATH)
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, requested],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    failed = json.loads(done.stdout)
    assert {file: error for file, (package, error) in failed.items() if package not in NOT_INSTALLED} == {}
    assert len(files) > 60
