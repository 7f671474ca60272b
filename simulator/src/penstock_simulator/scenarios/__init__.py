"""Workloads by name: who asks, when, how much, under which promise, on which engine.

The first six are the SLOs-Serve paper's scenarios [Table 2, SLOs in Table 3, lengths in Table 4], the others
recordings of other services. `scenario(name)` says what one is; `arrivals` makes its requests at any rate,
as many samples as there are seeds. `catalogue` has the scenarios, `arrivals` how time is stretched,
`asks` where lengths come from, `recordings/` the data.
"""

from penstock_simulator.scenarios.arrivals import arrivals
from penstock_simulator.scenarios.catalogue import SCENARIOS, UnknownScenario, scenario
from penstock_simulator.scenarios.scenario import Scenario

__all__ = ["SCENARIOS", "Scenario", "UnknownScenario", "arrivals", "scenario"]
