"""`make e2e-vllm`: a pool on real vLLM, from its start to its end, beside vLLM's own scheduler.

Each line of STEPS is one step, defined in its own file of `steps/`. vLLM runs on this machine's CPU with a
small random model; its measured speed sets the pool's targets.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pool_on_vllm.runner import Step, name_of, run_steps
from pool_on_vllm.steps import (
    beginning,
    benchmark,
    cancelling,
    clients,
    ending,
    greedy,
    killing,
    long_prompts,
    overload,
    prefixes,
    streams,
)

STEPS: Sequence[Step] = (
    beginning.plain_servers,
    beginning.pace_of_this_machine,
    greedy.references,
    beginning.profile_of_an_engine,
    beginning.pool_is_up,
    clients.chat,
    clients.completions,
    long_prompts.gaps_of_a_stream,
    overload.walks_on_then_best_effort,
    overload.walks_on_then_429,
    benchmark.agrees_with_the_router,
    cancelling.frees_the_engine,
    killing.engine,
    streams.engine_killed,
    streams.sidecar_killed,
    ending.pool_stops,
    greedy.small_pool_is_up,
    greedy.same_tokens,
    ending.pool_stops,
    prefixes.pool_is_up,
    prefixes.turns,
    ending.pool_stops,
)


def main() -> int:
    parser = argparse.ArgumentParser("e2e-vllm", description="Penstock on real vLLM.")
    parser.add_argument("--results", type=Path, default=Path(".e2e-vllm"), help="figures and logs")
    parser.add_argument(
        "--without", metavar="STEP", action="append", default=[], help=", ".join(map(name_of, STEPS))
    )
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # processes are ended on the way out
    chosen = [step for step in STEPS if name_of(step) not in given.without]
    return run_steps(chosen, given.results.resolve())


if __name__ == "__main__":
    sys.exit(main())
