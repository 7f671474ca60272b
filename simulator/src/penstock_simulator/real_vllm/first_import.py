"""Whether vLLM starts in an environment that was just made.

`python -m penstock_simulator.real_vllm.first_import` raises what is missing or does not fit.
"""

from penstock_simulator.real_vllm.scheduler import EngineShape, build_scheduler

if __name__ == "__main__":
    build_scheduler(EngineShape(blocks=16, block_tokens=16, batch_tokens=64, running=4, drafts=2))
