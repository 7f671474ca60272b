"""Upper bounds on attainment and capacity for any scheduler, by linear programs.

Given a workload with known lengths and targets, and replicas whose iterations take exactly as long as a time
model says, `bound` is a share of requests that no scheduler can exceed, not even with knowledge of all
arrivals. `capacity_bound` is the rate at which that share falls below a given attainment.

The proof has three parts. `least_work`: the least that each request needs. `replica_limits`: the most that
replicas can do. An iteration is indivisible, but is counted in every time slot by the share of its duration
there; all limits are sums over iterations, so every real schedule satisfies them. `relaxation`: one program
that accepts fractions of requests. Real schedules are among its solutions, so its optimum is an upper bound,
and `linear_program` certifies an upper bound of that optimum even if the solver is inexact.

With speculation, the number of accepted draft tokens is unknown when a decode is scheduled. In expectation
the generated tokens equal the expected acceptance of the drafts paid for, even if a scheduler gives up on
unlucky requests, so the sums hold in expectation. For memory: an iteration that may generate k tokens holds
at least what the last of them needs, so generated tokens times held memory is at least the sum over the
tokens.
"""

from penstock_simulator.bounds.bound_setting import BoundSetting, bound_setting
from penstock_simulator.bounds.capacity import bound, capacity_bound

__all__ = ["BoundSetting", "bound", "bound_setting", "capacity_bound"]
