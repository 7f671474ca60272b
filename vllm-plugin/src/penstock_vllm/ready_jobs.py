"""The waiting jobs that a policy may start: those that vLLM could start, with their cached prefixes."""

from collections.abc import Sequence

from penstock_core.domain.request import Job

from penstock_vllm.ledger import EngineLedger, HeldRequest
from penstock_vllm.plan import with_a_lora_in_use
from penstock_vllm.prefix_cache import CacheLookup


def ready_jobs(
    ledger: EngineLedger, running: Sequence[HeldRequest], prefixes: CacheLookup | None, most_loras: int | None
) -> tuple[Job, ...]:
    """Return these jobs in order of arrival. most_loras: most adapters in use at once; None without any."""
    if not ledger.ready or (prefixes is None and most_loras is None):
        return ledger.ready
    waiting: Sequence[HeldRequest] = ledger.startable
    if most_loras is not None:
        waiting = with_a_lora_in_use(waiting, running, most_loras)
    return tuple(
        [held.job for held in waiting] if prefixes is None else prefixes.with_cached_prefixes(waiting)
    )
