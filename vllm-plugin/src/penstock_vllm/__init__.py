"""A Penstock policy inside vLLM: `--scheduler-cls penstock_vllm.scheduler.PenstockScheduler`.

At every step vLLM asks its scheduler what to compute, and this scheduler asks a policy of the core. `ledger`
keeps a job for each of vLLM's requests. `step_planning` plans the step: `view` builds the policy's input with
the jobs that are ready (`ready_jobs`), `policy_calls` call the policy, `plan` translates its step. vLLM's own
code executes it: `plan_execution` sets its lists and bounds, `caps` the tokens of each request, `drafts` the
draft tokens to verify. A `repeated_plan` is made without the policy. `pipeline` has the steps in progress
(`step_in_progress`). `boundaries` records the state that `reports` sends to the sidecar. vLLM calls
`scheduler`, which `start` builds. `settings` has the configuration, `termination_message` writes why an
engine ends.

If the policy or the code around it fails, that step is vLLM's own (`containment`, `faults`).
"""
