"""Runs vLLM's own server, several at once: `plain_vllm.py PORT=FLAGS [PORT=FLAGS…] -- FLAGS OF ALL`.

Run with vLLM's Python. Importing vLLM takes longer than loading a small model, and each server does it twice,
because its engine is a new process. This program imports vLLM once and forks each server, which forks its
engine. Nothing else differs. On SIGTERM it stops all servers.
"""

import os
import signal
import sys
from collections.abc import Sequence

import vllm.model_executor.models.llama
import vllm.v1.engine.core
import vllm.v1.worker.cpu_worker  # noqa: F401  # imported before the forks
from vllm.entrypoints.launchers.api_server.entry import main as serve
from vllm.platforms.cpu import CpuPlatform


def fork_engines() -> None:
    """Make vLLM's CPU build fork its engines, which it starts as new interpreters by default."""
    configure = CpuPlatform.check_and_update_config.__func__

    def then_fork(cls: type, config: object) -> None:
        configure(cls, config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    CpuPlatform.check_and_update_config = classmethod(then_fork)


def start(port: str, flags: Sequence[str]) -> int:
    """Start one server. Returns its process id."""
    if process := os.fork():
        return process
    sys.argv = ["serve", "--port", port, *flags]
    serve()
    os._exit(0)


def main() -> None:
    at = sys.argv.index("--")
    fork_engines()
    processes = []
    for server in sys.argv[1:at]:
        port, _, own = server.partition("=")
        processes.append(start(port, [*own.split(), *sys.argv[at + 1 :]]))

    def stop(*_: object) -> None:
        for process in processes:
            os.kill(process, signal.SIGTERM)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    for process in processes:
        os.waitpid(process, 0)


if __name__ == "__main__":
    main()
