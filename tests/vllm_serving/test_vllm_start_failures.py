"""A vLLM that cannot start: the cause is in its log and in the plug-in's termination message."""

from pathlib import Path

from penstock_runtime.exit_reason import reason_line
from served.server import failing

KUBERNETES_KEEPS_BYTES = 2048


def test_a_cache_too_small_for_one_request_is_reported(model: Path, tmp_path: Path) -> None:
    words = tmp_path / "termination-log"
    code, output = failing(
        model,
        tmp_path,
        "--num-gpu-blocks-override",
        "4",
        env={"PENSTOCK_TERMINATION_LOG": str(words)},
    )
    assert code == 1
    assert "which is larger than the available KV cache memory" in words.read_text()
    assert "which is larger than the available KV cache memory" in reason_line(output.splitlines())
    kept = output.encode()[-KUBERNETES_KEEPS_BYTES:].decode(errors="replace")
    assert "See root cause above" in reason_line(kept.splitlines())  # why words are left at all


def test_a_missing_setting_of_the_plug_in_is_reported(model: Path, tmp_path: Path) -> None:
    words = tmp_path / "termination-log"
    env = {"PENSTOCK_TIME_MODEL": "", "PENSTOCK_TERMINATION_LOG": str(words)}
    code, output = failing(model, tmp_path, env=env)
    why = "BadSetting: PENSTOCK_TIME_MODEL is not set: name a built-in time model"
    assert code == 1
    assert words.read_text().startswith(why)
    assert why in reason_line(output.splitlines())
