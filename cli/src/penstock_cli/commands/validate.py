"""`penstock validate`: checks a pool file."""

from pathlib import Path
from typing import Annotated

import typer
from penstock_core.domain.slo import Slo, Tier
from penstock_pool import Pool, load_keys, load_pool
from rich.console import Console

from penstock_cli.replay.report import aligned

PoolFile = Annotated[Path, typer.Option("-f", "--file", metavar="POOL.YAML", help="The pool file.")]


def validate(file: PoolFile) -> None:
    """Check a pool file. Prints one line per invalid field, or a summary of the tiers.

    Example: penstock validate -f examples/demo-pool.yaml
    """
    pool = load_pool(file)
    if any(application.keys.file for application in pool.spec.applications):
        load_keys(pool, file.parent)
    Console().print(f"{file} is valid: {headline(pool, pool.spec.initial_replicas)}\n", tiers_table(pool))


def headline(pool: Pool, replicas: int) -> str:
    """Return a description of a pool in one line."""
    spec = pool.spec
    count = f"{replicas} replica{'' if replicas == 1 else 's'}"
    return (
        f"pool {pool.metadata.name}, {spec.model.name} on {count} ({spec.engine.type}, time model "
        f"{spec.engine.time_model}), policy {spec.scheduling.policy}, then {spec.routing.backup}"
    )


def tiers_table(pool: Pool) -> object:
    """Return a table of the tiers and their SLOs."""
    default = pool.spec.default_tier
    lines = [_line(tier, tier.name == default) for tier in pool.tiers().values()]
    heads = ("tier", "TTFT", "TPOT ms", "judged by", "e2e s", "value")
    return aligned("Tiers", heads, lines)


def _line(tier: Tier, default: bool) -> list[str]:
    name = f"{tier.name} (default)" if default else tier.name
    if tier.best_effort:
        return [name, "best effort", "–", "–", "–", "–"]
    slo = tier.slo
    tpot = _tpot(slo)
    judge = slo.judge.value if tpot else "–"
    return [
        name,
        _ttft(slo),
        tpot or "–",
        judge,
        "–" if slo.e2e_s is None else f"{slo.e2e_s:g}",
        f"{tier.value:g}",
    ]


def _ttft(slo: Slo) -> str:
    if slo.ttft_slowdown is not None:
        return f"{slo.ttft_slowdown:g} × idle prefill"
    return "–" if slo.ttft_s is None else f"{slo.ttft_s:g} s"


def _tpot(slo: Slo) -> str:
    """Return the TPOT target in ms; both if thinking and answer have their own."""
    targets_s = (slo.tpot_s, slo.answer_tpot_s)
    return ", then ".join(f"{target_s * 1000:g}" for target_s in targets_s if target_s is not None)
