"""The state of one request in a simulation: its arrival, its replica, and the times of its tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock_core.domain.judgement import judge
from penstock_core.domain.request import Request
from penstock_core.domain.slo import Tier
from penstock_core.routing.attempts import Attempts, Try

from penstock_simulator.arrival import Arrival
from penstock_simulator.prefix_cache.block_keys import BlockKey, recorded_keys
from penstock_simulator.simulation.fleet import Fleet
from penstock_simulator.simulation.outcome import FirstVerdict, SimulatedOutcome


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """A request in progress.

    request: as replicas receive it; its arrival is when it was sent.
    best_effort: whether its tier has no SLO, or an earlier request of its session was not admitted.
    router: index of its router.
    keys: keys of its prompt's blocks, for prefix caches; empty if unknown.
    tried: the last attempt. verdict: how it was accepted; None until a replica accepts it.
    cached_tokens: prompt tokens found in the prefix cache when it was first started; None before.
    """

    arrival: Arrival
    request: Request
    best_effort: bool
    router: int
    attempts: Attempts
    keys: Sequence[BlockKey] = ()
    tried: Try | None = None
    verdict: FirstVerdict | None = None
    token_times_s: list[float] = field(default_factory=list)
    cached_tokens: int | None = None

    @property
    def sent_as_best_effort(self) -> bool:
        """Whether it is sent to the replica as best effort."""
        return self.best_effort or (self.tried is not None and self.tried.backup)

    def take(self, tokens: int, now_s: float) -> None:
        """Record tokens generated at `now_s`."""
        if tokens == 1:
            self.token_times_s.append(now_s)
        else:
            self.token_times_s += [now_s] * tokens

    def started(self, cached_tokens: int) -> None:
        """Record the cached tokens with which it was started; only the first start counts."""
        if self.cached_tokens is None:
            self.cached_tokens = cached_tokens

    def served_outcome(self) -> SimulatedOutcome:
        """Return the outcome after its last token."""
        assert self.verdict is not None and self.tried is not None, "it was served by a replica"
        request, times_s = self.request, self.token_times_s
        judged = judge(request.targets, request.arrival_s, times_s, self.arrival.thinking_tokens)
        return self.unserved_outcome(self.verdict)._replace(
            output_tokens=len(times_s),
            replica=self.tried.replica,
            hops=self.tried.hop,
            ttft_s=judged.ttft_s,
            tpot_s=judged.tpot_s,
            e2e_s=judged.e2e_s,
            met=judged.met,
            cached_tokens=self.cached_tokens or 0,
        )

    def unserved_outcome(self, verdict: FirstVerdict) -> SimulatedOutcome:
        """Return the outcome of a request that no replica serves."""
        request, arrival = self.request, self.arrival
        return SimulatedOutcome(
            id=request.id,
            tier=request.tier,
            arrival_s=request.arrival_s,
            prompt_tokens=request.prompt_tokens,
            output_tokens=0,
            verdict=verdict,
            replica="",
            hops=len(self.attempts.rejections),
            ttft_s=None,
            tpot_s=None,
            e2e_s=None,
            met=False,
            session=arrival.session,
            stage=arrival.stage,
        )


def request_of(arrival: Arrival, tier: Tier, fleet: Fleet, now_s: float) -> Request:
    """Return the request as replicas receive it, sent at `now_s`."""
    left_tokens = fleet.longest_tokens - arrival.prompt_tokens
    return Request(
        id=arrival.id,
        tier=tier.name,
        arrival_s=now_s,
        prompt_tokens=arrival.prompt_tokens,
        max_output_tokens=max(min(fleet.max_output_tokens, left_tokens), arrival.output_tokens),
        targets=tier.slo.targets(fleet.model.prefill_seconds(arrival.prompt_tokens)),
        value=tier.value,
    )


def prompt_keys(arrival: Arrival, fleet: Fleet) -> Sequence[BlockKey]:
    """Return the keys of the prompt's full blocks, as far as they are known; none without prefix caches."""
    if not fleet.prefix_caching or not arrival.hash_ids:
        return ()
    return recorded_keys(
        arrival.hash_ids, arrival.hash_id_tokens, arrival.prompt_tokens, fleet.block_tokens, arrival.salt
    )
