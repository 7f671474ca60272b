"""One request on its way through a fleet: what it asks, where it is, when its tokens came."""

from dataclasses import dataclass, field

from penstock_core.domain.judgement import judge
from penstock_core.domain.request import Request
from penstock_core.domain.slo import Tier
from penstock_core.routing.walk import Try, Walk

from penstock_simulator.arrival import Arrival
from penstock_simulator.simulation.fleet import Fleet
from penstock_simulator.simulation.outcome import Outcome, Verdict


@dataclass(slots=True, eq=False)
class Journey:
    """A request under way.

    request: as every replica is told of it; it arrived when it was sent.
    best_effort: by its tier, or by what its session was answered before.
    router: whose it is.
    tried: the replica that it is at, or that has refused it.
    verdict: what it was answered, once it was.
    """

    arrival: Arrival
    request: Request
    best_effort: bool
    router: int
    walk: Walk
    tried: Try | None = None
    verdict: Verdict | None = None
    token_times_s: list[float] = field(default_factory=list)

    @property
    def sent_as_best_effort(self) -> bool:
        """Whether the replica is asked for no promise."""
        return self.best_effort or (self.tried is not None and self.tried.backup)

    def take(self, tokens: int, now_s: float) -> None:
        """So many tokens have come out."""
        if tokens == 1:
            self.token_times_s.append(now_s)
        else:
            self.token_times_s += [now_s] * tokens

    def served(self) -> Outcome:
        """Its whole answer is out."""
        assert self.verdict is not None and self.tried is not None, "only what was accepted is served"
        request, times_s = self.request, self.token_times_s
        judged = judge(request.targets, request.arrival_s, times_s, self.arrival.thinking_tokens)
        return self.turned_away(self.verdict)._replace(
            output_tokens=len(times_s),
            replica=self.tried.replica,
            hops=self.tried.hop,
            ttft_s=judged.ttft_s,
            tpot_s=judged.tpot_s,
            e2e_s=judged.e2e_s,
            met=judged.met,
        )

    def turned_away(self, verdict: Verdict) -> Outcome:
        """Nobody serves it."""
        request, arrival = self.request, self.arrival
        return Outcome(
            id=request.id,
            tier=request.tier,
            arrival_s=request.arrival_s,
            prompt_tokens=request.prompt_tokens,
            output_tokens=0,
            verdict=verdict,
            replica="",
            hops=len(self.walk.refusals),
            ttft_s=None,
            tpot_s=None,
            e2e_s=None,
            met=False,
            session=arrival.session,
            stage=arrival.stage,
        )


def request_of(arrival: Arrival, tier: Tier, fleet: Fleet, now_s: float) -> Request:
    """The request as replicas are told of it, sent now."""
    room_tokens = fleet.longest_tokens - arrival.prompt_tokens
    return Request(
        id=arrival.id,
        tier=tier.name,
        arrival_s=now_s,
        prompt_tokens=arrival.prompt_tokens,
        max_output_tokens=max(min(fleet.max_output_tokens, room_tokens), arrival.output_tokens),
        targets=tier.slo.targets(fleet.model.prefill_seconds(arrival.prompt_tokens)),
        value=tier.value,
    )
