"""Updates of a job by reports and forwarded tokens. Pure.

A job that was accepted here has an estimated prompt length and a predicted answer length. Reports that show
more tokens correct them.
"""

from collections.abc import Callable
from dataclasses import replace

from penstock_core.domain.request import Job, Request, advance, new_job, with_cached_prefix

from penstock_sidecar.mirror.report_rows import Row

FOREIGN_TIER = "direct"
"""Tier of requests that reached the engine without this sidecar."""


def advanced(job: Job, row: Row, now_s: float) -> Job:
    """Return the job with the progress that a report shows."""
    new_tokens = max(row.generated_tokens - job.generated_tokens, 0)
    changed = advance(job, row.computed_tokens - job.computed_tokens, new_tokens, now_s)
    if changed.best_effort != row.best_effort:
        changed = changed._replace(best_effort=row.best_effort)
    if changed.pending_tokens < 1:  # the prompt is longer than estimated
        changed = with_prompt(changed, changed.computed_tokens + 1 - changed.generated_tokens)
    return changed


def with_longer_prediction(job: Job, longer: Callable[[Job], int]) -> Job:
    """Return the job, with a longer predicted length if it has exceeded its prediction."""
    if job.output_tokens > job.generated_tokens + 1:
        return job
    bound = max(job.request.max_output_tokens, job.generated_tokens + 1)
    return job._replace(output_tokens=min(max(longer(job), job.generated_tokens + 1), bound))


def without_cached_prefix(job: Job) -> Job:
    """Return the job without cached tokens."""
    if job.unheld_blocks is None:
        return job
    return job._replace(computed_tokens=0, unheld_blocks=None, prefix_of=None)


def with_cached(job: Job, row: Row) -> Job:
    """Return a waiting job with the tokens that the engine has cached."""
    left_tokens = row.cached_tokens + 1 + (job.generated_tokens > 0)
    if job.request.prompt_tokens + job.generated_tokens < left_tokens:  # the prompt is longer than estimated
        job = with_prompt(job, left_tokens - job.generated_tokens)
    return with_cached_prefix(job, row.cached_tokens, row.unheld_blocks)


def with_prompt(job: Job, prompt_tokens: int) -> Job:
    """Return the job with a prompt of this length."""
    return job._replace(request=replace(job.request, prompt_tokens=prompt_tokens))


def foreign_job(row: Row, now_s: float) -> Job:
    """Return a job for a request that was sent without this sidecar, as far as the report shows it."""
    prompt_tokens = max(row.computed_tokens + 1 - row.generated_tokens, 1)
    left_tokens = row.generated_tokens + 1
    request = Request(row.request_id, FOREIGN_TIER, now_s, prompt_tokens, left_tokens)
    job = new_job(request, left_tokens, row.best_effort)
    return job._replace(computed_tokens=row.computed_tokens, generated_tokens=row.generated_tokens)
