"""The policy `vllm-real`: vLLM's own V1 scheduler, its own code, under virtual time.

It is how we know that the policy `vllm` is no straw man, and a baseline that nobody can call one. No model
runs and no weights are there: vLLM's scheduler decides, the simulated engine carries it out, and what came
out is told to vLLM as its model runner would tell it.

`location` says where vLLM lies, `scheduler` builds one, `live_scheduler` keeps it in step with an engine,
`policy` is the policy. vLLM is imported when one is built by its name, since that takes seconds and 5 GB.
"""

from penstock_simulator.real_vllm.location import VllmMissing
from penstock_simulator.real_vllm.policy import RealVllm

__all__ = ["RealVllm", "VllmMissing"]
