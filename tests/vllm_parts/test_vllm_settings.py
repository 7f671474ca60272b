"""Settings of the plug-in and supported versions: each error is one line."""

import json
from pathlib import Path

import pytest
from penstock_core.domain.engine_fields import measured_model_file
from penstock_core.domain.policy import Knobs
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.time_model import to_json
from penstock_vllm.pending_model import CHECK_S, PendingModel
from penstock_vllm.settings import BadSetting, PluginSettings, check_one_engine, read_settings
from penstock_vllm.versions import HOOKS, UnsupportedVllm, check_version

NAMED = {"PENSTOCK_TIME_MODEL": "llama-3-8b-a100"}


def test_a_time_model_is_the_only_required_setting() -> None:
    read = read_settings({}, NAMED)
    assert (read.policy, read.telemetry, read.max_batch_tokens) == ("slos-serve", None, 0)
    assert read.model == time_model("llama-3-8b-a100")


def test_settings_have_the_documented_defaults() -> None:
    read = read_settings({}, {**NAMED, "PENSTOCK_POLICY": ""})
    assert read == PluginSettings(
        time_model("llama-3-8b-a100"),
        "slos-serve",
        Knobs(aging_s=30.0),
        telemetry=None,
        max_batch_tokens=0,
        max_running=0,
        acceptance=0.6,
        planning_s=0.02,
    )


def test_all_settings_can_come_from_the_environment() -> None:
    read = read_settings(
        {},
        {
            "PENSTOCK_TIME_MODEL": "opt-13b-a100",
            "PENSTOCK_POLICY": "sola",
            "PENSTOCK_AGING_S": "7.5",
            "PENSTOCK_TELEMETRY": "/run/t.sock",
            "PENSTOCK_MAX_BATCH_TOKENS": "512",
            "PENSTOCK_MAX_RUNNING": "9",
            "PENSTOCK_ACCEPTANCE": "0.25",
            "PENSTOCK_PLANNING_S": "0.5",
        },
    )
    model, telemetry = time_model("opt-13b-a100"), Path("/run/t.sock")
    assert read == PluginSettings(model, "sola", Knobs(aging_s=7.5), telemetry, 512, 9, 0.25, 0.5)


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("acceptance", [0, 1, "0.5"], [-0.01, 1.01, "nan"]),
        ("planningS", [1e-9, 1e9], [0, -1, "inf", "nan"]),
        ("agingS", [1e-9, 1e9], [0, -1, "inf"]),
        ("maxBatchTokens", [1, "8", 8.0], [0, -1, True, 1.5, "8.5", None]),
        ("maxRunning", [1, "8"], [0, False]),
    ],
)
def test_numbers_are_accepted_within_their_bounds(key: str, good: list[object], bad: list[object]) -> None:
    for value in good:
        read_settings({"penstock": {key: value}}, NAMED)
    for value in bad:
        with pytest.raises(BadSetting, match=rf"penstock\.{key}: "):
            read_settings({"penstock": {key: value}}, NAMED)


def test_a_long_value_is_truncated_and_a_relative_path_is_read() -> None:
    with pytest.raises(BadSetting, match='"' + "x" * 60 + '" is not a policy'):
        read_settings({"penstock": {"policy": "x" * 500}}, NAMED)
    with pytest.raises(BadSetting, match=r'"none\.json" cannot be read'):
        read_settings({"penstock": {"timeModel": "none.json"}}, {})


def test_a_server_of_several_engines_is_refused() -> None:
    check_one_engine(1)
    with pytest.raises(BadSetting, match="--data-parallel-size 2: a replica is one engine"):
        check_one_engine(2)


def test_the_command_line_precedes_the_environment() -> None:
    given = {"penstock": {"policy": "sola", "maxRunning": 8}}
    read = read_settings(given, {**NAMED, "PENSTOCK_POLICY": "vllm", "PENSTOCK_AGING_S": "5"})
    assert (read.policy, read.max_running, read.knobs) == ("sola", 8, Knobs(aging_s=5.0))


def test_a_time_model_is_given_by_name_by_file_or_inline(tmp_path: Path) -> None:
    values = to_json(time_model("opt-13b-a100"))
    path = tmp_path / "measured.json"
    path.write_text(json.dumps(values))
    page = {"format": "penstock-time-model/1", "model": "m", "time_model": values}
    reported = ("opt-13b-a100", str(path), json.dumps(values), values, page)
    assert {read_settings({"penstock": {"timeModel": one}}, {}).model for one in reported} == {
        time_model("opt-13b-a100")
    }


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({}, "PENSTOCK_TIME_MODEL is not set: name a built-in time model"),
        ({"timeModel": "gpu"}, 'penstock.timeModel: "gpu" is not a built-in time model; there are: '),
        ({"timeModel": "/no/such.json"}, '"/no/such.json" cannot be read: No such file'),
        ({"timeModel": "{"}, "is not JSON"),
        ({"timeModel": {"name": "x"}}, "is not a time model as `penstock profile` writes it"),
        ({"policy": "best"}, 'penstock.policy: "best" is not a policy; there are: annealing, '),
        ({"polcy": "vllm"}, "penstock.polcy is not known; there are: policy, timeModel"),
        ({"maxRunning": 0}, 'penstock.maxRunning: "0" is not a whole number, 1 or more'),
        ({"planningS": "soon"}, 'penstock.planningS: "soon" is not a valid value'),
        ({"acceptance": 2}, 'penstock.acceptance: "2" is not a share between 0 and 1'),
    ],
)
def test_an_invalid_setting_is_named_with_its_place_and_a_valid_value(
    section: dict[str, object], words: str
) -> None:
    with pytest.raises(BadSetting) as bad:
        read_settings({"penstock": section}, {})
    assert words in str(bad.value)
    assert "\n" not in str(bad.value)


def test_a_section_that_is_not_an_object_is_named() -> None:
    with pytest.raises(BadSetting, match="penstock must be an object"):
        read_settings({"penstock": "sola"}, NAMED)


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1+cpu", "0.33.0", "0.33.2rc1"])
def test_supported_vllm_versions_are_accepted(version: str) -> None:
    check_version(version, HOOKS)


@pytest.mark.parametrize("version", ["0.31.2", "0.34.0", "1.0.0", "dev"])
def test_unsupported_vllm_versions_are_refused_with_the_supported_ones(version: str) -> None:
    with pytest.raises(UnsupportedVllm, match=r"use 0\.32 to 0\.33, or run vLLM without --scheduler-cls"):
        check_version(version, HOOKS)


def test_a_scheduler_that_lacks_a_method_is_refused() -> None:
    with pytest.raises(UnsupportedVllm, match="without _preempt_request"):
        check_version("0.33.0", set(HOOKS) - {"_preempt_request"})


def test_a_model_to_be_measured_needs_a_sidecar() -> None:
    read = read_settings({}, {"PENSTOCK_TIME_MODEL": "auto", "PENSTOCK_TELEMETRY": "/run/t.sock"})
    assert read.model is None
    with pytest.raises(BadSetting, match='"auto" is measured by a sidecar; set PENSTOCK_TELEMETRY too'):
        read_settings({}, {"PENSTOCK_TIME_MODEL": "auto"})


def test_a_measured_model_is_read_as_soon_as_it_is_written(tmp_path: Path) -> None:
    telemetry, model = tmp_path / "t.sock", time_model("opt-13b-a100")
    pending, file = PendingModel(telemetry), Path(measured_model_file(str(telemetry)))
    assert pending.check(0.0) is None
    file.write_text(json.dumps(to_json(model)))
    assert pending.check(CHECK_S / 2) is None, "it is not looked for at every step"
    assert pending.check(CHECK_S) == model


def test_an_invalid_measured_model_is_logged_and_awaited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    telemetry = tmp_path / "t.sock"
    Path(measured_model_file(str(telemetry))).write_text("{}")
    pending = PendingModel(telemetry)
    assert (pending.check(0.0), pending.check(CHECK_S)) == (None, None)
    (output,) = caplog.messages
    Path(measured_model_file(str(telemetry))).write_text("{")
    assert pending.check(2 * CHECK_S) is None
    assert len(caplog.messages) == 2
    assert output.endswith("steps stay vLLM's own until it is right")
