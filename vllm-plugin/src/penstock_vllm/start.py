"""Parts of a scheduler at its start: settings, the reader of requests' SLO fields, and a warm policy."""

from collections.abc import Callable, Mapping
from typing import Any

from penstock_core.domain.policy import Policy
from penstock_core.domain.replica_view import Limits
from penstock_core.policies import build
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.speculation import Speculation

from penstock_vllm.estimates import EngineEstimates
from penstock_vllm.pending_model import PendingModel
from penstock_vllm.settings import PluginSettings
from penstock_vllm.tickets import ReadFields, TicketFields, unchecked
from penstock_vllm.view import StepBounds
from penstock_vllm.warm_up import warm_up

WARM_UP_MODEL = "llama-3-8b-a100"
"""Time model for the warm-up while the engine's own is still to be measured; never used for planning."""


def additional_config(vllm_config: Any) -> Mapping[str, Any]:
    """Return the settings in `--additional-config`; empty if it is not an object."""
    given = vllm_config.additional_config
    return given if isinstance(given, dict) else {}


def fields_reader(settings: PluginSettings, clock: Callable[[], float]) -> ReadFields:
    """Return a function that reads a request's SLO fields."""
    if settings.tickets and settings.telemetry is not None:
        return TicketFields(settings.telemetry, clock)
    return unchecked


def pending_model(settings: PluginSettings) -> PendingModel | None:
    """Return the time model that the sidecar has to measure; None if the settings have one."""
    if settings.model is not None or settings.telemetry is None:
        return None
    return PendingModel(settings.telemetry)


def first_estimates(settings: PluginSettings, draft_tokens: int) -> EngineEstimates:
    """Return the estimates before the first step. draft_tokens: most draft tokens of a request."""
    drafter = Speculation(draft_tokens, settings.acceptance) if draft_tokens else None
    return EngineEstimates(settings.model or time_model(WARM_UP_MODEL), drafter)


def warm_policy(settings: PluginSettings, bounds: StepBounds, estimates: EngineEstimates) -> Policy[Any]:
    """Return the policy after a first plan, so that later plans do not wait for compilation."""
    policy = build(settings.policy, settings.knobs)
    limits = Limits(bounds.batch_tokens, bounds.running)
    warm_up(policy, limits, estimates.model, estimates.speculation)
    return policy
