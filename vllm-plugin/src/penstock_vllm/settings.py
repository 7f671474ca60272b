"""Settings of the plug-in: `--additional-config '{"penstock": {…}}'`, or environment variables.

    policy          PENSTOCK_POLICY            a policy of the core; default slos-serve
    timeModel       PENSTOCK_TIME_MODEL        a built-in's name, a JSON file's path, the model, or auto
    telemetry       PENSTOCK_TELEMETRY         Unix datagram socket of the sidecar; none: no reports
    agingS          PENSTOCK_AGING_S           wait after which best effort is served before new requests
    maxBatchTokens  PENSTOCK_MAX_BATCH_TOKENS  most tokens per step, below the engine's own bound
    maxRunning      PENSTOCK_MAX_RUNNING       most running requests, below the engine's own bound
    acceptance      PENSTOCK_ACCEPTANCE        acceptance rate of draft tokens until it is measured
    planningS       PENSTOCK_PLANNING_S        time limit of the policy for a step
    tickets         PENSTOCK_TICKETS           `required`: SLO fields count in a ticket of the sidecar only

With `auto` the sidecar measures the engine, whose steps are vLLM's own until then, and writes the model
beside its telemetry socket. The command line takes precedence. vLLM compiles again if `--additional-config`
changes, so set values that differ between replicas, like the socket's path, in the environment.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock_core.domain.policy import Knobs
from penstock_core.policies import POLICIES
from penstock_core.timing.builtin_models import BUILTINS, time_model
from penstock_core.timing.time_model import TimeModel, from_json

SECTION = "penstock"
AUTO = "auto"
REQUIRED = "required"


class BadSetting(ValueError):
    """An invalid setting. The message names the setting, its value and valid values."""


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """The plug-in's settings. max_batch_tokens, max_running: 0 keeps vLLM's own bounds.

    model: None until the sidecar has measured it. telemetry: the sidecar's socket; None for no reports.
    acceptance: acceptance rate of draft tokens until it is measured.
    planning_s: time limit of the policy for one step.
    tickets: whether SLO fields count in a ticket of the sidecar only; requires `telemetry`.
    """

    model: TimeModel | None
    policy: str = "slos-serve"
    knobs: Knobs = field(default_factory=Knobs)
    telemetry: Path | None = None
    max_batch_tokens: int = 0
    max_running: int = 0
    acceptance: float = 0.6
    planning_s: float = 0.02
    tickets: bool = False


def check_one_engine(data_parallel_size: int) -> None:
    """Raise BadSetting if requests are distributed over several engines behind one server.

    Each of them would report to the sidecar as if it were the replica.
    """
    if data_parallel_size > 1:
        raise BadSetting(
            f"--data-parallel-size {data_parallel_size}: a replica is one engine; leave it at 1, "
            "and write more `replicas` into the pool"
        )


def read_settings(given: Mapping[str, Any], environment: Mapping[str, str]) -> PluginSettings:
    """Return the settings of a `--additional-config` and an environment. Raises BadSetting."""
    section = given.get(SECTION) or {}
    if not isinstance(section, dict):
        raise BadSetting(f"--additional-config: {SECTION} must be an object, not {section!r}")
    unknown = sorted(set(section) - set(_KEYS))
    if unknown:
        raise BadSetting(f"--additional-config: {SECTION}.{unknown[0]} is not known; there are: {_known()}")
    values: dict[str, Any] = {}
    for key, (name, read) in _KEYS.items():
        variable = _variable(key)
        if key in section:
            values[name] = _read(read, section[key], f"--additional-config: {SECTION}.{key}")
        elif environment.get(variable):
            values[name] = _read(read, environment[variable], variable)
    if "model" not in values:
        raise BadSetting(
            f"{_variable('timeModel')} is not set: name a built-in time model ({', '.join(BUILTINS)}), "
            "or a JSON file with one"
        )
    if values["model"] is None and "telemetry" not in values:
        raise BadSetting(
            f'{_variable("timeModel")}: "auto" is measured by a sidecar; set {_variable("telemetry")} too'
        )
    if values.get("tickets") and "telemetry" not in values:
        raise BadSetting(
            f"{_variable('tickets')}: the key of tickets is beside the sidecar's socket; set "
            f"{_variable('telemetry')} too"
        )
    return PluginSettings(**values)


def _read(read: Callable[[Any], Any], value: Any, where: str) -> Any:
    try:
        return read(value)
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise BadSetting(f"{where}: {_shown(value)} {_why(error)}") from None


def _policy(value: Any) -> str:
    if value not in POLICIES:
        raise ValueError(f"is not a policy; there are: {', '.join(POLICIES)}")
    return str(value)


def _model(value: Any) -> TimeModel | None:
    if isinstance(value, dict):
        return _model_of(value)
    text = str(value)
    if text == AUTO:
        return None
    if text in BUILTINS:
        return time_model(text)
    if text.lstrip().startswith("{"):
        return _model_of(json.loads(text))
    if "/" not in text and not text.endswith(".json"):
        raise ValueError(f"is not a built-in time model; there are: {', '.join(BUILTINS)}")
    return read_model(Path(text))


def read_model(path: Path) -> TimeModel:
    """Return the model in a file. Raises OSError, ValueError."""
    return _model_of(json.loads(path.read_text()))


def _model_of(values: Any) -> TimeModel:
    """Return a model from its values, or from a file of `penstock profile`, which contains them."""
    try:
        return from_json(values.get("time_model", values))
    except (ValueError, AttributeError):
        raise ValueError("is not a time model as `penstock profile` writes it") from None


def _knobs(value: Any) -> Knobs:
    return Knobs(aging_s=_positive(value))


def _required(value: Any) -> bool:
    if value != REQUIRED:
        raise ValueError(f"is not `{REQUIRED}`; leave it out where no tickets are required")
    return True


def _count(value: Any) -> int:
    if isinstance(value, bool) or int(value) != float(value) or int(value) < 1:
        raise ValueError("is not a whole number, 1 or more")
    return int(value)


def _positive(value: Any) -> float:
    if not 0 < float(value) < float("inf"):
        raise ValueError("is not a number above 0")
    return float(value)


def _share(value: Any) -> float:
    if not 0 <= float(value) <= 1:
        raise ValueError("is not a share between 0 and 1")
    return float(value)


_KEYS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "policy": ("policy", _policy),
    "timeModel": ("model", _model),
    "telemetry": ("telemetry", lambda value: Path(str(value))),
    "agingS": ("knobs", _knobs),
    "maxBatchTokens": ("max_batch_tokens", _count),
    "maxRunning": ("max_running", _count),
    "acceptance": ("acceptance", _share),
    "planningS": ("planning_s", _positive),
    "tickets": ("tickets", _required),
}
"""The settings: the field of each, and its parser."""


def _variable(key: str) -> str:
    """Return the environment variable of a key: `maxBatchTokens` is PENSTOCK_MAX_BATCH_TOKENS."""
    return "PENSTOCK_" + "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in key)


def _known() -> str:
    return ", ".join(_KEYS)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return f'"{text[:60]}"'


def _why(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"is not JSON: {error}"
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror}"
    text = str(error)
    return text if text.startswith("is ") else "is not a valid value"
