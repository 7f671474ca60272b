"""A Penstock policy inside vLLM: `--scheduler-cls penstock_vllm.scheduler.PenstockScheduler`.

At every step vLLM asks its scheduler what to compute. This one asks a policy of the core. `ledger` keeps the
policy's jobs beside vLLM's requests, `view` makes the picture that policies look at, `planning` asks one,
`plan` turns its step into what vLLM must do, and `scheduler` has vLLM's own code do it. `reports` tells the
sidecar what happened, over `report_socket`. `settings` is what can be set.

Where the policy fails, that step is vLLM's own.
"""
