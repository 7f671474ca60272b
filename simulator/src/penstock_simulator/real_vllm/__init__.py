"""The policy `vllm-real`: the code of vLLM's V1 scheduler in virtual time.

It validates the policy `vllm`, and is a baseline without reimplementation. No model runs and no weights are
needed: vLLM's scheduler decides, the simulated engine executes its steps, and the generated tokens are
reported to vLLM as by its model runner.

`location` finds the installation, `scheduler` builds vLLM's scheduler, `live_scheduler` synchronises it with
an engine, `policy` is the policy. vLLM is imported only when the policy is built, which takes seconds.
"""

from penstock_simulator.real_vllm.location import VllmMissing
from penstock_simulator.real_vllm.policy import NoPromptContent, RealVllm

__all__ = ["NoPromptContent", "RealVllm", "VllmMissing"]
