"""What a policy is: admission for newcomers, and one iteration's batch from one view of the replica.

The sidecar asks `admit`, the engine asks `step`; in simulation one process asks both. Neither has state of
its own: what a policy wants to remember between steps (a sliding window, an annealer's best order) is a
value that it returns with the step and receives with the next one.
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
    """What one iteration does, in this order.

    preempt: running jobs whose KV is freed before it; they keep their generated tokens and wait.
    tokens: job id -> tokens computed, in the order given: a chunk of its pending tokens, 1 for a decode.
    drafts: job id -> tokens drafted and verified beside its one, for decodes that speculate.
    promote: best-effort jobs that are admitted from here on, because their SLOs can be kept after all.
    duration_s: predicted by the view's time model.
    stands_blocks: the same step is right again, and nothing is lost by not asking for it, as long as the jobs
        of its view are there and no others, every step since has brought one token of each, and so many
        blocks are free. None: ask for every step.
    """

    tokens: Mapping[RequestId, int] = field(default_factory=dict)
    preempt: tuple[RequestId, ...] = ()
    drafts: Mapping[RequestId, int] = field(default_factory=dict)
    duration_s: float = 0.0
    promote: tuple[RequestId, ...] = ()
    stands_blocks: int | None = None


@dataclass(frozen=True, slots=True)
class Knobs:
    """What a pool may set of its policy. Each policy says which of them it turns by.

    aging_s: best effort that has waited so long is served before newcomers.
    """

    aging_s: float = 30.0


class Policy(Protocol[Memory]):
    """A scheduler. See `penstock_core.policies` for those there are."""

    def start(self) -> Memory:
        """What to remember before the first step."""

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> Sequence[Verdict]:
        """One verdict for each newcomer, decided together. `view` holds only what was accepted before."""

    def step(self, view: ReplicaView, memory: Memory) -> tuple[Step, Memory]:
        """The next iteration, and what to remember of it. An empty step where there is nothing to do."""
