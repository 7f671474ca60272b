"""A batch in a given order of jobs, the common part of all queue-based schedulers [SOLA, Algorithm 1].

Such a scheduler chooses the order in which jobs are served (𝓕), how many requests may run (n) and how many
tokens a batch may have (k). n and k are `Limits`, so a policy that wants smaller ones passes a view with its
own. The order is an iterable of decodes and prefills, so prefill-first and decode-first are orders. Jobs
behind the last one that fits are not visited.

Two rules concern memory:

- A running job that needs a block when none is free preempts the job that would be served last, or is itself
  preempted if it is that job (`victims`), as in vLLM.
- A new request starts if all of its pending tokens fit into free blocks, even if it is computed in chunks, as
  in vLLM. If prompts are scheduled `whole`, it must also fit into the batch, unless it exceeds every batch.
  The first that does not fit ends the batch, so no request is overtaken.

Decodes verify the fixed number of draft tokens of the engine, as far as tokens and free blocks allow. No job
is preempted for a draft token.
"""

from collections.abc import Iterable, Iterator, Sequence

from penstock_core.batch.open_batch import OpenBatch
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job


def run_on(batch: OpenBatch, running: Sequence[Job], victims: Iterator[Job] | None = None) -> None:
    """Add all pending tokens of running jobs, in order, as far as the token budget allows."""
    if not batch.preempted and all([job.decoding for job in running]) and add_all_decodes(batch, running):
        return
    victims = reversed(running) if victims is None else victims
    for job in running:
        if not batch.left_tokens:
            return
        if job.request.id not in batch.preempted:
            add_running(batch, job, victims)


def add_running(batch: OpenBatch, job: Job, victims: Iterator[Job]) -> None:
    """Add one running job's tokens and draft tokens, as far as the token budget allows."""
    add_chunk(batch, job, min(job.pending_tokens, batch.left_tokens), victims)
    if job.decoding and job.request.id in batch.tokens:
        batch.draft(job, _drafts(batch, job))


def add_chunk(batch: OpenBatch, job: Job, tokens: int, victims: Iterator[Job]) -> None:
    """Add tokens of a running job. It is itself preempted if blocks run out and there is no victim."""
    if not batch.make_room(batch.blocks_wanted(job, tokens), 0, victims):
        batch.preempt_idle(job)
    if job.request.id not in batch.preempted:
        batch.add(job, tokens)


def add_all_decodes(batch: OpenBatch, decodes: Sequence[Job]) -> bool:
    """Add every decode with its draft tokens if they surely fit, otherwise none. Returns whether they do."""
    drafts = batch.view.speculation.max_tokens if batch.view.speculation else 0
    most_blocks = 1 + drafts // batch.view.kv.block_tokens
    if (1 + drafts) * len(decodes) > batch.left_tokens or most_blocks * len(decodes) > batch.free_blocks:
        return False
    batch.decode_all(decodes)
    if drafts:
        for job in decodes:
            batch.draft(job, drafts)
    return True


def start(batch: OpenBatch, waiting: Iterable[Job], *, whole: bool = False, spare_blocks: int = 0) -> None:
    """Start new requests in order until the first that does not fit. `spare_blocks` stay free."""
    for job in waiting:
        tokens = starting_tokens(batch, job, whole)
        blocks = batch.blocks_wanted(job, job.pending_tokens)
        if not tokens or not batch.has_room(blocks + spare_blocks, 1):
            return
        batch.add(job, tokens)


def starting_tokens(batch: OpenBatch, job: Job, whole: bool) -> int:
    """Return the tokens with which a request starts: the rest of the batch, or with `whole` all or none."""
    tokens = min(job.pending_tokens, batch.left_tokens)
    if whole and tokens < min(job.pending_tokens, batch.view.limits.batch_tokens):
        return 0
    return tokens


def running_then_new(
    view: ReplicaView,
    running: Sequence[Job],
    waiting: Iterable[Job],
    *,
    whole: bool = False,
    spare_blocks: int = 0,
) -> OpenBatch:
    """Return a batch of running jobs, then of new ones unless a job had to be preempted, both in order.

    whole, spare_blocks: see `start`.
    """
    batch = OpenBatch(view)
    run_on(batch, running)
    if not batch.preempted:
        start(batch, waiting, whole=whole, spare_blocks=spare_blocks)
    return batch


def prompts_or_decodes(view: ReplicaView, waiting: Iterable[Job], spare_blocks: int = 0) -> OpenBatch:
    """Return a batch of whole prompts, waiting ones in the given order; if none fits, of decodes."""
    prompts = running_then_new(
        view, prefills_of(view.running), waiting, whole=True, spare_blocks=spare_blocks
    )
    if prompts.tokens:
        return prompts
    decodes, running = OpenBatch(view), decodes_first(view.running)
    run_on(decodes, [job for job in running if job.decoding], reversed(running))
    return decodes


def decodes_first(running: Sequence[Job]) -> list[Job]:
    """Return the running jobs, decodes first, otherwise in order."""
    return sorted(running, key=lambda job: not job.decoding)


def prefills_of(running: Sequence[Job]) -> list[Job]:
    """Return the running jobs whose prompt is not computed completely, in order."""
    return [job for job in running if not job.decoding]


def _drafts(batch: OpenBatch, job: Job) -> int:
    """Return the draft tokens of a job: as many as the drafter makes, tokens and free blocks permitting."""
    if batch.view.speculation is None:
        return 0
    held_tokens = batch.view.kv.blocks_for(job.computed_tokens + 1) * batch.view.kv.block_tokens
    room_tokens = held_tokens + batch.free_blocks * batch.view.kv.block_tokens - job.computed_tokens - 1
    return max(min(batch.view.speculation.max_tokens, batch.left_tokens, room_tokens), 0)
