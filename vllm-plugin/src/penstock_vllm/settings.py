"""What can be set of the plug-in: `--additional-config '{"penstock": {…}}'`, or variables of the environment.

    policy          PENSTOCK_POLICY            a policy of the core; default slos-serve
    timeModel       PENSTOCK_TIME_MODEL        a built-in's name, a JSON file's path, the model, or auto
    telemetry       PENSTOCK_TELEMETRY         Unix datagram socket of the sidecar; none: nothing is told
    agingS          PENSTOCK_AGING_S           best effort that has waited so long is served before newcomers
    maxBatchTokens  PENSTOCK_MAX_BATCH_TOKENS  most tokens a step, below the engine's own bound
    maxRunning      PENSTOCK_MAX_RUNNING       most requests that run, below the engine's own bound
    acceptance      PENSTOCK_ACCEPTANCE        chance that a draft is accepted, until it has been measured
    planningS       PENSTOCK_PLANNING_S        longest time that the policy may take for a step

With `auto` the sidecar measures the engine, whose steps are vLLM's own until then, and leaves the model
beside its telemetry socket. The command line counts where both are given. vLLM compiles anew where
`--additional-config` changes, so values that differ between replicas, like the socket's path, belong into the
environment.
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


class BadSetting(ValueError):
    """A setting that cannot be used: where it stands, what was given, what would be right."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The plug-in's settings. max_batch_tokens, max_running: 0 leaves vLLM's own bounds.

    model: None until the sidecar has measured it. telemetry: where the sidecar listens; None tells nobody.
    acceptance: chance that a draft is accepted, until it has been measured.
    planning_s: longest time that the policy may take for one step.
    """

    model: TimeModel | None
    policy: str = "slos-serve"
    knobs: Knobs = field(default_factory=Knobs)
    telemetry: Path | None = None
    max_batch_tokens: int = 0
    max_running: int = 0
    acceptance: float = 0.6
    planning_s: float = 0.02


def check_one_engine(data_parallel_size: int) -> None:
    """Raises BadSetting where requests are spread over several engines behind one server.

    Each would report to the sidecar as if it were the replica.
    """
    if data_parallel_size > 1:
        raise BadSetting(
            f"--data-parallel-size {data_parallel_size}: a replica is one engine; leave it at 1, "
            "and write more `replicas` into the pool"
        )


def read_settings(given: Mapping[str, Any], environment: Mapping[str, str]) -> Settings:
    """Settings of a `--additional-config` and an environment. Raises BadSetting."""
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
    return Settings(**values)


def _read(read: Callable[[Any], Any], value: Any, where: str) -> Any:
    try:
        return read(value)
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise BadSetting(f"{where}: {_shown(value)} {_why(error)}") from None


def _policy(value: Any) -> str:
    if value not in POLICIES:
        raise ValueError(f"is no policy; there are: {', '.join(POLICIES)}")
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
        raise ValueError(f"is no built-in time model; there are: {', '.join(BUILTINS)}")
    return read_model(Path(text))


def read_model(path: Path) -> TimeModel:
    """The model in a file. Raises OSError, ValueError."""
    return _model_of(json.loads(path.read_text()))


def _model_of(values: Any) -> TimeModel:
    """A model as it is, or the page around it in a file of `penstock profile`'s."""
    try:
        return from_json(values.get("time_model", values))
    except (ValueError, AttributeError):
        raise ValueError("is no time model as `penstock profile` writes it") from None


def _knobs(value: Any) -> Knobs:
    return Knobs(aging_s=_positive(value))


def _count(value: Any) -> int:
    if isinstance(value, bool) or int(value) != float(value) or int(value) < 1:
        raise ValueError("is no whole number, 1 or more")
    return int(value)


def _positive(value: Any) -> float:
    if not 0 < float(value) < float("inf"):
        raise ValueError("is no number above 0")
    return float(value)


def _share(value: Any) -> float:
    if not 0 <= float(value) <= 1:
        raise ValueError("is no share between 0 and 1")
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
}
"""What may be set: the field it sets, and how it is read."""


def _variable(key: str) -> str:
    """`maxBatchTokens` is PENSTOCK_MAX_BATCH_TOKENS."""
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
    return text if text.startswith("is ") else "is no value that it can have"
