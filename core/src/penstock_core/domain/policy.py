"""The policy interface: admits new requests, and forms the batch of one iteration.

The sidecar calls `admit`, the engine calls `step`; a simulation calls both in one process. Policies are
stateless: state between steps (a sliding window, an annealer's best order) is a value that a step returns and
the next step receives.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, RequestId
from penstock_core.domain.verdict import Verdict

Memory = TypeVar("Memory")


@dataclass(frozen=True, slots=True)
class Step:
    """Actions of one iteration, in this order.

    preempt: running jobs whose KV is freed first; they keep their generated tokens and wait.
    tokens: job id -> tokens computed, in this order: a chunk of its pending tokens, 1 for a decode.
    drafts: job id -> draft tokens that are verified in addition, for decodes with speculation.
    promote: best-effort jobs that are admitted from now on, because their SLOs can still be met.
    duration_s: predicted by the view's time model.
    repeatable_blocks: the step can be repeated without calling the policy while the view's jobs are the only
        ones, every step generates one token of each, and this many blocks are free. None: call for every
        step.
    """

    tokens: Mapping[RequestId, int] = field(default_factory=dict)
    preempt: tuple[RequestId, ...] = ()
    drafts: Mapping[RequestId, int] = field(default_factory=dict)
    duration_s: float = 0.0
    promote: tuple[RequestId, ...] = ()
    repeatable_blocks: int | None = None


@dataclass(frozen=True, slots=True)
class Knobs:
    """Parameters of a policy that a pool can set. Each policy documents those that it uses.

    aging_s: the best-effort job that has waited longest is protected after this time (`best_effort`).
    """

    aging_s: float = 30.0


class Policy(Protocol[Memory]):
    """A scheduler. The implementations are in `penstock_core.policies`."""

    def start(self) -> Memory:
        """Return the memory before the first step."""

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> Sequence[Verdict]:
        """Return one verdict per candidate, decided together.

        `view` has only requests that are already accepted.
        """

    def step(self, view: ReplicaView, memory: Memory) -> tuple[Step, Memory]:
        """Return the next iteration and the new memory. The step is empty if there is no work."""
