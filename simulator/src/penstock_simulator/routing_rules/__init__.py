"""Rules by which other systems choose a replica with prefix caches, for comparison in simulations.

Each file is one rule with its source. They are orders like core's, and get the same inputs: the replicas'
last snapshots, and the tokens that each has cached. Some of these systems estimate the latter; here all know
it exactly. A rule without a number has its system's defaults; a number is another value of its threshold or
weight, for comparisons with each rule at its best. `ROUTING_RULES` has core's orders too.
"""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from penstock_core.routing.orders import ORDERS
from penstock_core.routing.replica_load import Order

from penstock_simulator.routing_rules.dynamo import dynamo
from penstock_simulator.routing_rules.llm_d import llm_d
from penstock_simulator.routing_rules.sglang import sglang

ROUTING_RULES: Mapping[str, Order] = MappingProxyType(
    {
        **ORDERS,
        "llm-d": llm_d,
        "sglang": sglang,
        **{f"sglang-{requests}": partial(sglang, balance_requests=requests) for requests in (16, 4)},
        "dynamo": dynamo,
        **{f"dynamo-{weight}": partial(dynamo, overlap_weight=weight) for weight in (0.25, 4)},
    }
)
