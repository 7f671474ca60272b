"""SLOs-Serve: admission by dynamic programming over batch plans, and batches that follow these plans.

Start reading at `policy`, which has one method per decision. `admission` decides on new requests:
`selection`, the dynamic program, proposes a set, and `feasibility` checks it by a batch plan (`batch_plan`,
simulated in `kernel`), by KV memory at its peak, and by `price`, the most that a request may cost relative to
its value. `promotion` admits best-effort requests later. `batch_formation` forms the next batch, which is the
first of a plan.
"""
