"""Policies by name: those of core and `vllm-real`. Only simulations can use `vllm-real`."""

from typing import Any

from penstock_core import policies
from penstock_core.domain.policy import Knobs, Policy
from penstock_core.policies import UnknownPolicy

from penstock_simulator.real_vllm import RealVllm
from penstock_simulator.real_vllm.location import load

VLLM_REAL = "vllm-real"

NAMES = (*policies.POLICIES, VLLM_REAL)


def build(name: str, knobs: Knobs | None = None) -> Policy[Any]:
    """Return the policy of this name. Raises UnknownPolicy, and VllmMissing if vLLM is not installed."""
    if name == VLLM_REAL:
        load()
        return RealVllm()
    if name not in NAMES:
        raise UnknownPolicy(name, NAMES)
    return policies.build(name, knobs)
