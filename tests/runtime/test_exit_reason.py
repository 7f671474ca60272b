"""The line of a log that has the cause of a process's end. The logs are vLLM 0.32's, without its frames."""

import pytest
from penstock_runtime.exit_reason import LONGEST, reason_line

SERVER_WAITED = """\
Traceback (most recent call last):
  File "vllm/v1/engine/utils.py", line 1431, in wait_for_engine_startup
    raise RuntimeError(
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}
"""


def failed_core(error: str) -> str:
    """The engine's process logs the cause twice; the server that waited for it ends the log."""
    head = "(EngineCore pid=20866) ERROR 11-21 22:59:45 [core.py:1510] "
    logged = [f"{head}EngineCore failed to start.", f"{head}Traceback (most recent call last):"]
    return "\n".join([*logged, f"{head}{error}", "Process EngineCore:", error, SERVER_WAITED])


NO_ROOM = (
    "ValueError: To serve at least one request with the model's max seq len (2048), (0.0 GiB KV cache is "
    "needed, which is larger than the available KV cache memory (0.0 GiB). Based on the available memory, "
    "the estimated maximum model length is 384."
)
UNSUPPORTED = (
    "penstock_vllm.versions.UnsupportedVllm: penstock: vLLM 0.30.0 is not supported; use 0.32 to 0.33"
)

BAD_LENGTH = """\
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, User-specified max_model_len (100000) is greater than the derived max_model_len
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""


@pytest.mark.parametrize("error", [NO_ROOM, UNSUPPORTED])
def test_the_log_of_the_failed_process_is_preferred_to_that_of_the_waiting_one(error: str) -> None:
    assert reason_line(failed_core(error).splitlines()) == error


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            BAD_LENGTH.rpartition("    For")[0],
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig: "
            "Value error, User-specified max_model_len (100000) is greater than the derived max_model_len",
        ),
        (
            BAD_LENGTH,
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig: "
            "Value error, User-specified max_model_len (100000) is greater than the derived max_model_len",
        ),
        (
            "(EngineCore pid=1) ERROR 11-21 23:00:00 [core.py:1510] Exception: WorkerProc initialization "
            "failed due to an exception in a background process. See stack trace for root cause.\n"
            + SERVER_WAITED,
            "RuntimeError: Engine core initialization failed. See root cause above. "
            "Failed core proc(s): {'EngineCore': 1}",
        ),
        ("OSError: [Errno 98] Address already in use\n", "OSError: [Errno 98] Address already in use"),
        (
            "usage: api_server.py [-h]\napi_server.py: error: argument --port: invalid int value: 'x'\n",
            "api_server.py: error: argument --port: invalid int value: 'x'",
        ),
        (BAD_LENGTH.splitlines()[0], BAD_LENGTH.splitlines()[0]),
        ("starting\nspec.routing.backup: wrong\n\n", "spec.routing.backup: wrong"),
        ("", ""),
    ],
)
def test_every_other_end_has_its_reason(log: str, reason: str) -> None:
    assert reason_line(log.splitlines()) == reason


def test_a_long_line_is_cut_at_its_end() -> None:
    assert reason_line(["ValueError: " + "x" * 1000]) == ("ValueError: " + "x" * 1000)[:LONGEST]
