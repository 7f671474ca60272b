"""How much load a promise-keeping replica takes: attainment by rate, beside vLLM's own policy.

    .venv/bin/python bench/admitted_load.py [--model NAME] [--kv-tokens N] [--rates R,R,...]

One replica in virtual time, Poisson arrivals, lengths as in the SLOs-Serve paper's ChatBot (prompts
763 ± 424, answers 266 ± 160) and known, exact time model. Attainment counts all arrived.
"""

import argparse
from math import log, sqrt
from random import Random

from penstock_core.builtin_time_models import builtin
from penstock_core.policies import build
from penstock_core.replica_view import Limits
from penstock_core.request import Job, Request, new_job
from penstock_core.slo import Judge, Slo
from penstock_core.time_model import TimeModel
from penstock_core.verdict import Admitted
from penstock_simulator.engine_state import EngineState
from penstock_simulator.one_replica import serve

CHAT = Slo(ttft_slowdown=5, tpot_s=0.1, judge=Judge.WINDOW)


def log_normal(random: Random, mean: float, spread: float, most: int) -> int:
    variance = log(1 + (spread / mean) ** 2)
    return max(2, min(most, int(random.lognormvariate(log(mean) - variance / 2, sqrt(variance)))))


def chat(random: Random, rate_rps: float, count: int, model: TimeModel) -> list[Job]:
    at_s, jobs = 0.0, []
    for i in range(count):
        at_s += random.expovariate(rate_rps)
        prompt, output = log_normal(random, 763, 424, 4000), log_normal(random, 266, 160, 2000)
        targets = CHAT.targets(model.prefill_seconds(prompt))
        jobs.append(new_job(Request(f"{i:05d}", "chat", at_s, prompt, 4096, targets), output, False))
    return jobs


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Attainment of one replica by arrival rate, under slos-serve and under vllm."
    )
    parser.add_argument("--model", default="slos-serve-opt-6.7b-a100", help="built-in time model")
    parser.add_argument("--kv-tokens", type=int, default=43296, help="KV cache (default 43296)")
    parser.add_argument("--rates", default="3,3.5,4,4.5,5,6", help="requests per second, comma separated")
    parser.add_argument("--requests", type=int, default=1500, help="per run (default 1500)")
    parser.add_argument("--batch-tokens", type=int, default=512, help="vllm's token budget (default 512)")
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals (default 1)")
    options = parser.parse_args()
    model = builtin(options.model).model
    print(f"{'req/s':>6} {'policy':>11} {'attainment':>11} {'admitted':>9} {'missed':>7}")
    for rate in map(float, options.rates.split(",")):
        jobs = chat(Random(options.seed), rate, options.requests, model)
        for policy, limits in (("slos-serve", Limits()), ("vllm", Limits(options.batch_tokens))):
            fates = serve(build(policy), EngineState(options.kv_tokens, limits), model, jobs)
            met = sum(fate.met() for fate in fates)
            admitted = sum(isinstance(fate.verdict, Admitted) for fate in fates)
            shares = f"{met / len(fates):>11.3f} {admitted / len(fates):>9.3f}"
            print(f"{rate:>6} {policy:>11} {shares} {admitted - met:>7}")


if __name__ == "__main__":
    main()
