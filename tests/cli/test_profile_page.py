"""What `penstock profile` shows and writes."""

from io import StringIO

import orjson
from penstock_cli.commands.profile import as_file, show
from penstock_core.timing.fit import Fit, Point, Quality
from penstock_core.timing.time_model import BatchWork, Term, TimeModel, from_json
from penstock_profiler import DecodeProbe, PrefillProbe, Profile
from penstock_profiler.profiling import ProbeSummary
from rich.console import Console

MODEL = TimeModel("tiny", (Term(token_s=1e-5, fixed_s=0.004), Term(token_s=0.0, fixed_s=0.005)), 2e-9, 1e-12)
DECODES, PREFILL = BatchWork(8, 800), BatchWork(500)


def profile_of(times: int = 3) -> Profile:
    readings = [
        ProbeSummary(PrefillProbe(500), Point(PREFILL, 0.010), times, 0.02),
        ProbeSummary(DecodeProbe(8, 100), Point(DECODES, 0.005), times, 0.04),
    ]
    seen, held_out = Quality(2, 0.01, 0.03, 0.999), Quality(2, 0.02, 0.05, 0.98)
    return Profile(readings, 0.0015, 0.05, Fit(MODEL, seen, held_out))


def shown(profile: Profile) -> list[str]:
    screen = StringIO()
    show(Console(file=screen, width=200), profile)
    return screen.getvalue().splitlines()


def test_each_probe_has_a_line_smallest_batch_first() -> None:
    lines = [line.split() for line in shown(profile_of())]
    start = next(index for index, line in enumerate(lines) if line[:1] == ["probe"])
    decodes, prefill = lines[start + 1 : start + 3]
    assert decodes[-6:] == ["8", "800", "5.00", "5.00", "+0.0", "4.0"]
    assert prefill[-6:] == ["500", "0", "10.00", "9.00", "-10.0", "2.0"]


def test_the_fit_is_shown_as_a_formula_with_its_accuracy() -> None:
    text = "\n".join(shown(profile_of()))
    assert "T = max(10.00 µs a token + 4.000 ms, 0.00 µs a token + 5.000 ms)\n" in text
    assert "+ 2.00 ns a token of context + 0.0010 ns a pair of a prompt's attention" in text
    assert "The overhead of a request outside of iterations is 1.50 ms." in text
    assert "Accuracy on the fitted points: R² 0.9990, mean error 1.0%, worst 3.0%." in text
    assert "Accuracy on held-out points: R² 0.9800, mean error 2.0%, worst 5.0%." in text
    assert "deviate by 5.0% from their median, by 3.0% without drift" in text


def test_noise_is_unknown_if_each_point_was_measured_once() -> None:
    assert "the noise is unknown: increase --seconds" in "\n".join(shown(profile_of(times=1)))


def test_the_file_holds_the_model_and_its_accuracy() -> None:
    page = orjson.loads(as_file("opt", profile_of()))
    assert from_json(page.pop("time_model")) == MODEL
    assert page == {
        "format": "penstock-time-model/1",
        "model": "opt",
        "held_out": {"points": 2, "mean_error": 0.02, "r_squared": 0.98},
        "noise": 0.05,
        "points": [
            {**PREFILL._asdict(), "seconds": 0.010, "times": 3},
            {**DECODES._asdict(), "seconds": 0.005, "times": 3},
        ],
    }
