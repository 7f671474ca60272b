"""The time model for slowdown targets: the one that replicas report, else the one that the pool names."""

from penstock_core.timing.time_model import TimeModel
from penstock_pool import Pool, named_time_model

from penstock_routing.replicas.replica_set import ReplicaSet


class PoolTimeModel:
    """Returns the time model when called; None with `timeModel: auto` until a replica has sent one."""

    def __init__(self, pool: Pool, replica_set: ReplicaSet) -> None:
        self._named = named_time_model(pool.spec.engine.time_model)
        self._replica_set = replica_set

    def __call__(self) -> TimeModel | None:
        """Return the current model."""
        described = self._replica_set.time_model
        return self._named if described is None else described
