"""The KV blocks of the requests of an engine with a prefix cache.

What policies see of it: a waiting request's cached tokens count as computed, and how many of their blocks
no request holds (`Job.unheld_blocks`). It is looked up for every view, as vLLM does in every step, but only
for the first requests in the queue: no others can start in the next step.

A request that was admitted because of its cached prefix holds those blocks from its admission on (`pin`), so
they cannot be evicted before its prefill. Pins are released if running requests need the blocks, which
happens only if predicted lengths were wrong: then a late first token is better than a preemption.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock_core.domain.request import Job, RequestId, holding_cached, with_cached_prefix
from penstock_core.domain.served_prompts import CachedBlocks, ServedPrompts
from penstock_core.domain.shared_prefixes import SharedPrefixes, leading_in_common, shared_prefixes

from penstock_simulator.engine.iteration import ActiveRequest
from penstock_simulator.prefix_cache.block_keys import BlockKey
from penstock_simulator.prefix_cache.block_pool import Block
from penstock_simulator.prefix_cache.prefix_cache import CachedPrefix, PrefixCache, RequestBlocks

LOOKUPS_PER_VIEW = 16
"""Waiting requests whose cached prefix is looked up for a view, in order of arrival. A look-up of 100,000
tokens takes a third of a millisecond; the others are planned without a cached prefix."""


class Sharing(NamedTuple):
    """Blocks that several requests hold.

    blocks: number of such blocks of each request that has any. prefixes: which requests share a prefix.
    """

    blocks: Mapping[RequestId, int]
    prefixes: SharedPrefixes


class CachedKv:
    """The prefix cache of one engine, and the blocks of its requests.

    queried_tokens, hit_tokens: totals of all requests that were started, each counted once, as in vLLM.
    served: the last prompts that were started. resets: number of times that the cache was emptied.
    """

    def __init__(self, total_blocks: int, block_tokens: int) -> None:
        self.cache = PrefixCache(total_blocks, block_tokens)
        self.queried_tokens = self.hit_tokens = self.resets = 0
        self.served = ServedPrompts(self._cached_blocks, block_tokens)
        self._shared = Sharing({}, SharedPrefixes([], []))
        self._shared_as_of = 0

    @property
    def free_blocks(self) -> int:
        """Blocks that no request holds."""
        return self.cache.pool.free_blocks

    def blocks_of(self, job: Job, keys: Sequence[BlockKey]) -> RequestBlocks:
        """Return the empty block list of a request whose prompt has these keys."""
        return RequestBlocks(job.request.id, keys)

    def cached_tokens(self, keys: Sequence[BlockKey], tokens: int) -> int:
        """Return the number of tokens that are cached now for a new request with these keys."""
        return self.cache.cached_tokens(keys, tokens)

    def candidate(self, job: Job, keys: Sequence[BlockKey]) -> Job:
        """Return a new request as a policy should see it now."""
        return _with_prefix(job, self.cache.lookup(self.blocks_of(job, keys), _sought_tokens(job)))

    def jobs_in_view(self, waiting: Iterable[ActiveRequest]) -> list[Job]:
        """Return waiting requests as a policy should see them now."""
        jobs, lookups = [], 0
        for entry in waiting:
            if entry.job.unheld_blocks is None and lookups < LOOKUPS_PER_VIEW:
                lookups += 1
                jobs.append(self.lookup(entry))
            else:
                jobs.append(entry.job)
        return jobs

    def lookup(self, entry: ActiveRequest) -> Job:
        """Return the job of a waiting request that holds no blocks, with its cached prefix."""
        assert entry.kv is not None, "every request of an engine with a prefix cache has this"
        return _with_prefix(entry.job, self.cache.lookup(entry.kv, _sought_tokens(entry.job)))

    def sharing(self, requests: Iterable[ActiveRequest]) -> Sharing:
        """Return which of these requests hold the same blocks."""
        changes = self.cache.pool.sharing_changes
        if changes != self._shared_as_of:
            held = {entry.job.request.id: entry.kv.blocks for entry in requests if entry.kv is not None}
            counts = {job_id: self.cache.pool.shared_among(blocks) for job_id, blocks in held.items()}
            shared = {job_id: count for job_id, count in counts.items() if count}
            self._shared = Sharing(shared, shared_prefixes({job_id: held[job_id] for job_id in shared}))
            self._shared_as_of = changes
        return self._shared

    def pin(self, entry: ActiveRequest) -> None:
        """Let a waiting request hold the blocks of its cached prefix."""
        assert entry.kv is not None, "every request of an engine with a prefix cache has this"
        cached = self.cache.start(entry.kv, _sought_tokens(entry.job))
        entry.job = with_cached_prefix(entry.job, cached, 0)

    def unpin(self, entry: ActiveRequest) -> None:
        """Release the blocks that a waiting request holds."""
        assert entry.kv is not None, "every request of an engine with a prefix cache has this"
        self.cache.release(entry.kv)
        entry.job = entry.job._replace(computed_tokens=0, unheld_blocks=None, prefix_of=None)

    def started(self, entry: ActiveRequest) -> int:
        """Record that a request with its pinned prefix begins its prefill. Returns the cached tokens."""
        assert entry.kv is not None, "every request of an engine with a prefix cache has this"
        cached, request = entry.job.computed_tokens, entry.job.request
        self.served.started(request.id, request.prompt_tokens, entry.kv.keys, entry.kv.blocks)
        if not entry.preempted:
            self.queried_tokens += _size_tokens(entry.job)
            self.hit_tokens += cached
        entry.job = holding_cached(entry.job)
        entry.blocks = cached // self.cache.block_tokens
        return cached

    def grow(self, entry: ActiveRequest, kv_tokens: int) -> None:
        """Give a request blocks for `kv_tokens` entries, and cache those that it completes."""
        self._grow(entry, kv_tokens, _size_tokens(entry.job))

    def grow_decode(self, entry: ActiveRequest, kv_tokens: int) -> None:
        """Give a decode without draft tokens the block of entry `kv_tokens`."""
        self._grow(entry, kv_tokens, kv_tokens)

    def _grow(self, entry: ActiveRequest, kv_tokens: int, known_tokens: int) -> None:
        assert entry.kv is not None, "every request of an engine with a prefix cache has this"
        self.cache.grow(entry.kv, kv_tokens, known_tokens)
        entry.blocks = len(entry.kv.blocks)

    def release(self, entry: ActiveRequest) -> None:
        """Take all blocks from a request."""
        assert entry.kv is not None, "every request of an engine with a prefix cache has this"
        self.cache.release(entry.kv)
        self.served.ended(entry.job.request.id)

    def reset(self) -> bool:
        """Empty the cache. Returns False if a request holds blocks; then nothing changes."""
        emptied = self.cache.pool.clear()
        if emptied:
            self.resets += 1
            self.served = ServedPrompts(self._cached_blocks, self.cache.block_tokens)
        return emptied

    def _cached_blocks(self, keys: Sequence[BlockKey], own: Sequence[Block], _: int) -> CachedBlocks:
        pool = self.cache.pool
        found = pool.find(keys)
        held = bool(found) and not pool.free_among(found[-1:])
        return CachedBlocks(len(found), held, leading_in_common(found, own))


def _size_tokens(job: Job) -> int:
    return job.request.prompt_tokens + job.generated_tokens


def _sought_tokens(job: Job) -> int:
    """Return the tokens of which all but one may be cached; a preempted job must compute two."""
    return _size_tokens(job) - (job.generated_tokens > 0)


def _with_prefix(job: Job, found: CachedPrefix) -> Job:
    holder = None if found.holder is None else str(found.holder)
    return with_cached_prefix(job, found.tokens, found.free_blocks, holder)
