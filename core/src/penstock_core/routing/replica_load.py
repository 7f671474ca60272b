"""The input of routing orders: replicas by their last snapshots, and the request.

A snapshot is old when it is read. A router knows two facts about the time since the snapshot: how long it
was, so how much the replica has continued its work, and the requests that this router has sent to the replica
since then. `ReplicaLoad` includes both, so that an order needs no state and a stale snapshot does not send a
whole burst to one replica. It has the time of its snapshot, not its age, so it changes only if the replica's
load does, and a router keeps one for each replica.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from penstock_core.forecast.prompt_length import BYTES_PER_TOKEN
from penstock_core.forecast.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """A replica that takes requests.

    snapshot: the last one. snapshot_s: when it was received.
    sent, sent_tokens: requests sent since then that are not in it, and the sum of their prompt tokens that
        the replica was not expected to have cached.
    """

    name: str
    snapshot: Snapshot = field(default_factory=Snapshot)
    snapshot_s: float = 0.0
    sent: int = 0
    sent_tokens: int = 0

    @property
    def batch(self) -> int:
        """Return the number of requests at the replica."""
        return self.snapshot.running + self.snapshot.waiting + self.sent

    @property
    def prefill_tokens_left(self) -> int:
        """Return the prompt tokens before those of a new request."""
        return self.snapshot.prefill_tokens_left + self.sent_tokens

    def prefill_wait_s(self, now_s: float) -> float:
        """Return the seconds until a new request's prefill would begin."""
        return self._left_s(self.snapshot.prefill_wait_s, now_s)

    def work_s(self, now_s: float) -> float:
        """Return the accepted work as time of an engine with full batches."""
        return self._left_s(self.snapshot.work_s, now_s)

    def done_s(self, uncached_tokens: int, now_s: float) -> float:
        """Return the seconds until all accepted work and a new request's prefill would be done."""
        return self.work_s(now_s) + self.prefill_s(uncached_tokens)

    def holds(self, prompt_tokens: int) -> bool:
        """Return whether the forecast free memory holds this prompt.

        A replica whose memory is unknown is assumed to have enough.
        """
        snapshot = self.snapshot
        return (
            snapshot.kv_tokens_total == 0 or snapshot.kv_tokens_headroom - self.sent_tokens >= prompt_tokens
        )

    def first_token_s(self, uncached_tokens: int, now_s: float) -> float:
        """Return the seconds until a new request's first token, after all waiting prefills."""
        return self._left_s(self.snapshot.prefill_wait_s, now_s) + self.prefill_s(uncached_tokens)

    def prefill_s(self, uncached_tokens: int) -> float:
        """Return the seconds to compute these tokens of a prompt; infinite if decodes leave no time."""
        if uncached_tokens == 0:
            return 0.0
        tokens_s = self.snapshot.prefill_tokens_s
        return uncached_tokens / tokens_s if tokens_s > 0 else inf

    def _left_s(self, duration_s: float, now_s: float) -> float:
        """Return the rest of a duration in the snapshot, plus the prefills sent since."""
        left_s = duration_s - (now_s - self.snapshot_s)
        return (left_s if left_s > 0 else 0.0) + self.prefill_s(self.sent_tokens)


NOTHING_CACHED: Mapping[str, int] = MappingProxyType({})


class RoutingRequest(NamedTuple):
    """The properties of a request that orders use.

    number: one more than the previous request's at this router. Round-robin starts at it.
    ttft_s, tpot_s: the rest of its targets; infinite if it has none or they are unknown.
    now_s: when it is routed, on the clock of `ReplicaLoad.snapshot_s`.
    cached_tokens: tokens of its prompt that a replica is expected to have cached, by the replica's name.
        Replicas that are not in it are expected to have none.
    affinity: key that it shares with requests that are likely to have the same prefix, such as its session.
        Orders by prefix send requests with the same key to the same replicas. None: no such key.
    """

    tier: str
    body_bytes: int
    number: int
    ttft_s: float = inf
    tpot_s: float = inf
    now_s: float = 0.0
    cached_tokens: Mapping[str, int] = NOTHING_CACHED
    affinity: bytes | None = None

    @property
    def prompt_tokens(self) -> int:
        """Return the estimated tokens of its prompt."""
        return estimated_tokens(self.body_bytes)

    def uncached_tokens(self, replica: str) -> int:
        """Return the tokens of its prompt that this replica is expected to compute, at least the last one."""
        return max(self.prompt_tokens - self.cached_at(replica), 1)

    def cached_at(self, replica: str) -> int:
        """Return the tokens of its prompt that this replica is expected to have cached, at least 0."""
        return max(self.cached_tokens.get(replica, 0), 0)


def estimated_tokens(body_bytes: int) -> int:
    """Return the estimated tokens of a request's body, because routers have no tokenizer."""
    return max(int(body_bytes / BYTES_PER_TOKEN), 1)


Order = Callable[[Sequence[ReplicaLoad], RoutingRequest], tuple[str, ...]]
"""Maps the replicas that take requests to their names in the order in which they are tried. Stateless."""
