"""The simulated fleet of a pool file."""

from dataclasses import dataclass
from pathlib import Path

from penstock_core.domain.replica_view import Limits
from penstock_core.routing.attempts import Backup
from penstock_core.timing.builtin_models import BUILTINS, kv_cache_tokens, time_model
from penstock_core.timing.speculation import Speculation
from penstock_pool import Pool
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.simulation import Fleet, LengthKnowledge
from penstock_simulator.simulation.run import MOST_REPLICAS

from penstock_cli.failure import NO_REPLICAS, Failure


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """Options of the command line. replicas: overrides the file's number; None keeps it.

    prefix_caching: whether engines cache prefixes of prompts; None: as in the pool.
    """

    replicas: int | None = None
    truth: TruthKind = TruthKind.MEASURED
    lengths: LengthKnowledge = LengthKnowledge.PREDICTED
    prefix_caching: bool | None = None


def fleet_of(pool: Pool, file: Path, conditions: SimulationOptions) -> Fleet:
    """Return the fleet. Raises Failure if the file needs a cluster or a live engine."""
    _check(pool, file, conditions)
    spec = pool.spec
    engine, scheduling, routing = spec.engine, spec.scheduling, spec.routing
    drafts = engine.speculation
    caching = engine.caches_prefixes if conditions.prefix_caching is None else conditions.prefix_caching
    return Fleet(
        policy=scheduling.policy,
        model=time_model(engine.time_model),
        kv_tokens=engine.kv_cache_tokens or kv_cache_tokens(engine.time_model),
        tiers=pool.tiers(),
        default_tier=spec.default_tier,
        replicas=conditions.replicas or spec.initial_replicas,
        knobs=scheduling.knobs(),
        limits=Limits(scheduling.max_batch_tokens, scheduling.max_running),
        block_tokens=engine.block_tokens,
        truth=conditions.truth,
        lengths=conditions.lengths,
        max_waiting=scheduling.max_waiting,
        max_model_len=engine.max_model_len,
        speculation=None if drafts is None else Speculation(drafts.max_tokens, drafts.acceptance),
        order=routing.order_with(caching),
        max_hops=routing.max_hops,
        backup=Backup(routing.backup),
        routers=spec.router.replicas,
        prefix_caching=caching,
    )


def _check(pool: Pool, file: Path, conditions: SimulationOptions) -> None:
    spec = pool.spec
    wrong = []
    if spec.engine.time_model not in BUILTINS:
        wrong.append(
            f"{file}: spec.engine.timeModel: {spec.engine.time_model} needs a live engine; a simulation "
            "needs a built-in time model, for example llama-3-8b-a100"
        )
    if spec.routing.backup not in set(Backup):
        wrong.append(
            f'{file}: spec.routing.backup: "{spec.routing.backup}" needs another pool, which a simulation '
            f"does not have; write {' or '.join(Backup)}"
        )
    if conditions.replicas is None and spec.initial_replicas == 0:
        wrong.append(f"{file}: {NO_REPLICAS}")
    if conditions.replicas is None and spec.initial_replicas > MOST_REPLICAS:
        wrong.append(
            f"{file}: spec.replicas: {spec.initial_replicas} is above the limit of {MOST_REPLICAS} of a "
            "simulation; give --replicas"
        )
    if wrong:
        raise Failure(*wrong, bad_input=True)
