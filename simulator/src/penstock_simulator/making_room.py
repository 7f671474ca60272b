"""Who gives way when an iteration's growth does not fit the KV cache.

As in vLLM the job started last is preempted, and the next, until the rest fits. Two kinds go before it: this
iteration's newcomers, who simply stay waiting, and best effort, which holds its memory on sufferance.
"""

from collections.abc import Sequence

from penstock_core.domain.replica_view import KvCache

from penstock_simulator.iteration import Iteration, Seat


def growth_blocks(seat: Seat, kv_tokens: int, kv: KvCache) -> int:
    """Blocks that a request lacks to hold `kv_tokens`."""
    return max(kv.blocks_for(kv_tokens) - seat.blocks, 0)


def make_room(wanted: Iteration, running: Sequence[Seat], kv: KvCache) -> tuple[Iteration, list[Seat]]:
    """The part of an iteration that fits, and the running requests to preempt for it.

    running: all that hold blocks, in the order they were started.
    """
    at_border = [seat for seat in wanted.decodes if seat.job.computed_tokens == seat.blocks * kv.block_tokens]
    owed = {id(g.seat): growth_blocks(g.seat, g.kv_tokens, kv) for g in wanted.grants}
    owed |= {id(seat): 1 for seat in at_border}
    missing_blocks = sum(owed.values()) - kv.free_blocks
    out: dict[int, Seat] = {}
    for seat in _by_patience(wanted, running) if missing_blocks > 0 else ():
        out[id(seat)] = seat
        missing_blocks -= seat.blocks + owed.get(id(seat), 0)
        if missing_blocks <= 0:
            break
    return _without(wanted, out), [seat for seat in out.values() if seat.blocks]


def _by_patience(wanted: Iteration, running: Sequence[Seat]) -> list[Seat]:
    """Who gives way, first of all first."""
    newcomers = [g.seat for g in reversed(wanted.grants) if g.seat.blocks == 0]
    return [*newcomers, *sorted(reversed(running), key=lambda seat: not seat.job.best_effort)]


def _without(wanted: Iteration, out: dict[int, Seat]) -> Iteration:
    if not out:
        return wanted
    victims = [seat.job.request.id for seat in out.values() if seat.blocks]
    return Iteration(
        [seat for seat in wanted.decodes if id(seat) not in out],
        [grant for grant in wanted.grants if id(grant.seat) not in out],
        (*wanted.preempted, *victims),
    )
