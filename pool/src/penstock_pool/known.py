"""Names of policies, routing orders and time models in the core, which a pool may use."""

from collections.abc import Collection
from difflib import get_close_matches
from typing import Annotated

from penstock_core.policies import POLICIES
from penstock_core.routing.orders import ORDERS
from penstock_core.timing.builtin_models import BUILTINS
from pydantic import AfterValidator, WithJsonSchema

from penstock_pool.scalars import Text, wrong
from penstock_pool.time_models import SUFFIX

ONLY_SIMULATED = {
    "distserve": "it splits a fleet into prefill and decode GPUs; "
    "`penstock capacity --policy distserve` measures it",
    "vllm-real": "it is vLLM without a policy; `penstock simulate --policy vllm-real` runs it",
}
"""Schedulers that only exist for comparison, and why a pool cannot use them."""


TIME_MODELS = ("auto", *BUILTINS)


def did_you_mean(given: str, allowed: Collection[str]) -> str:
    """Return `; did you mean x?` if a name is similar, else an empty text."""
    close = get_close_matches(given, allowed, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def known_time_model(name: str) -> str:
    """Return the name if it is `auto`, a built-in time model or a measured one's file."""
    return name if name.endswith(SUFFIX) else _one_of(name, TIME_MODELS, "time model")


def known_policy(name: str) -> str:
    """Return the name if the core has such a policy."""
    if name in ONLY_SIMULATED:
        raise wrong(f'"{name}" is not a policy of a replica: {ONLY_SIMULATED[name]}')
    return _one_of(name, POLICIES, "policy")


def known_order(name: str) -> str:
    """Return the name if the core has such a routing order."""
    return _one_of(name, ORDERS, "routing order")


def _one_of(name: str, allowed: Collection[str], what: str) -> str:
    if name in allowed:
        return name
    raise wrong(f'"{name}" is not a {what}; one of {", ".join(allowed)}{did_you_mean(name, allowed)}')


def _enum(names: Collection[str]) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "enum": [*names]})


def _enum_or_file(names: Collection[str]) -> WithJsonSchema:
    """Return the schema: in a cluster a file name is the name of its ConfigMap and `.json`."""
    either = "|".join(name.replace(".", r"\.") for name in names)
    file = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\.json"
    return WithJsonSchema({"type": "string", "maxLength": 253, "pattern": f"^({either}|{file})$"})


TimeModelName = Annotated[Text, AfterValidator(known_time_model), _enum_or_file(TIME_MODELS)]
PolicyName = Annotated[Text, AfterValidator(known_policy), _enum(POLICIES)]
OrderName = Annotated[Text, AfterValidator(known_order), _enum(ORDERS)]
