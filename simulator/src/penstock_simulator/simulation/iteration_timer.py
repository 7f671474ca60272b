"""True and predicted durations of one replica's iterations."""

from penstock_core.timing.admission_margin import AdmissionMargin, judged, widened
from penstock_core.timing.step_tail import step_end_s
from penstock_core.timing.time_model import BatchWork, TimeModel

from penstock_simulator.engine.learned_time_model import LearnedTimeModel
from penstock_simulator.engine_timing.batch_shape import BatchShape
from penstock_simulator.engine_timing.disturbance import disturbed
from penstock_simulator.engine_timing.ground_truth import ExactTruth, GroundTruth, TruthKind, ground_truth
from penstock_simulator.simulation.fleet import Fleet


class IterationTimer:
    """Times the iterations of one replica.

    model: the time model to plan batches with; corrected online unless `learned` is None.
    expected_end_s: predicted end of the running iteration, or the end of the last one.
    """

    def __init__(self, truth: GroundTruth, model: TimeModel, learned: LearnedTimeModel | None) -> None:
        self._truth, self._learned = truth, learned
        self.model = model if learned is None else learned.model
        self.expected_end_s = self._began_s = 0.0
        self._work = BatchWork(0)
        self._margin = AdmissionMargin()

    def admission_model(self, now_s: float) -> TimeModel:
        """Return the time model to admit with."""
        return widened(self.model, self._margin, now_s)

    def busy_until_s(self, now_s: float) -> float:
        """Return when the running iteration ends; now if none runs."""
        planned_s = self.expected_end_s - self._began_s
        return max(step_end_s(self.expected_end_s, planned_s, self.model.slow_excess, now_s), now_s)

    def judged(self, met: bool, now_s: float) -> None:
        """Record whether an admitted request that has ended met its SLO."""
        if self._learned is not None:
            self._margin = judged(self._margin, met, now_s)

    def begin(self, shape: BatchShape, now_s: float) -> float:
        """Begin an iteration. Returns its true end time."""
        self._work, self._began_s = shape.work(), now_s
        self.expected_end_s = now_s + self.model.seconds(self._work)
        return now_s + self._truth.seconds(shape, now_s)

    def end(self, now_s: float) -> None:
        """End the iteration, and correct the time model."""
        if self._learned is not None:
            self._learned.observe(self._work, now_s - self._began_s)
            self.model = self._learned.model
        self.expected_end_s = self._began_s = now_s


def iteration_timer(fleet: Fleet, seed: int) -> IterationTimer:
    """Return the timer of one replica. Raises UnknownTimeModel."""
    if fleet.truth is TruthKind.EXACT:
        exact = disturbed(ExactTruth(fleet.model), fleet.disturbance, seed)
        return IterationTimer(exact, fleet.model, None)
    truth = ground_truth(fleet.truth_model or fleet.model.name, fleet.truth, seed)
    truth = disturbed(truth, fleet.disturbance, seed)
    return IterationTimer(truth, fleet.model, LearnedTimeModel(fleet.model))
