"""The command `penstock replay`: its flags, and how it prints a report."""

from pathlib import Path

import orjson
import pytest
from penstock_cli.main import app, run
from penstock_cli.replay.outcome import RequestEnding, RequestOutcome
from penstock_cli.replay.report import Report, lateness
from penstock_cli.replay.request_bodies import ReplayEndpoint
from penstock_cli.replay.run import ReplaySettings
from penstock_cli.replay.tally import ReplayTally
from penstock_core.domain.slo import Slo
from rich.console import Console


def outcome(number: int, reason: str = "") -> RequestOutcome:
    ending = RequestEnding.FAILED if reason else RequestEnding.ADMITTED
    return RequestOutcome(str(number), "chat", 0.0, 1, 1, ending, met=not reason, reason=reason)


def report(late_s: float = 0.004) -> Report:
    tally = ReplayTally()
    for number, reason in enumerate(["", "", "500", "503 [no_replicas]", "500"]):
        tally.add(outcome(number, reason), late_s)
    return Report("slos-serve", 2, span_s=10.0, tally=tally)


Settings = list[tuple[ReplaySettings, Console]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    """Replace the replay by one that returns a report; return the settings and console of each call."""
    asked: Settings = []

    async def replay(settings: ReplaySettings, console: Console) -> Report:
        asked.append((settings, console))
        return report()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("penstock_cli.commands.replay.run_replay", replay)
    return asked


def penstock(*flags: object, url: str = "http://h:1") -> int:
    return run(lambda: app(["replay", "--trace", "t.csv", "--url", url, *map(str, flags)]))


def test_without_flags_all_requests_are_sent_as_recorded(asked: Settings) -> None:
    assert penstock() == 0
    ((settings, console),) = asked
    assert settings == ReplaySettings(Path("t.csv"), "http://h:1")
    assert console.stderr


def test_every_flag_reaches_the_replay(asked: Settings) -> None:
    flags = (
        "--rate 4 --duration 5 --seed 6 --tier chat --tier-map code=coder --tier-map a=b=c --endpoint chat"
    )
    more = "--model m --api-key sk --slo chat:ttft=1s --max-inflight 7 --timeout 8 --requests r.csv"
    assert penstock(*flags.split(), *more.split(), "--admin-url", "http://h:2/") == 0
    ((settings, _),) = asked
    assert settings.tier_slos is not None
    assert settings.tier_slos.slos == {"chat": Slo(ttft_s=1.0)}
    assert settings == ReplaySettings(
        Path("t.csv"),
        "http://h:1",
        admin_url="http://h:2",
        rate_rps=4.0,
        duration_s=5.0,
        seed=6,
        tier="chat",
        renamed={"code": "coder", "a": "b=c"},
        endpoint=ReplayEndpoint.CHAT,
        model="m",
        api_key="sk",
        max_in_flight=7,
        timeout_s=8.0,
        tier_slos=settings.tier_slos,
        rows=Path("r.csv"),
    )


@pytest.mark.parametrize("url", ["http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_a_url_may_end_in_v1_and_slashes(asked: Settings, url: str) -> None:
    assert penstock(url=url) == 0
    assert asked[0][0].url == "http://h:1"


@pytest.mark.parametrize("flag", ["--rate", "--duration", "--timeout"])
@pytest.mark.parametrize(("value", "shown"), [("0", "0"), ("-1.5", "-1.5"), ("inf", "inf"), ("nan", "nan")])
def test_a_rate_and_a_time_are_finite_and_above_0(
    asked: Settings, capfd: pytest.CaptureFixture[str], flag: str, value: str, shown: str
) -> None:
    assert penstock(flag, value) == 2
    assert capfd.readouterr().err == f"{flag} {shown}: must be above 0\n"
    assert asked == []


def test_the_report_has_a_table_a_summary_and_the_clients_lateness(
    asked: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    assert penstock() == 0
    shown = capfd.readouterr()
    title, *_, tier, summary, late, first, second = shown.out.splitlines()
    assert title.strip() == "t.csv at http://h:1"
    assert tier.split()[:3] == ["chat", "5", "40.0"]
    assert summary == "At 0.50 requests/s 40.0 % of 5 requests met their tier's SLO."
    assert late == "This client sent p50 4.0, p99 4.0, at most 4.0 ms late: fine."
    assert [first, second] == ["failed: 2 × 500", "failed: 1 × 503 [no_replicas]"]
    assert shown.err == ""


def test_json_on_standard_output_is_the_only_output(
    asked: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    assert penstock("--json", "-") == 0
    shown = capfd.readouterr()
    assert orjson.loads(shown.out) == report().as_json()
    assert shown.out.startswith("{\n  ") and shown.out.endswith("}\n")
    assert "met their tier's SLO" in shown.err


def test_json_is_written_to_a_file_beside_the_table(
    asked: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    assert penstock("--json", "o.json") == 0
    assert orjson.loads(Path("o.json").read_bytes()) == report().as_json()
    assert "met their tier's SLO" in capfd.readouterr().out


def test_json_that_cannot_be_written_is_a_failure(asked: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    assert penstock("--json", "/dev/full") == 1
    assert capfd.readouterr().err == "--json /dev/full: No space left on device\n"


def test_a_file_that_can_never_be_written_is_found_before_the_run(
    asked: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    assert penstock("--json", "no/o.json") == 2
    assert capfd.readouterr().err == "--json no/o.json: the directory no does not exist\n"
    assert not asked


@pytest.mark.parametrize(("late_s", "verdict"), [(0.010, "fine."), (0.011, "it could not keep the trace's")])
def test_a_late_client_is_reported(late_s: float, verdict: str) -> None:
    assert verdict in lateness(report(late_s).tally)


def test_a_client_that_sent_no_request_was_not_late() -> None:
    assert lateness(ReplayTally()).endswith(": fine.")
