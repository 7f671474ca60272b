"""`make e2e-vllm`: tests a pool on real vLLM, and compares it with vLLM's own scheduler.

Each line of STEPS is one step, defined in its own file of `steps/`. vLLM runs on this machine's CPU with a
small random model; its measured speed sets the pool's targets.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pool_on_vllm.runner import VllmStep, name_of, run_steps
from pool_on_vllm.steps import (
    behind_envoy,
    benchmark,
    cancellation,
    clients,
    engine_kill,
    greedy,
    long_prompts,
    overload,
    prefix_caching,
    shutdown,
    startup,
    stream_moves,
)

STEPS: Sequence[VllmStep] = (
    startup.plain_servers,
    startup.engine_speed,
    greedy.references,
    startup.engine_profile,
    startup.start_pool,
    clients.chat,
    clients.completions,
    long_prompts.stream_gaps,
    overload.hops_then_best_effort,
    overload.hops_then_429,
    benchmark.agreement,
    cancellation.frees_memory,
    engine_kill.recovery,
    stream_moves.engine_killed,
    stream_moves.sidecar_killed,
    shutdown.stop_pool,
    greedy.start_small_pool,
    greedy.equal_tokens,
    shutdown.stop_pool,
    prefix_caching.start_pool,
    prefix_caching.turns,
    shutdown.stop_pool,
    behind_envoy.start_pool,
    clients.chat,
    clients.completions,
    behind_envoy.counted,
    shutdown.stop_pool,
)


def main() -> int:
    parser = argparse.ArgumentParser("e2e-vllm", description="Tests Penstock on real vLLM.")
    parser.add_argument("--results", type=Path, default=Path(".e2e-vllm"), help="figures and logs")
    parser.add_argument(
        "--without", metavar="STEP", action="append", default=[], help=", ".join(map(name_of, STEPS))
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # unwind, so that child processes are stopped
    chosen = [step for step in STEPS if name_of(step) not in arguments.without]
    return run_steps(chosen, arguments.results.resolve())


if __name__ == "__main__":
    sys.exit(main())
