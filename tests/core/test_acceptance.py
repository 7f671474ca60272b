"""Acceptance of drafts, measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.timing.acceptance_rate import PRIOR_TRIALS, Acceptance, Drafted, observe
from penstock_core.timing.learned_tiers import MOST_TIERS
from penstock_core.timing.speculation import Speculation

CONFIGURED = Speculation(max_tokens=4, acceptance=0.7)


def chance(acceptance: Acceptance, tier: str = "chat") -> float:
    return acceptance.measured(CONFIGURED).acceptance_of(tier)


def test_the_acceptance_rate_is_the_prior_without_observations() -> None:
    assert chance(Acceptance(0.6)) == 0.6
    assert observe(Acceptance(0.6), []) == Acceptance(0.6)


def test_drafts_after_the_first_wrong_one_are_not_counted() -> None:
    """One accepted of four: two trials, one success; the other two do not count."""
    seen = observe(Acceptance(0.5), [Drafted("chat", 4, 1)])
    assert (seen.all.trials, seen.all.successes) == (2, 1)
    assert observe(Acceptance(0.5), [Drafted("chat", 4, 4)]).all == (4, 4)
    assert observe(Acceptance(0.5), [Drafted("chat", 4, 0)]).all == (1, 0)


def test_the_prior_fades_as_trials_come() -> None:
    seen = observe(Acceptance(1.0), [Drafted("chat", 1, 0)] * int(PRIOR_TRIALS))
    assert seen.measured(CONFIGURED).acceptance == pytest.approx(0.5)


def test_a_measured_rate_replaces_the_configured_one() -> None:
    seen = Acceptance(0.2)
    for _ in range(100):
        seen = observe(seen, [Drafted("chat", 1, 1)] * 45 + [Drafted("chat", 1, 0)] * 5)
    assert chance(seen) == pytest.approx(0.9, abs=0.01)


def test_a_tier_uses_the_rate_of_all_tiers_until_it_has_enough_trials() -> None:
    seen = observe(Acceptance(0.5), [Drafted("code", 1, 1)] * 4000)
    assert seen.measured(CONFIGURED).acceptance_of("unseen") > 0.95
    seen = observe(seen, [Drafted("chat", 1, 0)])
    assert 0.9 < chance(seen, "chat") < chance(seen, "code")
    seen = observe(seen, [Drafted("chat", 1, 0)] * 2000)
    assert chance(seen, "chat") < 0.1
    assert chance(seen, "code") > 0.9


def test_old_trials_fade() -> None:
    seen = observe(Acceptance(0.5), [Drafted("chat", 1, 1)] * 5000)
    for _ in range(40):
        seen = observe(seen, [Drafted("chat", 1, 0)] * 500)
    assert chance(seen) < 0.05


@given(
    st.floats(0, 1),
    st.lists(st.integers(0, 4).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=30),
)
def test_an_estimate_is_always_a_probability(prior: float, pairs: list[tuple[int, int]]) -> None:
    drafted = [Drafted("chat", drafts, accepted) for drafts, accepted in pairs]
    measured = observe(Acceptance(prior), drafted).measured(CONFIGURED)
    assert 0.0 <= measured.acceptance <= 1.0
    assert 0.0 <= measured.acceptance_of("chat") <= 1.0


def test_tiers_chosen_by_clients_take_bounded_memory_and_evict_no_real_tier() -> None:
    seen = Acceptance(0.5)
    for number in range(5 * MOST_TIERS):
        seen = observe(seen, [Drafted("chat", 1, 1), Drafted(f"invented-{number}", 1, 0)])
    assert len(seen.measured(CONFIGURED).by_tier) == MOST_TIERS
    assert seen.tiers["chat"].trials == pytest.approx(5 * MOST_TIERS, rel=0.05)
    assert f"invented-{5 * MOST_TIERS - 1}" in seen.tiers
    at_once = observe(seen, [Drafted(f"other-{number}", 1, 0) for number in range(MOST_TIERS + 1)])
    assert set(at_once.tiers) == {f"other-{number}" for number in range(1, MOST_TIERS + 1)}
