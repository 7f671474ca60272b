"""Which token budget is vLLM's best on a trace: the demo's baseline has to run at its best.

Each replica of the pool in virtual time, exact model and lengths, requests dealt out in turn.

    python bench/vllm_budget.py -f examples/demo-pool.yaml --trace examples/azure-excerpt.csv.gz
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from penstock_cli.traces.read import read_trace
from penstock_cli.traces.request import TraceRequest
from penstock_core.builtin_time_models import kv_cache_tokens, time_model
from penstock_core.policies import build
from penstock_core.replica_view import Limits
from penstock_core.request import Job, Request, new_job
from penstock_core.time_model import TimeModel
from penstock_pool import Pool, load_pool
from penstock_simulator.engine_state import EngineState
from penstock_simulator.one_replica import serve

BUDGETS_TOKENS = (256, 384, 512, 640, 768, 1024, 2048, 8192)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("-f", "--file", type=Path, default=Path("examples/demo-pool.yaml"))
    parser.add_argument("--trace", type=Path, default=Path("examples/azure-excerpt.csv.gz"))
    options = parser.parse_args()
    pool, trace = load_pool(options.file), list(read_trace(options.trace))
    print(f"{'budget, tokens':>14}  {'attained, %':>11}")
    for budget_tokens in BUDGETS_TOKENS:
        print(f"{budget_tokens:>14}  {100 * attained(pool, trace, budget_tokens):>11.1f}")


def attained(pool: Pool, trace: Sequence[TraceRequest], budget_tokens: int) -> float:
    """Share of the trace's requests that keep every target under vLLM's policy with this budget."""
    name, replicas = pool.spec.engine.time_model, pool.spec.replicas
    model, limits = time_model(name), Limits(budget_tokens, pool.spec.scheduling.max_running)
    met = 0
    for replica in range(replicas):
        jobs = [job(pool, model, i, asked) for i, asked in enumerate(trace) if i % replicas == replica]
        engine = EngineState(kv_cache_tokens(name), limits, pool.spec.engine.block_tokens)
        met += sum(fate.met() for fate in serve(build("vllm"), engine, model, jobs))
    return met / len(trace)


def job(pool: Pool, model: TimeModel, number: int, asked: TraceRequest) -> Job:
    targets = pool.tiers()[asked.tier or pool.spec.default_tier].slo.targets(
        model.prefill_seconds(asked.prompt_tokens)
    )
    output = asked.output_tokens
    request = Request(str(number), asked.tier or "", asked.arrival_s, asked.prompt_tokens, output, targets)
    return new_job(request, output, best_effort=False)


if __name__ == "__main__":
    main()
