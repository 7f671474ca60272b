"""What a router knows when it decides whom to ask: replicas by their last snapshots, and the request.

A snapshot is old when it is read. Two things are known of the time since: how long it was, in which the
replica went on with its work, and what this router itself has sent there that the snapshot cannot know yet.
`ReplicaLoad` puts both into what it answers, so that an order needs no memory and a burst does not follow
one stale number to one replica.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from penstock_core.forecast.prompt_length import BYTES_PER_TOKEN
from penstock_core.forecast.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """A replica that takes work.

    snapshot: the last one. age_s: how long ago it came.
    sent, sent_tokens: requests that were sent there since and are not in it, and their prompts together.
    """

    name: str
    snapshot: Snapshot = field(default_factory=Snapshot)
    age_s: float = 0.0
    sent: int = 0
    sent_tokens: int = 0

    @property
    def batch(self) -> int:
        """Requests there."""
        return self.snapshot.running + self.snapshot.waiting + self.sent

    @property
    def prefill_tokens_left(self) -> int:
        """Prompt tokens that are before a newcomer's."""
        return self.snapshot.prefill_tokens_left + self.sent_tokens

    @property
    def prefill_wait_s(self) -> float:
        """Until a newcomer's prefill would begin."""
        return max(self.snapshot.prefill_wait_s - self.age_s, 0.0) + self.prefill_s(self.sent_tokens)

    @property
    def work_s(self) -> float:
        """What it has accepted, as time of a full engine."""
        return max(self.snapshot.work_s - self.age_s, 0.0) + self.prefill_s(self.sent_tokens)

    def holds(self, prompt_tokens: int) -> bool:
        """Whether memory that nobody there will need has room for this prompt.

        A replica that has not told yet how much it has, or cannot, is taken to have enough.
        """
        said = self.snapshot
        return said.kv_tokens_total == 0 or said.kv_tokens_headroom - self.sent_tokens >= prompt_tokens

    def first_token_s(self, prompt_tokens: int) -> float:
        """Until the first token of a newcomer with this prompt, behind all that waits there."""
        return self.prefill_wait_s + self.prefill_s(prompt_tokens)

    def prefill_s(self, prompt_tokens: int) -> float:
        """How long this prompt takes there once it has begun; infinite where decodes leave nothing."""
        if prompt_tokens == 0:
            return 0.0
        tokens_s = self.snapshot.prefill_tokens_s
        return prompt_tokens / tokens_s if tokens_s > 0 else inf


class Asked(NamedTuple):
    """What an order may know of the request.

    turn: how many requests this router has sent on their way before it.
    ttft_s, tpot_s: what is left of its budgets; infinite where it has none or nobody can tell.
    """

    tier: str
    body_bytes: int
    turn: int
    ttft_s: float = inf
    tpot_s: float = inf

    @property
    def prompt_tokens(self) -> int:
        """Of its prompt, about."""
        return tokens_about(self.body_bytes)


def tokens_about(body_bytes: int) -> int:
    """Tokens of the prompt in a request's body: about so many, for a router does not count them."""
    return max(int(body_bytes / BYTES_PER_TOKEN), 1)


Order = Callable[[Sequence[ReplicaLoad], Asked], tuple[str, ...]]
"""From the replicas that take work, to the names in which they are asked. Has no state of its own."""
