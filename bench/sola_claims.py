"""Reproduces SOLA's main comparison: the rates at which 90 % and 99 % meet both targets [SOLA, §6.2].

    .venv/bin/python bench/sola_claims.py [--requests N] [--seed N]

The paper's models, targets and baselines; Poisson arrivals. ShareGPT is not included: lengths are log-normal,
prompts 300 ± 350 up to 2,000, answers 220 ± 200 up to 1,000. vLLM-D is `vllm-legacy`; vLLM-S is chunked
prefill with its chunk of 1,024. Ground truth from kernel tables, predicted lengths; then ablations with an
exact model.
"""

import argparse
from collections.abc import Sequence
from random import Random

from claims import ConfiguredPolicy, RequestLoad, exact, log_normal, print_highest_rates
from penstock_core.domain.replica_view import Limits
from penstock_core.domain.slo import Slo, Tier
from penstock_core.policies.sola.policy import Sola
from penstock_core.timing.builtin_models import builtin
from penstock_simulator.simulation import Fleet

SETTINGS = {
    "llama-3-8b-a100 tight": ("llama-3-8b-a100", 0.4, 0.15, 34.0),
    "llama-3-70b-4xa100 tight": ("llama-3-70b-4xa100", 0.5, 0.2, 12.0),
    "llama-3-70b-4xa100 loose": ("llama-3-70b-4xa100", 1.0, 0.4, 12.0),
}
CONTENDERS = (
    ConfiguredPolicy("vllm-legacy (vLLM-D)", "vllm-legacy"),
    ConfiguredPolicy("vllm 1024 (vLLM-S)", "vllm", Limits(1024)),
    ConfiguredPolicy("sjf", "sjf"),
    ConfiguredPolicy("sola", "sola"),
)
ABLATIONS = (
    ConfiguredPolicy("sola", Sola()),
    ConfiguredPolicy("eq. 2 to the last moment", Sola(patience=1.0)),
    ConfiguredPolicy("window of 1", Sola(window=1)),
)


def chat(random: Random) -> tuple[str, int, int]:
    return "chat", log_normal(random, 300, 350, 2000), log_normal(random, 220, 200, 1000)


def fleet(model: str, ttft_s: float, tpot_s: float) -> Fleet:
    tiers = {"chat": Tier("chat", Slo(ttft_s=ttft_s, tpot_s=tpot_s))}
    return Fleet(
        "sola", builtin(model).model, builtin(model).kv_cache_tokens, tiers, "chat", hop_latency_s=0.0
    )


def table(
    name: str, pool: Fleet, contenders: Sequence[ConfiguredPolicy], load: RequestLoad, most_rps: float
) -> None:
    print_highest_rates(
        name, pool, contenders, load, (0.9, 0.99), most_rps=most_rps, least_rps=most_rps / 8, steps=5
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Rates at 90 % and 99 % attainment: SOLA and its baselines.")
    parser.add_argument("--requests", type=int, default=1000, help="per run (default 1000)")
    parser.add_argument("--seed", type=int, default=1, help="of arrivals and engine (default 1)")
    options = parser.parse_args()
    load = RequestLoad(chat, options.requests, options.seed)
    for name, (model, ttft_s, tpot_s, most_rps) in SETTINGS.items():
        table(name, fleet(model, ttft_s, tpot_s), CONTENDERS, load, most_rps)
    model, ttft_s, tpot_s, most_rps = SETTINGS["llama-3-70b-4xa100 tight"]
    pool = exact(fleet(model, ttft_s, tpot_s))
    table("ablations: llama-3-70b-4xa100 tight, exact", pool, ABLATIONS, load, most_rps)


if __name__ == "__main__":
    main()
