"""A Penstock policy inside vLLM: `--scheduler-cls penstock_vllm.scheduler.PenstockScheduler`.

At every step vLLM asks its scheduler what to compute. This one asks a policy of the core. `ledger` keeps the
policy's jobs beside vLLM's requests, `view` makes the picture that policies look at, `planning` asks one,
`plan` turns its step into what vLLM must do, and vLLM's own code does it: `carrying_out` sets its lists and
bounds, `caps` how many tokens each may have, `drafts` how many to verify. A plan that is right once more is a
`standing_plan`. `pipeline` holds the steps that are `under_way`. `reports` tells the sidecar what happened.
`scheduler` is where vLLM calls all this. `settings` is what can be set.

Where the policy fails, or what is around it, that step is vLLM's own (`faults`).
"""
