"""A small table of capacities, end to end: a change to a policy, the engine or a scenario shows here.

The figures are this code's own, within a few steps of the search. Where a change moves them on purpose, take
the new ones, and say in the commit why they are better.
"""

from dataclasses import replace
from typing import cast

import pytest
from penstock_cli.capacity.question import Question, SearchConditions
from penstock_cli.capacity.report import as_json
from penstock_cli.capacity.run import SearchProgress, run_all
from penstock_cli.capacity.search import capacity
from penstock_cli.capacity.trial import run_trial
from penstock_cli.capacity.trial_log import TrialLog
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.scenarios import SCENARIOS, Scenario, scenario
from penstock_simulator.scenarios.recording import RecordingWindow
from penstock_simulator.scenarios.request_sources import pairs
from penstock_simulator.scenarios.scenario import RequestStream
from penstock_simulator.simulation import LengthKnowledge

CALM = "calm"
KNOWN = SearchConditions(1, 0.9, LengthKnowledge.KNOWN, TruthKind.EXACT, 2, "round-robin")
PREDICTED = SearchConditions(1, 0.9, LengthKnowledge.PREDICTED, TruthKind.MEASURED, 2, "round-robin")


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve seconds of the code trace on a faster engine: a scenario that is searched in a second."""
    code = RequestStream(RecordingWindow("azure-code", 0, 12, 300), pairs("coder", "azure-code", 1024))
    small = replace(scenario("coder"), name=CALM, streams=(code,), time_model="slos-serve-opt-13b-h100")
    monkeypatch.setitem(cast(dict[str, Scenario], SCENARIOS), CALM, small)


def capacities(conditions: SearchConditions, *policies: str) -> dict[str, float]:
    searches = [capacity(Question(CALM, policy, conditions)) for policy in policies]
    with TrialLog(None) as memory:
        rows = as_json(run_all(searches, run_trial, 1, memory, SearchProgress()))
    return {row["policy"]: row["capacity_rps_per_replica"] for row in rows}


def test_the_table_holds_with_known_lengths_and_an_exact_truth() -> None:
    found = capacities(KNOWN, "slos-serve", "vllm-legacy", "sola")
    assert found.pop("slos-serve") == pytest.approx(10.1, rel=0.12)
    assert found == pytest.approx({"vllm-legacy": 1.976, "sola": 5.056}, rel=0.05)


def test_the_table_holds_with_predicted_lengths_and_a_measured_truth() -> None:
    found = capacities(PREDICTED, "slos-serve", "vllm-legacy")
    assert found.pop("slos-serve") == pytest.approx(11.5, rel=0.12)
    assert found == pytest.approx({"vllm-legacy": 2.166}, rel=0.05)
