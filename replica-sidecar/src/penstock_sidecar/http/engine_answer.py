"""The answer of a request at the engine's port: what the engine reports about it becomes its outcome.

The engine counts tokens and their times where it writes them to the gateway's connection. Step reports have
the progress of all of the engine's requests, as for answers that routers read from the engine.
"""

from collections.abc import Callable, Mapping
from typing import Self

from penstock_proto import replica_pb2 as wire
from penstock_proto.engine_calls import Progress, Report
from penstock_routing.replicas.upstream_request import End
from penstock_routing.request.outcome import Ending, Outcome
from penstock_runtime.clock import monotonic
from penstock_runtime.engine.http_client import FULL

from penstock_sidecar.http.engine_call import EngineCall

_STATES: Mapping[Progress, "wire.AnswerState.ValueType"] = {
    Progress.BEGUN: wire.ANSWER_STATE_BEGUN,
    Progress.WHOLE: wire.ANSWER_STATE_WHOLE,
    Progress.CUT: wire.ANSWER_STATE_LOST,
}


class EngineAnswer:
    """The answer that the engine writes, whose reports are taken within the block.

    answered: applies its state to the replica's request.
    """

    def __init__(
        self, at_engine: EngineCall, answered: Callable[[wire.EngineAnswer], None], outcome: Outcome
    ) -> None:
        self._at_engine, self._answered, self._outcome = at_engine, answered, outcome
        self._refusal: Report | None = None

    def __enter__(self) -> Self:
        self._at_engine.on_report = self._take
        return self

    def __exit__(self, *_: object) -> None:
        self._at_engine.on_report = None

    def refusal(self, end: End | None) -> End | None:
        """Return the end of the request, with the engine's own error if it has refused it."""
        refusal = self._refusal
        if refusal is None or not isinstance(end, wire.Failed):
            return end
        return wire.Failed(failure=end.failure, status=refusal.status, body=refusal.body)

    def finished(self, end: End | None) -> None:
        """Record that the whole answer was written. end: the replica's counts and timings."""
        assert isinstance(end, wire.Finished)
        outcome = self._outcome
        outcome.ending, outcome.finished = Ending.ANSWERED, end
        outcome.ended_s = outcome.token_times_s[-1] if outcome.token_times_s else monotonic()
        self._at_engine.completed()

    def _take(self, report: Report) -> None:
        if report.progress is Progress.REFUSED:
            self._refused(report)
            return
        self._outcome.token_times_s = report.token_times_s
        counts = {
            "prompt_tokens": report.prompt_tokens,
            "completion_tokens": report.completion_tokens,
            "cached_tokens": report.cached_tokens,
        }
        known = {name: count for name, count in counts.items() if count is not None}
        answer = wire.EngineAnswer(
            state=_STATES[report.progress],
            tokens=report.tokens,
            thinking_tokens=0 if report.progress is Progress.WHOLE else report.thinking_tokens,
            **known,
        )
        self._answered(answer)

    def _refused(self, report: Report) -> None:
        if report.status in FULL:
            self._answered(wire.EngineAnswer(state=wire.ANSWER_STATE_FULL))
            return
        self._refusal = report
        self._answered(wire.EngineAnswer(state=wire.ANSWER_STATE_REFUSED))
