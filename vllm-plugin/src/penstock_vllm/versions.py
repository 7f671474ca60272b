"""Supported versions of vLLM. Its scheduler is not a public interface, so versions are listed and checked."""

import re
from collections.abc import Iterable

OLDEST, NEWEST = (0, 32), (0, 33)

HOOKS = (
    "schedule",
    "update_from_output",
    "add_request",
    "finish_requests",
    "reset_prefix_cache",
    "_preempt_request",
    "_reserve_prefill_lookahead",
    "_mamba_block_aligned_split",
    "_try_schedule_encoder_inputs",
    "_handle_blocked_waiting_request",
)
"""Methods of vLLM's scheduler that are called or extended here."""


class UnsupportedVllm(Exception):
    """The scheduler of this vLLM version is not supported."""

    def __init__(self, version: str, why: str) -> None:
        window = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
        super().__init__(
            f"penstock: vLLM {version} {why}; use {window}, or run vLLM without --scheduler-cls "
            "behind a pool with engine.type: openai"
        )


def check_version(version: str, methods: Iterable[str]) -> None:
    """Raise UnsupportedVllm unless a scheduler of this version, with these methods, is supported."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or not OLDEST <= (int(found[1]), int(found[2])) <= NEWEST:
        raise UnsupportedVllm(version, "is not supported")
    missing = sorted(set(HOOKS) - set(methods))
    if missing:
        raise UnsupportedVllm(version, f"has a scheduler without {', '.join(missing)}")
