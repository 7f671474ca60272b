"""Names that a pool may use because the core has them: time models and policies."""

from collections.abc import Collection
from difflib import get_close_matches

from penstock_pool.scalars import wrong

TIME_MODELS = (
    "llama-3-8b-a100",
    "llama-3-70b-4xa100",
    "qwen2.5-7b-a100",
    "opt-13b-a100",
    "opt-13b-h100",
    "llama-3-8b-h100",
    "llama-3-70b-4xh100",
    "slos-serve-opt-6.7b-a100",
    "slos-serve-opt-13b-2xa100",
    "slos-serve-opt-30b-4xa100",
    "slos-serve-opt-13b-h100",
    "slos-serve-toolllama-7b-a100",
    "slos-serve-r1-distill-1.5b-a100",
)
POLICIES = ("slos-serve", "vllm")


def did_you_mean(given: str, allowed: Collection[str]) -> str:
    """`; did you mean x?` where a name is close, else nothing."""
    close = get_close_matches(given, allowed, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def known_time_model(name: str) -> str:
    """The name, if it is `auto` or a built-in time model."""
    return _one_of(name, ("auto", *TIME_MODELS), "time model")


def known_policy(name: str) -> str:
    """The name, if the core has such a policy."""
    return _one_of(name, POLICIES, "policy")


def _one_of(name: str, allowed: Collection[str], what: str) -> str:
    if name in allowed:
        return name
    raise wrong(f'"{name}" is no {what}; one of {", ".join(allowed)}{did_you_mean(name, allowed)}')
