"""The schedulers there are, by the name a pool gives in `scheduling.policy`."""

from collections.abc import Mapping
from typing import Any

from penstock_core.policies.slos_serve import SlosServe
from penstock_core.policies.vllm import Vllm
from penstock_core.policy import Policy

POLICIES: Mapping[str, type[Policy[Any]]] = {
    "slos-serve": SlosServe,
    "vllm": Vllm,
}


class UnknownPolicy(KeyError):
    """No policy has this name."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(name)
        self.name = name
        self.known = known

    def __str__(self) -> str:
        return f"no policy is called '{self.name}'; there are: {', '.join(self.known)}"


def build(name: str) -> Policy[Any]:
    """The policy of this name, with its defaults. Raises UnknownPolicy."""
    try:
        return POLICIES[name]()
    except KeyError:
        raise UnknownPolicy(name, tuple(POLICIES)) from None
