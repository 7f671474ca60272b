"""Checks that vLLM can be imported in a new environment, and its scheduler built.

`python -m penstock_simulator.real_vllm.first_import` fails if a package is missing or incompatible.
"""

from penstock_simulator.real_vllm.scheduler import EngineShape, build_scheduler

if __name__ == "__main__":
    build_scheduler(EngineShape(blocks=16, block_tokens=16, batch_tokens=64, running=4, drafts=2))
