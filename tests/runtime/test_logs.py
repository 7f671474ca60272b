"""A process's log: one event a line on standard error, as text or as JSON."""

import re
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

PROCESS = """
import logging, sys, structlog
from penstock_runtime.logs import configure_logs
configure_logs("penstock-test", *sys.argv[1:2], **({"json": True} if "json" in sys.argv else {}))
log = structlog.get_logger()
log.debug("quiet")
log.info("ready", address="127.0.0.1:80")
try:
    raise ValueError("why")
except ValueError:
    log.exception("failed")
print(structlog.get_config()["cache_logger_on_first_use"])
logging.getLogger("library").info("chatter")
logging.getLogger("library").warning("look")
"""


def written(*arguments: str) -> list[str]:
    command = [sys.executable, "-c", PROCESS, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "True\n", "the logger of a module is made once, not at each line"
    return done.stderr.splitlines()


def test_log_lines_have_utc_times_and_include_library_warnings() -> None:
    ready, failed, *_, look = written()
    stamp = r"timestamp=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z"
    assert re.fullmatch(rf"address=127.0.0.1:80 event=ready {stamp} level=info", ready)
    assert re.match(rf"event=failed {stamp} level=error exception=", failed)
    assert look == "penstock-test library look"


@pytest.mark.parametrize(
    ("level", "events"), [("debug", ["quiet", "ready", "failed"]), ("error", ["failed"])]
)
def test_json_logs_have_one_object_a_line_from_a_level_up(level: str, events: list[str]) -> None:
    *lines, look = written(level, "json")
    assert look == "penstock-test library look"
    reported = [orjson.loads(line) for line in lines]
    assert [one["event"] for one in reported] == events
    assert "ValueError: why" in reported[-1]["exception"]
    assert all(one["timestamp"].endswith("Z") for one in reported)


def test_a_full_disk_loses_lines_without_ending_the_process() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", PROCESS]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, text=True, check=True, timeout=60)
    assert done.stdout == "True\n"
