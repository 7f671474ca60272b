"""By what a replay judges, where the user says it: a pool file, or targets on the command line."""

from pathlib import Path

from penstock_core.domain.slo import Judge, Slo
from penstock_pool import Pool, load_pool, named_time_model, parse_duration_s

from penstock_cli.failure import Failure
from penstock_cli.replay.promises import Promises

EXAMPLE = "chat:ttft=800ms,tpot=50ms"


def promises_from(file: Path | None, slos: list[str]) -> Promises | None:
    """What the user says; None where nothing was said. Raises Failure or PoolError."""
    if file is None and not slos:
        return None
    base = Promises() if file is None else promises_of(load_pool(file))
    given = dict(_parse(text) for text in slos)
    default = base.default_tier or next(iter(given), "")
    return Promises({**base.slos, **given}, default, base.time_model)


def promises_of(pool: Pool) -> Promises:
    """A pool's promises, judged by the time model that it names."""
    slos = {name: tier.slo for name, tier in pool.tiers().items()}
    return Promises(slos, pool.spec.default_tier, named_time_model(pool.spec.engine.time_model))


def _parse(text: str) -> tuple[str, Slo]:
    tier, _, targets = text.partition(":")
    pairs = dict(pair.partition("=")[::2] for pair in targets.split(","))
    unknown = set(pairs) - {"ttft", "tpot", "answer_tpot", "e2e", "judge"}
    if not tier or unknown or not pairs:
        raise Failure(f'--slo: "{text}" is none; write for example {EXAMPLE}', bad_input=True)
    try:
        seconds = {f"{name}_s": parse_duration_s(value) for name, value in pairs.items() if name != "judge"}
        return tier, Slo(**seconds, judge=Judge(pairs.get("judge", "mean")))
    except ValueError as error:
        raise Failure(f"--slo {tier}: {error}", bad_input=True) from None
