"""The command `penstock profile`, with an engine whose measurements are known."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, Self

import orjson
import pytest
from loop_time import skip
from penstock_cli.commands import profile as command
from penstock_cli.main import app, run
from penstock_core.timing.fit import Fit, Point, Quality
from penstock_core.timing.time_model import BatchWork, Term, TimeModel, from_json
from penstock_profiler import EngineError, ProbeSummary, Profile, ProfileLimits
from penstock_profiler.engine import EngineKvCache
from penstock_profiler.plan import PrefillProbe
from rich.console import Console

MODEL = TimeModel(
    "m", (Term(token_s=0.0001, fixed_s=0.010),), context_token_s=2e-9, prefill_work_s=3e-10, overhead_s=0.0
)
QUALITY = Quality(points=8, mean_error=0.0123, worst_error=0.0456, r_squared=0.98765)
HELD_OUT = Quality(points=7, mean_error=0.0234, worst_error=0.0567, r_squared=0.87654)


def reading(tokens: int, seconds: float, times: int = 3, context_tokens: int = 0) -> ProbeSummary:
    point = Point(BatchWork(tokens, context_tokens), seconds)
    return ProbeSummary(PrefillProbe(tokens), point, times, spread=0.0149)


def measured(*readings: ProbeSummary, model: TimeModel = MODEL) -> Profile:
    return Profile(readings, overhead_s=0.00234, noise=0.0345, fit=Fit(model, QUALITY, HELD_OUT))


FOUND = measured(reading(400, 0.040), reading(100, 0.025, context_tokens=500))


@dataclass
class Engine:
    """An engine that records its requests."""

    context_tokens: int = 0
    model: str = "tiny"
    cache: EngineKvCache | None = None
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    profiled: list[tuple[ProfileLimits, float]] = field(default_factory=list)

    @asynccontextmanager
    async def connected(self, url: str, headers: dict[str, str]) -> AsyncIterator[Self]:
        self.asked.append((url, headers))
        yield self
        await skip(command.TICK_S)

    async def kv_cache(self) -> EngineKvCache | None:
        return self.cache

    async def profile(
        self, engine: Self, limits: ProfileLimits, seconds: float, *, on_reading: Callable[..., None]
    ) -> Profile:
        assert engine is self
        self.profiled.append((limits, seconds))
        for number in range(2):
            on_reading(PrefillProbe(64), number)
        await skip(0.0)
        await skip(command.TICK_S)
        await skip(command.TICK_S)
        return FOUND


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Engine:
    engine = Engine()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_ENGINE_API_KEY", "sk-engine")
    monkeypatch.setattr(command, "connected", engine.connected)
    monkeypatch.setattr(command, "profile", engine.profile)
    return engine


def penstock(*arguments: object) -> int:
    flags = ["--engine", "http://e:8000", "--out", "tiny.json", *map(str, arguments)]
    return run(lambda: app(["profile", *flags]))


def test_the_file_is_a_time_model_with_its_accuracy(engine: Engine) -> None:
    assert penstock() == 0
    page = orjson.loads(Path("tiny.json").read_bytes())
    assert from_json(page.pop("time_model")) == MODEL
    assert page == {
        "format": "penstock-time-model/1",
        "model": "tiny",
        "held_out": {"points": 7, "mean_error": 0.0234, "r_squared": 0.87654},
        "noise": 0.0345,
        "points": [
            {**BatchWork(400)._asdict(), "seconds": 0.040, "times": 3},
            {**BatchWork(100, 500)._asdict(), "seconds": 0.025, "times": 3},
        ],
    }
    assert Path("tiny.json").read_bytes().endswith(b"}\n")
    assert engine.asked == [("http://e:8000", {"authorization": "Bearer sk-engine"})]


@pytest.mark.parametrize(
    ("context_tokens", "limits"),
    [
        (0, ProfileLimits(4096, 8, kv_tokens=9000)),
        (4096, ProfileLimits(4095, 8, 4096, 9000)),
        (32768, ProfileLimits(4096, 8, 32768, 9000)),
    ],
    ids=["unknown", "shorter", "longer"],
)
def test_probes_stay_within_the_flags_and_the_engines_context(
    engine: Engine, context_tokens: int, limits: ProfileLimits
) -> None:
    engine.context_tokens = context_tokens
    flags = ("--seconds", 7, "--longest-prompt", 4096, "--most-requests", 8, "--kv-tokens", 9000)
    assert penstock(*flags) == 0
    assert engine.profiled == [(limits, 7.0)]


@pytest.mark.parametrize(("flags", "kv_tokens"), [((), 1600), (("--kv-tokens", 900), 900)])
def test_the_kv_cache_is_the_engines_unless_a_flag_names_it(
    engine: Engine, flags: tuple[object, ...], kv_tokens: int
) -> None:
    engine.cache = EngineKvCache(100, 16)
    assert penstock(*flags) == 0
    assert engine.profiled[0][0].kv_tokens == kv_tokens


@pytest.mark.parametrize(("error", "warned"), [(0.24, False), (0.25, True)])
def test_an_inaccurate_model_is_reported(error: float, warned: bool) -> None:
    held_out = Quality(points=7, mean_error=error, worst_error=0.9, r_squared=0.1)
    found = Profile(FOUND.summaries, 0.002, 0.03, Fit(MODEL, QUALITY, held_out))
    assert any("This model is inaccurate: do not use it." in line for line in page_lines(found)) == warned


class Bar:
    """A progress bar that records its updates."""

    def __init__(self) -> None:
        self.reported: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.reported.append("end")

    def add_task(self, description: str, total: float) -> int:
        self.reported.append(total)
        return 5

    def update(self, task: int, description: str) -> None:
        self.reported.append((task, description))

    def advance(self, task: int, seconds: float) -> None:
        self.reported.append((task, seconds))


def test_the_bar_on_standard_error_counts_readings_from_one(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    bar, consoles = Bar(), []

    def progress(console: Console) -> Bar:
        consoles.append(console)
        return bar

    monkeypatch.setattr(command, "_progress", progress)
    assert penstock("--seconds", 7) == 0
    readings = [(5, "reading 1: prefill of 64"), (5, "reading 2: prefill of 64")]
    ticks = [(5, command.TICK_S)] * 2
    assert bar.reported == [7.0, *readings, *ticks, "end"]
    assert [console.stderr for console in consoles] == [True]


def test_an_engine_that_cannot_be_measured_is_one_line(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def gone(url: str, headers: object) -> None:
        raise EngineError("no engine answers there")

    monkeypatch.setattr(command, "connected", gone)
    assert penstock() == 1
    assert capfd.readouterr().err == "--engine: no engine answers there\n"


def test_a_missing_folder_is_reported_before_the_measurement(
    engine: Engine, capfd: pytest.CaptureFixture[str]
) -> None:
    assert penstock("--out", "no/tiny.json") == 2
    assert capfd.readouterr().err == "--out no/tiny.json: folder no does not exist\n"
    assert engine.asked == []


def page_lines(found: Profile) -> list[str]:
    console = Console(file=StringIO(), width=200)
    command.show(console, found)
    assert isinstance(console.file, StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_noise_of_single_measurements_is_unknown() -> None:
    unknown = "Each point was measured once, so the noise is unknown: increase --seconds."
    assert page_lines(measured(reading(100, 0.02, times=1), reading(400, 0.05, times=1)))[-1] == unknown
    assert page_lines(measured(reading(100, 0.02, times=1), reading(400, 0.05, times=2)))[-1] != unknown


def test_by_default_a_measurement_takes_two_minutes_and_small_batches(engine: Engine) -> None:
    assert penstock() == 0
    assert engine.profiled == [(ProfileLimits(2048, 32), 120.0)]


@pytest.mark.parametrize(
    ("flag", "least", "most"),
    [
        ("--seconds", 1, None),
        ("--longest-prompt", 64, None),
        ("--most-requests", 1, 512),
        ("--kv-tokens", 1, None),
    ],
)
def test_a_flag_accepts_values_within_its_bounds(
    engine: Engine, flag: str, least: int, most: int | None
) -> None:
    assert [penstock(flag, value) for value in (least - 1, least)] == [2, 0]
    if most is not None:
        assert [penstock(flag, value) for value in (most, most + 1)] == [0, 2]


def test_the_bar_is_removed_before_the_table() -> None:
    screen = StringIO()
    with command._progress(Console(file=screen, force_terminal=True, width=80)) as bar:
        bar.add_task("reading 1", total=1.0)
    assert screen.getvalue().endswith("\x1b[1A\x1b[2K")
