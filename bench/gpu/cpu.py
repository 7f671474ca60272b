"""A substitute for a GPU and its model, to test the program: vLLM on the CPU with random weights."""

import subprocess
from pathlib import Path

from penstock_simulator.real_vllm.location import folder

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
ARGUMENTS = (
    "--enforce-eager",
    "--distributed-executor-backend",
    "uni",
    "--num-gpu-blocks-override",
    "512",
)


def python() -> Path:
    """Return the Python of the environment of `bench/vllm_environment serving`."""
    return Path(f"{folder()}-serving") / "bin" / "python"


def model(into: Path, python: Path) -> Path:
    """Return the random model's folder; create the model the first time."""
    if not (into / "config.json").exists():
        maker = Path(__file__).with_name("make_cpu_model.py")
        subprocess.run([python, maker, into], check=True, stdout=subprocess.DEVNULL)
    return into
