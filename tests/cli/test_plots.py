"""Figures hold the series that they were given, in files of the kind that their names say."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from penstock_cli.capacity.plot import draw
from penstock_cli.capacity.question import Question, SearchConditions
from penstock_cli.capacity.search import CapacityResult
from penstock_cli.capacity.setting import PolicySetting
from penstock_cli.capacity.sweep import Sweep
from penstock_cli.failure import Failure
from penstock_cli.plots.figure import check_suffix
from penstock_cli.plots.plane import panel_titles, spot
from penstock_cli.plots.request_plot import RequestPlot
from penstock_cli.plots.series import Curve, Spot
from penstock_core.domain.slo import Slo, Tier
from penstock_core.timing.builtin_models import time_model
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.simulation import FirstVerdict, Fleet, LengthKnowledge, SimulatedOutcome

CONDITIONS = SearchConditions(1, 0.9, LengthKnowledge.KNOWN, TruthKind.EXACT, 3, "round-robin")


def answer(scenario: str, policy: str, rate_rps: float) -> CapacityResult:
    question = Question(scenario, policy, CONDITIONS)
    return CapacityResult(question, PolicySetting(512), rate_rps, rate_rps * 1.02, 900, 90)


def swept(scenario: str, policy: str, tier: str) -> Sweep:
    curve = Curve(scenario, policy, (1.0, 2.0, 3.0), (1.0, 0.9, 0.2))
    return Sweep(curve, {tier: (Spot(0.2, 0.5), Spot(0.9, 0.9), Spot(30.0, 2.0))})


def ids(path: Path) -> dict[str, ElementTree.Element]:
    return {e.attrib["id"]: e for e in ElementTree.parse(path).getroot().iter() if "id" in e.attrib}


def points(element: ElementTree.Element) -> int:
    """Corners of the line in a group."""
    path = next(e for e in element.iter() if e.tag.endswith("path") and "d" in e.attrib)
    return sum(path.attrib["d"].count(command) for command in "ML")


def drawn(path: Path) -> Path:
    answers = [answer("chatbot", "vllm", 2.0), answer("chatbot", "oracle", 9.0), answer("coder", "vllm", 2.0)]
    sweeps = [swept("chatbot", "vllm", "chat"), None, swept("coder", "vllm", "coder")]
    draw(answers, sweeps, path)
    return path


def test_a_capacity_figure_holds_every_curve_and_target(tmp_path: Path) -> None:
    seen = ids(drawn(tmp_path / "capacity.svg"))
    assert points(seen["attainment-chatbot-vllm"]) == 3
    assert points(seen["plane-coder · coder-vllm"]) == 3
    for name in ("attainment-coder-vllm", "target-chatbot", "bound-chatbot", "ttft-target-chatbot · chat"):
        assert name in seen
    assert "attainment-chatbot-oracle" not in seen
    assert "bound-coder" not in seen


def test_the_same_figure_is_the_same_file(tmp_path: Path) -> None:
    first, second = drawn(tmp_path / "a.svg"), drawn(tmp_path / "b.svg")
    assert first.read_bytes() == second.read_bytes()
    text = first.read_text()
    for words in ("requests/s per replica", "chatbot · chat: TTFT 5× idle, TPOT 100 ms", "vllm", "bound"):
        assert words in text


def test_a_png_is_a_png(tmp_path: Path) -> None:
    assert drawn(tmp_path / "capacity.PNG").read_bytes().startswith(b"\x89PNG")


def test_no_figure_of_another_kind() -> None:
    check_suffix(None)
    check_suffix(Path("a.svg"))
    with pytest.raises(Failure, match=r"--plot a\.pdf: a figure is \.svg or \.png") as error:
        check_suffix(Path("a.pdf"))
    assert error.value.exit_code == 2


def test_a_figure_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="No such file or directory"):
        drawn(tmp_path / "nowhere" / "capacity.svg")


def test_a_simulation_figure_parts_kept_from_broken(tmp_path: Path) -> None:
    tiers = {"chat": Tier("chat", Slo(ttft_s=1.0, tpot_s=0.1)), "batch": Tier("batch", best_effort=True)}
    fleet = Fleet("vllm", time_model("llama-3-8b-a100"), 4096, tiers, "chat")
    seen = RequestPlot(fleet)
    asked = [outcome("a", 0.5), outcome("b", 0.7), outcome("c", 4.0), outcome("d", 0.1, tier="batch")]
    assert list(seen.observe(iter(asked))) == asked
    seen.draw(tmp_path / "plane.svg")
    drawn_ids = ids(tmp_path / "plane.svg")
    assert uses(drawn_ids["plane-chat-every target met"]) == 2
    assert uses(drawn_ids["plane-chat-a target missed"]) == 1
    assert not any("batch" in name for name in drawn_ids)


def uses(element: ElementTree.Element) -> int:
    """Markers in a group."""
    return sum(e.tag.endswith("use") for e in element.iter())


def outcome(name: str, ttft_s: float, tier: str = "chat") -> SimulatedOutcome:
    return SimulatedOutcome(
        name, tier, 0.0, 100, 100, FirstVerdict.ADMITTED, "r0", 1, ttft_s, 0.05, 9.0, ttft_s <= 1.0
    )


def test_a_simulation_without_targets_is_an_empty_figure(tmp_path: Path) -> None:
    fleet = Fleet("vllm", time_model("llama-3-8b-a100"), 4096, {"batch": Tier("batch")}, "batch")
    RequestPlot(fleet).draw(tmp_path / "plane.svg")
    assert "no tier has targets for TTFT and TPOT" in (tmp_path / "plane.svg").read_text()


def test_a_place_in_the_plane_is_counted_in_targets() -> None:
    slo = Slo(ttft_slowdown=5.0, tpot_s=0.1)
    assert spot(slo, 0.1, 1.0, 0.05) == pytest.approx((2.0, 0.5))
    assert spot(slo, 0.1, 1.0, None) == pytest.approx((2.0, 0.0))
    assert spot(slo, 0.1, None, None) is None
    assert spot(Slo(ttft_s=1.0), 0.1, 1.0, 0.05) is None


def test_panels_say_what_was_promised() -> None:
    tiers = {
        "a": Tier("a", Slo(ttft_s=0.8, tpot_s=0.05, answer_tpot_s=0.1)),
        "b": Tier("b", best_effort=True),
    }
    assert panel_titles(tiers, tiers) == ["a: TTFT 800 ms, TPOT 50 ms / 100 ms", "b: no targets"]
