"""The settings that are tried for a policy in a scenario: every baseline has to run at its best.

A policy that chooses its own settings has one. `NAME-spec` is the policy NAME with a fixed number of draft
tokens for every decode, as vLLM speculates; without `-spec` a baseline does not speculate, as in the papers.

`distserve` is not a policy of a replica: each "replica" is a group of GPUs split by phase, in the best of
three ratios, and a rate per replica is a rate per GPU.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeVar

from penstock_core.policies import UnknownPolicy
from penstock_simulator.policies import NAMES
from penstock_simulator.scenarios import Scenario
from penstock_simulator.simulation.disaggregated.distserve import RATIOS, Ratio

ORACLE = "oracle"
"""Not a policy: the upper bound on all policies."""

DISTSERVE = "distserve"
"""Disaggregated serving: prefill and decode on separate GPUs."""

WITHOUT_PREFIXES = frozenset({ORACLE, DISTSERVE, "vllm-real"})
"""Policies that do not support prefix caches: they compute whole prompts, or need the prompts' tokens."""

SPECULATING = "-spec"
ALL_BUDGETS_TOKENS = (128, 256, 512, 1024, 2048, 4096, 8192)
"""Token budgets tried for policies that depend strongly on the budget."""

SOME_BUDGETS_TOKENS = (512, 2048, 8192)
"""Token budgets tried for policies that depend little on the budget."""

FIXED_DRAFTS = (2, 3, 4)
"""Draft tokens of `NAME-spec`."""

BUDGETS_TOKENS: Mapping[str, tuple[int, ...]] = {
    "vllm": ALL_BUDGETS_TOKENS,
    "vllm-real": ALL_BUDGETS_TOKENS,
    "sarathi": ALL_BUDGETS_TOKENS,
    "vllm-legacy": SOME_BUDGETS_TOKENS,
    "sjf": SOME_BUDGETS_TOKENS,
    "fastserve": SOME_BUDGETS_TOKENS,
    "orca": SOME_BUDGETS_TOKENS,
    "sola": SOME_BUDGETS_TOKENS,
    "accelgen": SOME_BUDGETS_TOKENS,
    "annealing": SOME_BUDGETS_TOKENS,
    DISTSERVE: SOME_BUDGETS_TOKENS,
}
"""Token budgets of a step that are tried, by policy. All others run with the engine's own budget."""

SLOTS: Mapping[str, tuple[int, ...]] = {"orca": (8, 16, 32, 64)}
"""Slots that are tried, by policy. All others run with the engine's own number."""

Value = TypeVar("Value")

CHOOSE_DRAFTS = frozenset({"slos-serve", ORACLE})
"""Policies that choose the speculation length of each decode. They always use the engine's drafter."""


@dataclass(frozen=True, slots=True)
class PolicySetting:
    """The tuned settings of a policy.

    batch_tokens: token budget of a step. drafts: most draft tokens of a decode in a step; 0 for none.
    ratio: prefill GPUs to decode GPUs, for disaggregated serving. slots: None for the engine's own number.
    """

    batch_tokens: int
    drafts: int = 0
    ratio: Ratio | None = None
    slots: int | None = None

    def __str__(self) -> str:
        drafted = f", {self.drafts} drafts" if self.drafts else ""
        split = f", GPUs {self.ratio}" if self.ratio else ""
        slots = f", {self.slots} slots" if self.slots else ""
        return f"{self.batch_tokens} tokens a step{drafted}{split}{slots}"


@dataclass(frozen=True, slots=True)
class Grid:
    """The settings to try: one axis after the other, beginning at `start`.

    budgets_tokens, drafts, ratios, slots: the axes' values.
    """

    start: PolicySetting
    budgets_tokens: tuple[int, ...]
    drafts: tuple[int, ...]
    ratios: tuple[Ratio | None, ...] = (None,)
    slots: tuple[int | None, ...] = (None,)

    def settings(self) -> list[PolicySetting]:
        """Return all settings."""
        axes = product(self.budgets_tokens, self.drafts, self.ratios, self.slots)
        return [PolicySetting(*values) for values in axes]

    def lines(self, current: PolicySetting) -> Iterator[list[PolicySetting]]:
        """Yield the settings that differ from `current` along one axis, for each axis."""
        yield [
            replace(current, batch_tokens=tokens)
            for tokens in self.budgets_tokens
            if tokens != current.batch_tokens
        ]
        yield [replace(current, drafts=drafts) for drafts in self.drafts if drafts != current.drafts]
        yield [replace(current, ratio=ratio) for ratio in self.ratios if ratio != current.ratio]
        yield [replace(current, slots=slots) for slots in self.slots if slots != current.slots]

    def has(self, setting: PolicySetting) -> bool:
        """Return whether the setting is in the grid."""
        return (
            setting.batch_tokens in self.budgets_tokens
            and setting.drafts in self.drafts
            and setting.ratio in self.ratios
            and setting.slots in self.slots
        )

    @property
    def single(self) -> bool:
        """Whether there is only one setting."""
        return all(len(axis) == 1 for axis in (self.budgets_tokens, self.drafts, self.ratios, self.slots))


def base_policy(policy: str) -> str:
    """Return the policy's name without `-spec`. Raises UnknownPolicy."""
    base = policy.removesuffix(SPECULATING)
    known = (*NAMES, DISTSERVE, ORACLE)
    if base not in known or (base in CHOOSE_DRAFTS and base != policy):
        raise UnknownPolicy(policy, (*known, *(f"{name}{SPECULATING}" for name in ("vllm", "sarathi"))))
    return base


def grid_of(policy: str, scenario: Scenario) -> Grid:
    """Return the settings to try for this policy in this scenario. Raises UnknownPolicy."""
    base, most = base_policy(policy), scenario.limits.batch_tokens
    budgets_tokens = BUDGETS_TOKENS.get(base, (most,))
    drafts = _drafts(base, policy, scenario)
    ratios = RATIOS if base == DISTSERVE else (None,)
    slots = SLOTS.get(base, (None,))
    start = PolicySetting(_middle(budgets_tokens), _middle(drafts), ratios[-1], _middle(slots))
    return Grid(start, budgets_tokens, drafts, ratios, slots)


def laps_of(policy: str, replicas: int) -> int:
    """Return how often a fleet repeats the scenario, so that load lasts as long as for one GPU."""
    gpus = max(ratio.gpus for ratio in RATIOS) if base_policy(policy) == DISTSERVE else 1
    return replicas * gpus


def _drafts(base: str, policy: str, scenario: Scenario) -> tuple[int, ...]:
    drafter = scenario.speculation
    if drafter is None:
        return (0,)
    if base in CHOOSE_DRAFTS:
        return (drafter.max_tokens,)
    return FIXED_DRAFTS if base != policy else (0,)


def _middle(values: tuple[Value, ...]) -> Value:
    return values[len(values) // 2]
