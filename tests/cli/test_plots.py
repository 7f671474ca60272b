"""Figures hold the series that they were given, in files of the kind that their names say."""

from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest
from penstock_cli.capacity.plot import draw
from penstock_cli.capacity.question import Question, SearchConditions
from penstock_cli.capacity.search import CapacityResult
from penstock_cli.capacity.setting import PolicySetting
from penstock_cli.capacity.sweep import Sweep
from penstock_cli.failure import Failure
from penstock_cli.plots import figure as style
from penstock_cli.plots.attainment import draw_attainment, draw_bound
from penstock_cli.plots.figure import check_suffix, panels
from penstock_cli.plots.plane import draw_plane, panel_titles, spot
from penstock_cli.plots.request_plot import MET, MISSED, MOST_SPOTS, RequestPlot
from penstock_cli.plots.series import Cloud, Curve, Spot
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


def test_a_capacity_figure_has_every_curve_and_target(tmp_path: Path) -> None:
    seen = ids(drawn(tmp_path / "capacity.svg"))
    assert points(seen["attainment-chatbot-vllm"]) == 3
    assert points(seen["plane-coder · coder-vllm"]) == 3
    for name in ("attainment-coder-vllm", "target-chatbot", "bound-chatbot", "ttft-target-chatbot · chat"):
        assert name in seen
    assert "attainment-chatbot-oracle" not in seen
    assert "bound-coder" not in seen


def test_equal_figures_are_equal_files(tmp_path: Path) -> None:
    first, second = drawn(tmp_path / "a.svg"), drawn(tmp_path / "b.svg")
    assert first.read_bytes() == second.read_bytes()
    text = first.read_text()
    for words in ("requests/s per replica", "chatbot · chat: TTFT 5× idle, TPOT 100 ms", "vllm", "bound"):
        assert words in text


def test_a_png_file_has_its_signature(tmp_path: Path) -> None:
    assert drawn(tmp_path / "capacity.PNG").read_bytes().startswith(b"\x89PNG")


def test_a_figure_of_another_format_is_refused() -> None:
    check_suffix(None)
    check_suffix(Path("a.svg"))
    with pytest.raises(Failure, match=r"--plot a\.pdf: the suffix must be \.svg or \.png") as error:
        check_suffix(Path("a.pdf"))
    assert error.value.exit_code == 2


def test_a_figure_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="No such file or directory"):
        drawn(tmp_path / "nowhere" / "capacity.svg")


def test_a_simulation_figure_separates_met_from_missed(tmp_path: Path) -> None:
    tiers = {"chat": Tier("chat", Slo(ttft_s=1.0, tpot_s=0.1)), "batch": Tier("batch", best_effort=True)}
    fleet = Fleet("vllm", time_model("llama-3-8b-a100"), 4096, tiers, "chat")
    seen = RequestPlot(fleet)
    requested = [outcome("a", 0.5), outcome("b", 0.7), outcome("c", 4.0), outcome("d", 0.1, tier="batch")]
    assert list(seen.observe(iter(requested))) == requested
    seen.draw(tmp_path / "plane.svg")
    drawn_ids = ids(tmp_path / "plane.svg")
    assert uses(drawn_ids["plane-chat-every target met"]) == 2
    assert uses(drawn_ids["plane-chat-a target missed"]) == 1
    assert not any("batch" in name for name in drawn_ids)


class Data(NamedTuple):
    """A line's points."""

    x: list[float]
    y: list[float]


def data(line: Any) -> Data:
    return Data(list(line.get_xdata()), list(line.get_ydata()))


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


def test_axes_are_in_multiples_of_the_targets() -> None:
    slo = Slo(ttft_slowdown=5.0, tpot_s=0.1)
    assert spot(slo, 0.1, 1.0, 0.05) == pytest.approx((2.0, 0.5))
    assert spot(slo, 0.1, 1.0, None) == pytest.approx((2.0, 0.0))
    assert spot(slo, 0.1, None, None) is None
    assert spot(Slo(ttft_s=1.0), 0.1, 1.0, 0.05) is None


def test_panels_show_the_targets() -> None:
    tiers = {
        "a": Tier("a", Slo(ttft_s=0.8, tpot_s=0.05, answer_tpot_s=0.1)),
        "b": Tier("b", best_effort=True),
    }
    assert panel_titles(tiers, tiers) == ["a: TTFT 800 ms, TPOT 50 ms / 100 ms", "b: no targets"]


@pytest.mark.parametrize(("titles", "columns", "rows"), [(1, 1, 1), (3, 3, 1), (4, 3, 2), (7, 3, 3)])
def test_there_are_three_panels_a_row_within_the_margins(titles: int, columns: int, rows: int) -> None:
    figure, axes = panels([f"panel {number}" for number in range(titles)])
    width, height = style.PANEL_INCHES
    assert figure.get_size_inches() == pytest.approx((width * columns, height * rows))
    assert [panel.get_title(loc="left") for panel in axes] == [f"panel {number}" for number in range(titles)]
    whole = figure.get_size_inches()
    boxes = [panel.get_position() for panel in axes]
    assert boxes[0].x0 * whole[0] == pytest.approx(style.LEFT_INCHES)
    assert (1 - boxes[columns - 1].x1) * whole[0] == pytest.approx(style.RIGHT_INCHES)
    assert (1 - boxes[0].y1) * whole[1] == pytest.approx(style.TOP_INCHES)
    assert boxes[-1].y0 * whole[1] == pytest.approx(style.BOTTOM_INCHES)
    for left, right in pairwise(boxes[:columns]):
        gap, panel = (right.x0 - left.x1) * whole[0], left.width * whole[0]
        assert gap / panel == pytest.approx(style.GAP_INCHES / (width - style.GAP_INCHES))
    for upper, lower in zip(boxes, boxes[columns:], strict=False):
        gap, panel = (upper.y0 - lower.y1) * whole[1], upper.height * whole[1]
        assert gap / panel == pytest.approx(style.GAP_INCHES / (height - style.GAP_INCHES))


def test_a_panel_has_its_grid_under_its_lines_and_no_top_and_right_axis() -> None:
    _, (panel,) = panels(["one"])
    assert panel.get_axisbelow() is True
    assert {side: spine.get_visible() for side, spine in panel.spines.items()} == {
        "left": True,
        "bottom": True,
        "top": False,
        "right": False,
    }


def test_each_policy_has_one_colour_and_marker_in_all_panels() -> None:
    policies = [f"policy {number}" for number in range(len(style.COLOURS) + 1)]
    curves = [Curve("a", policy, (1.0, 2.0), (0.9, 0.5)) for policy in policies]
    _, axes = panels(["a", "b"])
    draw_attainment(axes, [*curves, Curve("b", policies[1], (1.0,), (1.0,))], target=0.9)
    *drawn, target = axes[0].lines
    colours = [*style.COLOURS, style.COLOURS[0]]
    assert [(line.get_color(), line.get_marker()) for line in drawn] == list(
        zip(colours, [*style.MARKERS, style.MARKERS[0]], strict=True)
    )
    assert data(drawn[0]).y == [90.0, 50.0]
    assert data(target).y == [90.0, 90.0]
    assert axes[1].lines[0].get_color() == style.COLOURS[1]
    assert axes[0].get_xlim()[0] == 0 and axes[0].get_ylim() == (0, 103)
    draw_bound(axes[1], "b", 4.0)
    assert data(axes[1].lines[-1]).x == [4.0, 4.0]
    for panel in axes:
        legend = panel.get_legend()
        assert legend is not None and not legend.get_frame_on()
    legend = axes[1].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [policies[1], "bound"]


def test_the_plot_has_paths_and_single_requests_within_its_edges() -> None:
    spots = (Spot(0.001, 0.5), Spot(0.2, 1000.0))
    clouds = [Cloud("chat", f"policy {number}", spots, path=True) for number in range(9)]
    _, axes = panels(["chat", "coder"])
    draw_plane(axes, [*clouds, Cloud("coder", "policy 1", spots)], of=", mean")
    *paths, across, along = axes[0].lines
    single = axes[1].lines[0]
    assert [line.get_color() for line in paths] == [*style.COLOURS, style.COLOURS[0]]
    assert [line.get_marker() for line in paths] == [*style.MARKERS, style.MARKERS[0]]
    assert (data(paths[0]).x, data(paths[0]).y) == ([0.01, 0.2], [0.5, 100.0])
    assert (data(across).x, data(along).y) == ([1.0, 1.0], [1.0, 1.0])
    assert (paths[0].get_linestyle(), single.get_linestyle()) == ("-", "None")
    assert (paths[0].get_markersize(), single.get_markersize()) == (style.MARKER_POINTS, style.SPOT_POINTS)
    assert (paths[0].get_alpha(), single.get_alpha()) == (None, style.SPOT_OPACITY)
    assert paths[0].get_markeredgewidth() == 0
    assert single.get_color() == style.COLOURS[1]
    for panel in axes:
        assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")
        assert (panel.get_xlabel(), panel.get_ylabel()) == (
            "TTFT, mean / its target",
            "TPOT, mean / its target",
        )
        legend = panel.get_legend()
        assert legend is not None and not legend.get_frame_on()


def test_a_panel_of_many_requests_shows_the_first_of_each_kind(tmp_path: Path) -> None:
    tiers = {"chat": Tier("chat", Slo(ttft_s=1.0, tpot_s=0.1))}
    seen = RequestPlot(Fleet("vllm", time_model("llama-3-8b-a100"), 4096, tiers, "chat"))
    many = [outcome(str(number), 0.5 + number / 100_000) for number in range(MOST_SPOTS + 1)]
    assert len(list(seen.observe(iter([*many, outcome("late", 3.0)])))) == MOST_SPOTS + 2
    met, missed = seen._of("chat")
    assert (met.label, len(met.spots), met.spots[0]) == (MET, MOST_SPOTS, Spot(0.5, 0.5))
    assert (missed.label, missed.spots, missed.path) == (MISSED, (Spot(3.0, 0.5),), False)


def test_a_capacity_figure_draws_the_bound_at_its_capacity(tmp_path: Path) -> None:
    text = drawn(tmp_path / "a.svg").read_text()
    assert "TTFT, 90 % within / its target" in text


def test_an_svg_keeps_its_text_and_a_png_has_the_set_resolution(tmp_path: Path) -> None:
    assert "<text" in drawn(tmp_path / "a.svg").read_text()
    assert "<dc:date>" not in drawn(tmp_path / "a.svg").read_text()
    width, height = (size * style.DOTS_PER_INCH for size in style.PANEL_INCHES)
    header = drawn(tmp_path / "a.png").read_bytes()[16:24]
    assert int.from_bytes(header[:4], "big") == 3 * width
    assert int.from_bytes(header[4:], "big") % height == 0
