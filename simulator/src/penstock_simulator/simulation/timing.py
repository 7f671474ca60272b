"""How long iterations take on one replica, and how long it believes that they will."""

from penstock_core.timing.time_model import BatchWork, TimeModel

from penstock_simulator.batch_shape import BatchShape
from penstock_simulator.belief import Belief
from penstock_simulator.simulation.fleet import Fleet
from penstock_simulator.truth import ExactTruth, Truth, TruthKind, build_truth


class Pace:
    """One replica's engine on its truth. Who knows the truth plans with it; anyone else measures.

    model: what to plan with.
    expected_end_s: of the iteration under way, or when the last one ended.
    """

    def __init__(self, truth: Truth, model: TimeModel, belief: Belief | None) -> None:
        self._truth, self._belief = truth, belief
        self.model = model if belief is None else belief.model
        self.expected_end_s = self._began_s = 0.0
        self._work = BatchWork(0)

    def begin(self, shape: BatchShape, now_s: float) -> float:
        """An iteration begins. Returns when it really ends."""
        self._work, self._began_s = shape.work(), now_s
        self.expected_end_s = now_s + self.model.seconds(self._work)
        return now_s + self._truth.seconds(shape, now_s)

    def end(self, now_s: float) -> None:
        """It has ended, and taken what it took."""
        self.expected_end_s = now_s
        if self._belief is not None:
            self._belief.observe(self._work, now_s - self._began_s)
            self.model = self._belief.model


def pace_of(fleet: Fleet, seed: int) -> Pace:
    """One replica's. Raises UnknownTimeModel."""
    if fleet.truth is TruthKind.EXACT:
        return Pace(ExactTruth(fleet.model), fleet.model, None)
    truth = build_truth(fleet.truth_model or fleet.model.name, fleet.truth, seed)
    return Pace(truth, fleet.model, Belief(fleet.model))
