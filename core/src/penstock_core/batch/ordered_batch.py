"""A batch by an order: what every scheduler that keeps a queue comes down to [SOLA, Algorithm 1].

Such a scheduler is one choice of three things: the order in which jobs are served (𝓕), how many requests
may run (n) and how many tokens a batch may have (k). n and k are `Limits`, so a policy that wants fewer than
the engine hands in a view with its own. The order is an iterable of jobs, decodes and prefills alike, so
prefill first, decode first and anything between are orders; nobody behind the last who fits is looked at.

Two questions are left, and both are about memory:

- A running job that needs a block which is not there takes it from whoever would be served last, and gives
  way itself where that is none but itself (`victims`). So runs vLLM.
- A newcomer starts where all that it has pending fits into free blocks, also where it is computed in chunks,
  as in vLLM. Where prompts go `whole` it also has to fit into the batch, unless no batch is long enough. The
  first that does not fit ends the batch, so that nobody is overtaken.

Decodes draft what the engine's drafter is set to, as far as tokens and free blocks reach; nobody gives way
for a draft.
"""

from collections.abc import Iterable, Iterator, Sequence

from penstock_core.batch.open_batch import OpenBatch
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job


def run_on(batch: OpenBatch, running: Sequence[Job], victims: Iterator[Job] | None = None) -> None:
    """All that is pending of running jobs, in their order, as far as tokens go."""
    if not batch.preempted and all([job.decoding for job in running]) and add_all_decodes(batch, running):
        return
    victims = reversed(running) if victims is None else victims
    for job in running:
        if not batch.left_tokens:
            return
        if job.request.id not in batch.preempted:
            add_running(batch, job, victims)


def add_running(batch: OpenBatch, job: Job, victims: Iterator[Job]) -> None:
    """One running job's tokens and drafts, as far as tokens go."""
    add_chunk(batch, job, min(job.pending_tokens, batch.left_tokens), victims)
    if job.decoding and job.request.id in batch.tokens:
        batch.draft(job, _drafts(batch, job))


def add_chunk(batch: OpenBatch, job: Job, tokens: int, victims: Iterator[Job]) -> None:
    """So many of a running job's tokens; out of blocks with nobody to take them from, it gives way."""
    if not batch.make_room(batch.blocks_wanted(job, tokens), 0, victims):
        batch.preempt_idle(job)
    if job.request.id not in batch.preempted:
        batch.add(job, tokens)


def add_all_decodes(batch: OpenBatch, decodes: Sequence[Job]) -> bool:
    """Every one of these decodes with its drafts, where that surely fits; else none. Whether it did."""
    drafts = batch.view.speculation.max_tokens if batch.view.speculation else 0
    most_blocks = 1 + drafts // batch.view.kv.block_tokens
    if (1 + drafts) * len(decodes) > batch.left_tokens or most_blocks * len(decodes) > batch.free_blocks:
        return False
    batch.add_decodes(decodes)
    if drafts:
        for job in decodes:
            batch.draft(job, drafts)
    return True


def start(batch: OpenBatch, waiting: Iterable[Job], *, whole: bool = False, spare_blocks: int = 0) -> None:
    """Newcomers in their order until the first that does not fit. `spare_blocks` stay free."""
    for job in waiting:
        tokens = newcomer_tokens(batch, job, whole)
        blocks = batch.blocks_wanted(job, job.pending_tokens)
        if not tokens or not batch.has_room(blocks + spare_blocks, 1):
            return
        batch.add(job, tokens)


def newcomer_tokens(batch: OpenBatch, job: Job, whole: bool) -> int:
    """Tokens with which a newcomer starts: what the batch has left of it, or all of it or nothing."""
    tokens = min(job.pending_tokens, batch.left_tokens)
    if whole and tokens < min(job.pending_tokens, batch.view.limits.batch_tokens):
        return 0
    return tokens


def prompts_or_decodes(view: ReplicaView, waiting: Iterable[Job], spare_blocks: int = 0) -> OpenBatch:
    """A batch of whole prompts alone, those waiting in the order given; without one, of decodes alone."""
    prompts = OpenBatch(view)
    run_on(prompts, prefills_of(view.running))
    if not prompts.preempted:
        start(prompts, waiting, whole=True, spare_blocks=spare_blocks)
    if prompts.tokens:
        return prompts
    decodes, running = OpenBatch(view), decodes_first(view.running)
    run_on(decodes, [job for job in running if job.decoding], reversed(running))
    return decodes


def decodes_first(running: Sequence[Job]) -> list[Job]:
    """Running jobs with the decodes in front, else in their order."""
    return sorted(running, key=lambda job: not job.decoding)


def prefills_of(running: Sequence[Job]) -> list[Job]:
    """Running jobs whose prompt is not all computed, in their order."""
    return [job for job in running if not job.decoding]


def _drafts(batch: OpenBatch, job: Job) -> int:
    """As many as the drafter makes, and tokens and free blocks allow beside the job's one."""
    if batch.view.speculation is None:
        return 0
    held_tokens = batch.view.kv.blocks_for(job.computed_tokens + 1) * batch.view.kv.block_tokens
    room_tokens = held_tokens + batch.free_blocks * batch.view.kv.block_tokens - job.computed_tokens - 1
    return max(min(batch.view.speculation.max_tokens, batch.left_tokens, room_tokens), 0)
