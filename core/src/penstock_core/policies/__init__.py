"""The policies, by the name in a pool's `scheduling.policy`."""

from collections.abc import Callable, Mapping
from typing import Any

from penstock_core.domain.policy import Knobs, Policy
from penstock_core.policies.accelgen.policy import AccelGen
from penstock_core.policies.fastserve import FastServe
from penstock_core.policies.fcfs import Fcfs
from penstock_core.policies.fluidserve import FluidServe
from penstock_core.policies.orca import Orca
from penstock_core.policies.qoserve import QoServe
from penstock_core.policies.sarathi import Sarathi
from penstock_core.policies.sjf import Sjf
from penstock_core.policies.sola.policy import Sola
from penstock_core.policies.vllm import Vllm
from penstock_core.policies.vllm_legacy import VllmLegacy


def _slos_serve(knobs: Knobs) -> Policy[Any]:
    """Import on use: batch plans are compiled, and numba takes half a second to import."""
    from penstock_core.policies.slos_serve.policy import SlosServe

    return SlosServe(aging_s=knobs.aging_s)


def _annealing(knobs: Knobs) -> Policy[Any]:
    """Import on use, as above."""
    from penstock_core.policies.annealing.policy import Annealing

    return Annealing(aging_s=knobs.aging_s)


POLICIES: Mapping[str, Callable[[Knobs], Policy[Any]]] = {
    "annealing": _annealing,
    "slos-serve": _slos_serve,
    "sola": lambda knobs: Sola(aging_s=knobs.aging_s),
    "accelgen": lambda knobs: AccelGen(aging_s=knobs.aging_s),
    "vllm": lambda _: Vllm(),
    "vllm-legacy": lambda _: VllmLegacy(),
    "sarathi": lambda _: Sarathi(),
    "sjf": lambda _: Sjf(),
    "fastserve": lambda knobs: FastServe(aging_s=knobs.aging_s),
    "orca": lambda _: Orca(),
    "fcfs": lambda _: Fcfs(),
    "qoserve": lambda _: QoServe(),
    "fluidserve": lambda _: FluidServe(),
}


class UnknownPolicy(KeyError):
    """No policy has this name."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(name)
        self.name = name
        self.known = known

    def __str__(self) -> str:
        return f"no policy is called '{self.name}'; there are: {', '.join(self.known)}"


def build(name: str, knobs: Knobs | None = None) -> Policy[Any]:
    """Return the policy of this name. Raises UnknownPolicy."""
    if name not in POLICIES:
        raise UnknownPolicy(name, tuple(POLICIES))
    return POLICIES[name](knobs or Knobs())
