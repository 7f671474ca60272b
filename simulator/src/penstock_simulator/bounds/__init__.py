"""What no scheduler can do better: upper bounds on attainment and capacity, by linear programs.

Given a workload with known lengths, targets, and replicas whose iterations take exactly what a time model
says, `bound` is a share of the requests that no scheduler can exceed, not even one that knows all arrivals
beforehand. `capacity_bound` is the rate at which that share falls below what was asked for. Policies can be
judged by their share of it.

The argument has three parts. `demand`: what each request needs at the very least. `machine`: what replicas
can do at the most; an iteration, which is one and indivisible, is counted in every piece of time by the
share that lies there, and all limits are sums over iterations, so every real schedule keeps them.
`relaxation`: one program that accepts shares of requests. Real schedules are among its solutions, so its
optimum bounds them; and `linear_program` certifies an upper bound of that optimum, whatever the solver did.

With speculation a decode's luck is not known when it is taken into an iteration. So on average over the luck
the tokens that come out are what is expected of the drafts that were paid for, also where a scheduler gives
up on the unlucky, and the sums hold as averages. Memory needs one thought more: an iteration that may bring
out k tokens holds at least what the last of them needs, so tokens out times memory held is never less than
the sum of what each token needs.
"""

from penstock_simulator.bounds.capacity import bound, capacity_bound
from penstock_simulator.bounds.setting import Setting, setting_of

__all__ = ["Setting", "bound", "capacity_bound", "setting_of"]
