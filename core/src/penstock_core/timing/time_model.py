"""Duration of an iteration, and the tokens that fit into a duration [SLOs-Serve, §3.1.1].

The planner's estimate of its engine, fitted to measured iterations:

    T = scale · kind_scale · ( max over terms l of (k[l]·tokens + s[l]·spec_steps + b[l])
                               + kd·context_tokens + kp·prefill_work + c0 )

The terms are the roofline: one for iterations bound by compute, one for those bound by loading weights. The
paper has only these. Long contexts need the two attention terms [SOLA, eq. 3–4]: a decode reads its whole
context, and a prefill chunk attends to everything before it. `scale` is the online correction; `kind_scale`
is its part for the kind of iteration: of decodes alone, of prefill alone, of both (`correction`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from math import floor, inf, isfinite
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

SHORTEST_CHUNK_TOKENS = 128
"""Attention kernels take as long for a shorter chunk as for one of this length."""

UNBOUNDED_TOKENS = 1 << 30
"""More tokens than any batch has, returned for an infinite duration."""

LONE_CHUNK_STRETCH = 2.0
"""Duration of a batch of one chunk if even one token exceeds its limit, as a multiple of one token's."""


class BatchWork(NamedTuple):
    """The work of an iteration, as far as its duration depends on it.

    tokens: all tokens in the batch, of decodes and prefill chunks.
    context_tokens: tokens of context read by its decodes, summed.
    prefill_work: token pairs attended to by its prefill chunks, summed (`chunk_work`).
    spec_steps: most drafter steps of any decode in it; 0 without speculation.
    """

    tokens: int
    context_tokens: int = 0
    prefill_work: float = 0.0
    spec_steps: int = 0


def chunk_work(chunk_tokens: int, computed_tokens: int) -> float:
    """Return the token pairs that a prefill chunk attends to, after `computed_tokens` before it.

    Causal attention skips later tokens, so a chunk attends to half of itself and all before it. Measured
    kernels agree: flash attention of one Llama-3-8B layer (32/8 heads, A100, vLLM 0.14, aiconfigurator) takes
    3.120 ms for a prompt of 8,192 tokens and 12.505 ms for 16,384. Over 32 layers that is 2.98e-6 ms per
    *half* square in both, the fitted slope (3.09e-6); per full square it would be half of that.
    """
    return max(chunk_tokens, SHORTEST_CHUNK_TOKENS) * (computed_tokens + chunk_tokens / 2)


def chunk_works(chunk_tokens: NDArray[Any], computed_tokens: NDArray[Any]) -> NDArray[np.float64]:
    """Return `chunk_work` of many chunks."""
    works: NDArray[np.float64] = np.maximum(chunk_tokens, SHORTEST_CHUNK_TOKENS)
    return works * (computed_tokens + chunk_tokens / 2)


class Term(NamedTuple):
    """A line of the roofline: seconds per token, fixed, and per drafter step."""

    token_s: float
    fixed_s: float
    spec_step_s: float = 0.0


ONE_TOKEN = BatchWork(1)
"""The shortest iteration."""

ONE_DECODE = BatchWork(1, context_tokens=1)
"""The shortest iteration of decodes: no TPOT target below its duration can be met."""


class Coefficients(Protocol):
    """Coefficients of the formula: a `TimeModel`, or its numbers in compiled code.

    terms: `Term`s, or a table with one row per term and a `Term`'s fields as columns.
    """

    @property
    def terms(self) -> Any: ...  # noqa: D102
    @property
    def context_token_s(self) -> float: ...  # noqa: D102
    @property
    def prefill_work_s(self) -> float: ...  # noqa: D102
    @property
    def overhead_s(self) -> float: ...  # noqa: D102
    @property
    def scale(self) -> float: ...  # noqa: D102
    @property
    def decode_scale(self) -> float: ...  # noqa: D102
    @property
    def prefill_scale(self) -> float: ...  # noqa: D102
    @property
    def mixed_scale(self) -> float: ...  # noqa: D102


def line_seconds(term: Any, tokens: Any, spec_steps: Any) -> Any:
    """Return the seconds by one line of the roofline, of a batch or arrays, without attention and scale."""
    return term[0] * tokens + term[2] * spec_steps + term[1]


def kind_scale(model: Coefficients, context_tokens: int, prefill_work: float) -> float:
    """Return the scale of an iteration's kind: decodes alone read contexts, prefill alone reads none.

    Without branches, which keep numba from removing the reference counts of `terms` around them: a batch plan
    takes 1.6 times as long with them.
    """
    decoding = model.decode_scale + (prefill_work > 0.0) * (model.mixed_scale - model.decode_scale)
    return model.prefill_scale + (context_tokens > 0) * (decoding - model.prefill_scale)


def iteration_seconds(model: Coefficients, work: BatchWork) -> float:
    """Return the predicted duration of an iteration; 0 for an empty one.

    Plain enough to be compiled: inner loops of planners call this function.
    """
    if work.tokens == 0:
        return 0.0
    roofline_s = -inf
    for term in model.terms:
        roofline_s = max(roofline_s, line_seconds(term, work.tokens, work.spec_steps))
    attention_s = model.context_token_s * work.context_tokens + model.prefill_work_s * work.prefill_work
    scale = model.scale * kind_scale(model, work.context_tokens, work.prefill_work)
    return scale * (roofline_s + attention_s + model.overhead_s)


def with_chunk(work: BatchWork, chunk_tokens: int, computed_tokens: int) -> BatchWork:
    """Return the work with one more prefill chunk, of a prompt with `computed_tokens` before it."""
    return BatchWork(
        work.tokens + chunk_tokens,
        work.context_tokens,
        work.prefill_work + chunk_work(chunk_tokens, computed_tokens),
        work.spec_steps,
    )


def largest_chunk(
    model: Coefficients, beside: BatchWork, most_tokens: int, computed_tokens: int, limit_s: float
) -> int:
    """Return the most tokens of a prompt, up to `most_tokens`, with which this batch ends within `limit_s`.

    An empty batch gets a chunk even if one token takes longer than that. The next step would find the same
    prompt and the same limit, so it would never be computed.

    computed_tokens: tokens of the prompt before this chunk.
    """
    if beside.tokens == 0:
        one_s = iteration_seconds(model, with_chunk(beside, 1, computed_tokens))
        if one_s > limit_s:
            limit_s = LONE_CHUNK_STRETCH * one_s
    if (
        most_tokens <= 0
        or iteration_seconds(model, with_chunk(beside, most_tokens, computed_tokens)) <= limit_s
    ):
        return max(most_tokens, 0)
    fitting, too_many = 0, most_tokens
    while too_many - fitting > 1:
        middle = (fitting + too_many) // 2
        if iteration_seconds(model, with_chunk(beside, middle, computed_tokens)) <= limit_s:
            fitting = middle
        else:
            too_many = middle
    return fitting


@dataclass(frozen=True, slots=True)
class TimeModel:
    """Seconds of an iteration from its work. All coefficients are in seconds.

    slow_chance, slow_excess: share of iterations that are slow, and how much longer those take, relative to
        their predicted duration (`step_tail`).
    decode_scale, prefill_scale, mixed_scale: factors of iterations of decodes alone, of prefill alone, and of
        both (`kind_correction`). Work without context counts as prefill.
    deadline_margin: safety margin of batches that end at a deadline, relative to their duration
        (`correction`).
    admission_margin: part of `scale` that is admission's margin, not the engine's speed (`admission_margin`).
    """

    name: str
    terms: tuple[Term, ...]
    context_token_s: float = 0.0
    prefill_work_s: float = 0.0
    overhead_s: float = 0.0
    scale: float = 1.0
    slow_chance: float = 0.0
    slow_excess: float = 0.0
    decode_scale: float = 1.0
    prefill_scale: float = 1.0
    mixed_scale: float = 1.0
    deadline_margin: float = 0.0
    admission_margin: float = 1.0

    def seconds(self, work: BatchWork) -> float:
        """Return the predicted duration of an iteration; 0 for an empty one."""
        return iteration_seconds(self, work)

    def tokens_within(
        self, time_s: float, context_tokens: int = 0, prefill_work: float = 0.0, spec_steps: int = 0
    ) -> int:
        """Return the most tokens whose iteration takes at most `time_s`, beside this attention (`time2bs`).

        The inverse of `seconds`, to a billionth of a token, for an iteration with prefill. At most
        `UNBOUNDED_TOKENS`, also for an infinite time.
        """
        attention_s = self.context_token_s * context_tokens + self.prefill_work_s * prefill_work
        scale = self.scale * (self.mixed_scale if context_tokens else self.prefill_scale)
        left_s = time_s / scale - attention_s - self.overhead_s
        fits = min([_tokens_under(t, left_s - t.spec_step_s * spec_steps) for t in self.terms])
        return floor(min(max(fits + 1e-9, 0.0), UNBOUNDED_TOKENS))

    def prefill_seconds(self, prompt_tokens: int, computed_tokens: int = 0) -> float:
        """Return one prompt's prefill time on an idle replica, in one iteration: a slowdown's unit.

        computed_tokens: computed before, to which the others attend.
        """
        return self.seconds(BatchWork(prompt_tokens, 0, chunk_work(prompt_tokens, computed_tokens)))


def _tokens_under(term: Term, time_s: float) -> float:
    """Return the tokens at which a line reaches a time: negative if above it, infinite if flat."""
    if term.token_s > 0:
        return (time_s - term.fixed_s) / term.token_s
    return inf if term.fixed_s <= time_s else -1.0


COEFFICIENTS = (
    "context_token_s",
    "prefill_work_s",
    "overhead_s",
    "scale",
    "slow_chance",
    "slow_excess",
    "decode_scale",
    "prefill_scale",
    "mixed_scale",
    "deadline_margin",
)
TERM_FIELDS = ("token_s", "fixed_s", "spec_step_s")


def to_json(model: TimeModel) -> dict[str, Any]:
    """Return the model as plain values, for files and messages."""
    values = {field.name: getattr(model, field.name) for field in fields(model)}
    return values | {"terms": [term._asdict() for term in model.terms]}


def from_json(values: Mapping[str, Any]) -> TimeModel:
    """Return the model that `to_json` wrote, in this version or another: unknown fields are ignored.

    Raises ValueError if a field is missing, or its value would make durations invalid.
    """
    try:
        terms = tuple(Term(**_numbers(term, TERM_FIELDS)) for term in values["terms"])
        model = TimeModel(str(values["name"]), terms, **_numbers(values, COEFFICIENTS))
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"a field is missing or of a wrong type: {error}") from None
    if not terms or not model.prefill_seconds(1) * model.decode_scale * model.mixed_scale > 0:
        raise ValueError("an iteration would take no time")
    return model


def _numbers(values: Mapping[str, Any], names: Collection[str]) -> dict[str, float]:
    """Return the fields of these names that are present. Raises ValueError if one is no valid duration."""
    found = {name: values[name] for name in names if name in values}
    for name, value in found.items():
        if not isinstance(value, int | float) or not (
            0 <= value < inf or (name == "fixed_s" and isfinite(value))
        ):
            raise ValueError(f"a coefficient is negative or not a number: {name}")
    return found
