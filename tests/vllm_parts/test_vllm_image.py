"""The plug-in in an unmodified vLLM image: the packages that it may import."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

FOLDERS = [ROOT / member / "src" for member in ("core", "proto", "vllm-plugin")]
BROUGHT = {"numpy", "numba", "google", "msgspec", "vllm"}
"""What vLLM itself requires, of all that the plug-in imports."""


def test_the_plug_in_imports_only_packages_of_vllm() -> None:
    imported: set[str] = set()
    for path in (path for folder in FOLDERS for path in folder.rglob("*.py") if "_pb2" not in path.name):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(str(node.module).split(".")[0])
    others = {name for name in imported - sys.stdlib_module_names if not name.startswith("penstock_")}
    assert others == BROUGHT


def test_the_plug_in_uses_no_generated_code() -> None:
    output = run("""
import sys
from penstock_vllm import reports
print(*[name for name in sys.modules if "_pb2" in name and name.startswith("penstock")])
""")
    assert output == ""


@pytest.mark.parametrize("release", [(5, 29, 6), (6, 33, 5), (7, 36, 2)], ids=str)
def test_reports_work_with_every_protobuf_version_of_vllm(release: tuple[int, int, int]) -> None:
    output = run(f"""
from google.protobuf import descriptor_pb2, runtime_version
runtime_version.MAJOR, runtime_version.MINOR, runtime_version.PATCH = {release}
from penstock_vllm import reports
from penstock_proto.telemetry import Drafting, StepReport
report = StepReport(request_ids=["a"], drafting=Drafting(max_tokens=3, by_tier={{"chat": 0.5}}))
print(report.SerializeToString().hex())
""")
    from penstock_proto.telemetry_pb2 import Drafting, StepReport

    there = StepReport.FromString(bytes.fromhex(output))
    assert there == StepReport(request_ids=["a"], drafting=Drafting(max_tokens=3, by_tier={"chat": 0.5}))


def run(code: str) -> str:
    """What a process says that finds the folders which the plug-in's image holds, before all others."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, FOLDERS))}
    return subprocess.check_output([sys.executable, "-c", code], env=environment, text=True).strip()
