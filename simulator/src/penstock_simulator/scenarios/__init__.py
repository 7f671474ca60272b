"""Workloads by name: arrivals, lengths, SLOs and the engine.

The first six are the SLOs-Serve paper's scenarios [Table 2, SLOs in Table 3, lengths in Table 4], the others
recordings of other services. `scenario(name)` returns one; `arrivals` generates its requests at any rate, one
sample per seed. `catalogue` has the scenarios, `arrivals` scales time, `request_sources` draws lengths,
`recordings/` has the data.
"""

from penstock_simulator.scenarios.arrivals import arrivals
from penstock_simulator.scenarios.catalogue import SCENARIOS, UnknownScenario, scenario
from penstock_simulator.scenarios.scenario import Scenario

__all__ = ["SCENARIOS", "Scenario", "UnknownScenario", "arrivals", "scenario"]
