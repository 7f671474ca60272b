"""Built-in time models, and the KV cache of their hardware.

Two families. The measured ones are fitted to whole iterations composed from measured kernels (aiconfigurator,
vLLM 0.14, 80 GB A100 and H100: matrix products, attention, all-reduce), plus the engine's own work between
iterations, 3 ms on A100 and 1.2 ms on H100. Llama-3 on A100 was also measured by vidur, with an older engine
that is 15 to 20 % slower on large batches; those fits are not used, so that the whole family describes one
engine. The mean error against that engine's tables is 3 to 9 %: real times have a step every 128 tokens,
whereas these are lines. `llama-3-70b-4xh100` predicts up to 20 % too long in batches of more than 4,000
tokens.

The `slos-serve-…` models have the constants of the SLOs-Serve paper's own engine, for comparison with its
figures: overhead is within the constants, and there are no attention terms [SLOs-Serve, §3.1.1].

A drafter step of the first family is one layer of the model and its logits (an EAGLE head); the second has
the paper's, an OPT-125m.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_core.timing.time_model import Term, TimeModel

USABLE_MEMORY = 0.9
"""Share of GPU memory that an engine uses for weights and KV cache; vLLM's default."""

KV_BLOCK_TOKENS = 16


class UnknownTimeModel(KeyError):
    """No built-in time model has this name."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(name)
        self.name = name
        self.known = tuple(known)

    def __str__(self) -> str:
        return f"no built-in time model is called '{self.name}'; there are: {', '.join(self.known)}"


@dataclass(frozen=True, slots=True)
class Builtin:
    """A time model with the memory of the hardware it was measured on.

    memory_gb: memory of all GPUs together. weights_gb: weights in 16 bits. kv_token_bytes: KV of one token.
    """

    model: TimeModel
    memory_gb: float
    weights_gb: float
    kv_token_bytes: int

    @property
    def kv_cache_tokens(self) -> int:
        """Return the tokens whose KV fits beside the weights, in whole blocks."""
        left_bytes = (self.memory_gb * USABLE_MEMORY - self.weights_gb) * 1e9
        return int(left_bytes / self.kv_token_bytes) // KV_BLOCK_TOKENS * KV_BLOCK_TOKENS


# Measured family. ms: k1 and b1, k2 and b2 (lines of the roofline, per token and fixed), kd (per token of
# decode context), kp (per attended pair of a prefill chunk), drafter step, engine overhead.
_MEASURED = {
    "llama-3-8b-a100": (
        (0.05468427184661926, 5.990859066741011, 0.038471940192164066, 10.961694885274683),
        (7.74928118629205e-05, 3.088785590018485e-06, 0.96, 3.0),
    ),
    "llama-3-70b-4xa100": (
        (0.1698923803101986, 23.6780446422526, 0.11986639290335685, 28.04201018161823),
        (5.628029579673665e-05, 3.8778142737981845e-06, 0.66, 3.0),
    ),
    "qwen2.5-7b-a100": (
        (0.05049605963238506, 7.335105074399247, 0.022858783096567446, 10.615760137100771),
        (3.7669100802853384e-05, 2.397832135927873e-06, 1.04, 3.0),
    ),
    "opt-13b-a100": (
        (0.08896038026280541, 15.056103217813716, 0.0357339676252899, 19.01976191071492),
        (0.000516450051509561, 4.800414351895739e-06, 0.78, 3.0),
    ),
    "opt-13b-h100": (
        (0.04370217078291104, -4.022641881707964, 0.016004670516959005, 9.876669082516463),
        (0.0003073897295750255, 1.3773272761962054e-06, 0.40, 1.2),
    ),
    "llama-3-8b-h100": (
        (0.019156288025108947, 3.0437505293546763, 0.009163578942602784, 6.458384591266281),
        (3.965295242246023e-05, 8.918683775614035e-07, 0.53, 1.2),
    ),
    "llama-3-70b-4xh100": (
        (0.09653201581396899, -11.052238678911689, 0.05436555864058196, 15.466452896871845),
        (2.8821351393466873e-05, 1.1567895112731644e-06, 0.34, 1.2),
    ),
}
# GB of memory, GB of weights, bytes of KV per token.
_MEASURED_MEMORY = {
    "llama-3-8b-a100": (80, 16.06, 131072),
    "llama-3-70b-4xa100": (320, 141.1, 327680),
    "qwen2.5-7b-a100": (80, 15.23, 57344),
    "opt-13b-a100": (80, 25.7, 819200),
    "opt-13b-h100": (80, 25.7, 819200),
    "llama-3-8b-h100": (80, 16.06, 131072),
    "llama-3-70b-4xh100": (320, 141.1, 327680),
}
# The paper's family. Lines as µs per token, ms, ms per drafter step; then memory as above (A100 of 40 GB).
_PAPER = {
    "slos-serve-opt-6.7b-a100": (((68.78, 24.80, 0.00125), (75.23, 3.03, 3.46)), (40, 13.3, 524288)),
    "slos-serve-opt-13b-2xa100": (((72.13, 31.73, 3.34),), (80, 25.7, 819200)),
    "slos-serve-opt-30b-4xa100": (((93.14, 37.88, 2.80),), (160, 59.9, 1376256)),
    "slos-serve-opt-13b-h100": (((41.77, 27.43, 0.0),), (80, 25.7, 819200)),
    "slos-serve-toolllama-7b-a100": (((65.72, 27.52, 0.0),), (40, 13.48, 524288)),
    "slos-serve-r1-distill-1.5b-a100": (((291.6, 18.04, 0.0),), (40, 3.55, 28672)),
}


def _measured(name: str) -> Builtin:
    (k1, b1, k2, b2), (kd, kp, drafter, overhead) = _MEASURED[name]
    terms = tuple(Term(k / 1e3, b / 1e3, drafter / 1e3) for k, b in ((k1, b1), (k2, b2)))
    model = TimeModel(name, terms, kd / 1e3, kp / 1e3, overhead / 1e3)
    return Builtin(model, *_MEASURED_MEMORY[name])


def _paper(name: str) -> Builtin:
    lines, memory = _PAPER[name]
    terms = tuple(Term(k / 1e6, b / 1e3, s / 1e3) for k, b, s in lines)
    return Builtin(TimeModel(name, terms), *memory)


BUILTINS = {name: _measured(name) for name in _MEASURED} | {name: _paper(name) for name in _PAPER}


def builtin(name: str) -> Builtin:
    """Return the built-in of this name. Raises UnknownTimeModel."""
    try:
        return BUILTINS[name]
    except KeyError:
        raise UnknownTimeModel(name, tuple(BUILTINS)) from None


def time_model(name: str) -> TimeModel:
    """Return the built-in time model of this name. Raises UnknownTimeModel."""
    return builtin(name).model


def kv_cache_tokens(name: str) -> int:
    """Return the tokens of KV cache on this built-in's hardware. Raises UnknownTimeModel."""
    return builtin(name).kv_cache_tokens
