"""The policies that a simulation can run: those that serve, and vLLM itself, which no pool can choose."""

from typing import Any

from penstock_core import policies
from penstock_core.domain.policy import Knobs, Policy
from penstock_core.policies import UnknownPolicy

from penstock_simulator.real_vllm import RealVllm
from penstock_simulator.real_vllm.location import load

VLLM_REAL = "vllm-real"

NAMES = (*policies.POLICIES, VLLM_REAL)


def build(name: str, knobs: Knobs | None = None) -> Policy[Any]:
    """The policy of this name. Raises UnknownPolicy, and VllmMissing for vLLM where it is not here."""
    if name == VLLM_REAL:
        load()
        return RealVllm()
    if name not in NAMES:
        raise UnknownPolicy(name, NAMES)
    return policies.build(name, knobs)
