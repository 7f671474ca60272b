"""The SLOs that a user gives for judging a replay: a pool file, or --slo options."""

from pathlib import Path

from penstock_core.domain.slo import Judge, Slo
from penstock_pool import Pool, load_pool, named_time_model, parse_duration_s

from penstock_cli.failure import Failure
from penstock_cli.replay.tier_slos import TierSlos

EXAMPLE = "chat:ttft=800ms,tpot=50ms"


def slos_from_options(file: Path | None, slos: list[str]) -> TierSlos | None:
    """Return the given SLOs; None if neither is given. Raises Failure or PoolError."""
    if file is None and not slos:
        return None
    base = TierSlos() if file is None else slos_of_pool(load_pool(file))
    given = dict(_parse(text) for text in slos)
    default = base.default_tier or next(iter(given), "")
    return TierSlos({**base.slos, **given}, default, base.time_model)


def slos_of_pool(pool: Pool) -> TierSlos:
    """Return a pool's SLOs, with its time model."""
    slos = {name: tier.slo for name, tier in pool.tiers().items()}
    return TierSlos(slos, pool.spec.default_tier, named_time_model(pool.spec.engine.time_model))


def _parse(text: str) -> tuple[str, Slo]:
    tier, _, targets = text.partition(":")
    pairs = dict(pair.partition("=")[::2] for pair in targets.split(","))
    unknown = set(pairs) - {"ttft", "tpot", "answer_tpot", "e2e", "judge"}
    if not tier or unknown:
        raise Failure(f'--slo: "{text}" is invalid; write for example {EXAMPLE}', bad_input=True)
    try:
        seconds = {f"{name}_s": parse_duration_s(value) for name, value in pairs.items() if name != "judge"}
        return tier, Slo(**seconds, judge=Judge(pairs.get("judge", "mean")))
    except ValueError as error:
        raise Failure(f"--slo {tier}: {error}", bad_input=True) from None
