"""Answer lengths: a prior, learned from answers, conditional on the tokens generated so far."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.domain.request import Request
from penstock_core.domain.slo import Judge, Targets
from penstock_core.forecast import length_predictor
from penstock_core.forecast.length_predictor import LONGEST_TOKENS, PRIOR, LengthPredictor

PROMPT = 1000


def learned(lengths: list[int], tier: str = "chat", prompt_tokens: int = PROMPT) -> LengthPredictor:
    predictor = LengthPredictor()
    for length in lengths:
        predictor.observe(tier, prompt_tokens, length)
    return predictor


def normal(mean: float, deviation: float, count: int) -> list[int]:
    draw = Random(5)
    return [max(1, round(draw.gauss(mean, deviation))) for _ in range(count)]


ANSWERS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 40_000), st.integers(0, 300_000)), max_size=40
)


@st.composite
def predictors(draw: st.DrawFn) -> LengthPredictor:
    predictor = LengthPredictor()
    for tier, prompt_tokens, output_tokens in draw(ANSWERS):
        predictor.observe(tier, prompt_tokens, output_tokens, cut_short=draw(st.booleans()))
    return predictor


def test_without_answers_a_chat_is_expected() -> None:
    fresh = LengthPredictor()
    assert fresh.predict("chat", PROMPT, 0, quantile=0.5) == pytest.approx(128, rel=0.02)
    assert fresh.predict("chat", PROMPT, 0) == pytest.approx(461, rel=0.02)
    assert sum(PRIOR) == pytest.approx(1.0)


def test_the_end_of_thinking_is_not_certain() -> None:
    predictor = learned([400] * 1000)
    for answer_tpot_s, sure in ((None, 400), (0.1, 0)):
        targets = Targets(1.0, 0.05, None, Judge.WINDOW, answer_tpot_s)
        reported = predictor.sure(Request("r", "chat", 0.0, PROMPT, 4096, targets))
        assert reported == pytest.approx(sure, rel=0.1)


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9, 0.99])
def test_quantiles_approach_those_of_the_answers(quantile: float) -> None:
    lengths = normal(300, 60, 4000)
    predicted = learned(lengths).predict("chat", PROMPT, 0, quantile=quantile)
    assert predicted == pytest.approx(sorted(lengths)[int(quantile * 4000)], rel=0.08)


def test_an_answer_longer_than_most_is_predicted_to_be_long() -> None:
    predictor = learned([50] * 900 + [800] * 100)
    assert predictor.predict("chat", PROMPT, 0, quantile=0.5) < 60
    assert 700 < predictor.predict("chat", PROMPT, 100, quantile=0.5) < 900


def test_tiers_do_not_teach_one_another() -> None:
    predictor = learned([2000] * 500, tier="reasoning")
    assert predictor.predict("chat", PROMPT, 0) == LengthPredictor().predict("chat", PROMPT, 0)


def test_prompts_of_a_new_length_use_their_tiers_distribution() -> None:
    predictor = learned([40] * 500)
    assert predictor.predict("chat", 30_000, 0) < 60


def test_prompts_of_a_known_length_have_their_own_distribution() -> None:
    predictor = learned([40] * 500)
    for _ in range(500):
        predictor.observe("chat", 20_000, 900)
    assert predictor.predict("chat", PROMPT, 0) < 60
    assert 800 < predictor.predict("chat", 20_000, 0) < 1000


def test_few_answers_move_the_prior_a_little() -> None:
    fresh, few, many = (learned([20] * n).predict("chat", PROMPT, 0) for n in (0, 5, 500))
    assert many < few < fresh


def test_old_answers_fade() -> None:
    predictor = learned([100] * 5000 + [1000] * 5000)
    assert predictor.predict("chat", PROMPT, 0, quantile=0.2) > 900


def test_the_first_answers_keep_a_third_of_the_weight_after_one_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 120: 37 are the old answers', 63 the new ones', 20 the prior's."""
    monkeypatch.setattr(length_predictor, "MEMORY_ANSWERS", 100.0)
    predictor = learned([100] * 2000 + [1000] * 100)
    assert predictor.predict("chat", PROMPT, 0, quantile=0.25) < 110
    assert predictor.predict("chat", PROMPT, 0, quantile=0.45) > 110


def test_an_answer_of_one_token_is_counted_as_one() -> None:
    predictor = learned([1] * 500 + [0] * 500)
    assert predictor.predict("chat", PROMPT, 0, quantile=0.5) == 1
    assert predictor.sure(Request("r", "chat", 0.0, PROMPT, 4096)) == 1


def test_a_prediction_does_not_change_the_predictor() -> None:
    requested, silent = LengthPredictor(), LengthPredictor()
    for length in normal(300, 60, 50):
        requested.observe("chat", PROMPT, length)
        silent.observe("chat", PROMPT, length)
        requested.predict("chat", PROMPT, 0)
    assert requested.predict("chat", PROMPT, 10) == silent.predict("chat", PROMPT, 10)


def test_an_answer_cut_short_counts_as_longer() -> None:
    cut = learned([100] * 50 + [600] * 50)
    for _ in range(100):
        cut.observe("chat", PROMPT, 256, cut_short=True)
    whole = learned([100] * 50 + [600] * 50 + [256] * 100)
    assert cut.predict("chat", PROMPT, 0, quantile=0.7) > 500 > whole.predict("chat", PROMPT, 0, quantile=0.7)


def test_weights_stay_in_scale_over_many_answers() -> None:
    predictor = LengthPredictor()
    for _ in range(60_000):
        predictor.observe("chat", PROMPT, 100)
    assert 95 <= predictor.predict("chat", PROMPT, 0, quantile=0.5) <= 105


def test_rescaling_weights_changes_no_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    def predictions() -> list[float]:
        predictor = learned([40] * 300 + normal(300, 60, 300))
        predictor.observe("chat", PROMPT, 200, cut_short=True)
        return [predictor.predict("chat", *of, quantile=0.6) for of in ((PROMPT, 0), (20_000, 50))]

    usual = predictions()
    monkeypatch.setattr(length_predictor, "HEAVIEST_ANSWER", 1.05)
    assert predictions() == pytest.approx(usual)


def test_weights_never_overflow_a_float(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(length_predictor, "MEMORY_ANSWERS", 5.0)  # e to the 800th after 4,000 answers
    assert learned([100] * 4000).predict("chat", PROMPT, 0) == learned([100] * 100).predict("chat", PROMPT, 0)


@given(predictors(), st.integers(0, 40_000), st.integers(0, 300_000), st.integers(1, 300_000))
def test_a_prediction_exceeds_the_generated_tokens_and_stays_within_the_limit(
    predictor: LengthPredictor, prompt_tokens: int, generated: int, most: int
) -> None:
    predicted = predictor.predict("a", prompt_tokens, generated, most)
    assert generated < predicted <= max(most, generated + 1)


@given(predictors(), st.integers(0, 40_000), st.lists(st.integers(0, 100_000), min_size=2, max_size=2))
def test_a_prediction_never_falls_as_the_answer_grows(
    predictor: LengthPredictor, prompt_tokens: int, generated: list[int]
) -> None:
    less, more = sorted(generated)
    assert predictor.predict("a", prompt_tokens, less) <= predictor.predict("a", prompt_tokens, more)


@given(predictors(), st.integers(0, 20_000), st.lists(st.floats(0, 1), min_size=2, max_size=2))
def test_a_prediction_never_falls_as_the_quantile_rises(
    predictor: LengthPredictor, generated: int, quantiles: list[float]
) -> None:
    low, high = (predictor.predict("a", PROMPT, generated, quantile=q) for q in sorted(quantiles))
    assert low <= high


def test_beyond_the_longest_answer_one_more_token_is_predicted() -> None:
    predictor = LengthPredictor()
    assert predictor.predict("chat", PROMPT, 2 * LONGEST_TOKENS) == 2 * LONGEST_TOKENS + 1
