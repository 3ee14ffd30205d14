"""The auditor's own arithmetic against scipy, and its false-alarm rate and power as promised."""

import numpy as np
import pytest
from scipy import stats

from pilotfish.audit.statistics import (
    Tally,
    chi2_critical,
    chi2_sf,
    independence_fit,
    needed_noncentrality,
    noncentral_sf,
    smallest_total_variation,
    two_sample_fit,
    uniform_fit,
)


@pytest.mark.parametrize("degrees", [1, 4, 24, 130])
@pytest.mark.parametrize("value", [0.0, 3.0, 40.0, 250.0])
def test_chi_square_tail_is_scipys(degrees, value):
    assert chi2_sf(value, degrees) == pytest.approx(stats.chi2.sf(value, degrees), rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("alpha", [1e-2, 1e-4, 1e-7])
def test_critical_value_has_the_tail_asked_for(alpha):
    assert stats.chi2.sf(chi2_critical(24, alpha), 24) == pytest.approx(alpha, rel=1e-6)


def test_noncentral_tail_is_scipys():
    for degrees, noncentrality, value in [(4, 50.0, 30.0), (24, 90.0, 75.0), (2, 0.0, 3.0)]:
        expected = stats.ncx2.sf(value, degrees, noncentrality) if noncentrality else stats.chi2.sf(value, degrees)
        assert noncentral_sf(value, degrees, noncentrality) == pytest.approx(expected, rel=1e-6)


def test_smallest_departure_is_seen_with_the_power_it_promises():
    alpha, degrees = 1e-6, 24
    assert stats.ncx2.sf(chi2_critical(degrees, alpha), degrees, needed_noncentrality(degrees, alpha)) == pytest.approx(
        0.99, abs=1e-6
    )
    samples = 300_000
    smallest = smallest_total_variation(samples, degrees, alpha)
    assert 4 * samples * smallest**2 == pytest.approx(needed_noncentrality(degrees, alpha), rel=1e-6)


def random_law(rng, cells):
    return rng.dirichlet(np.full(cells, 2.0))


def fits(count, samples, cells, shift=0.0):
    """p-values of tallies over several laws; `shift` moves that much mass from the second half to the first."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(count):
        tally = Tally.empty(cells)
        for _ in range(5):
            law = random_law(rng, cells)
            drawn = law.copy()
            drawn[: cells // 2] *= 1 + shift / law[: cells // 2].sum()
            drawn[cells // 2 :] *= 1 - shift / law[cells // 2 :].sum()
            tally.add(rng.multinomial(samples // 5, drawn).astype(float), law)
        found.append(tally.fit().p_value)
    return np.array(found)


def test_tally_over_contexts_has_uniform_p_values():
    """n = 1300 p-values, Kolmogorov-Smirnov at 1e-6; sees a distribution off by 0.09 with probability 0.99."""
    assert stats.kstest(fits(1500, 4000, 25), "uniform").pvalue > 1e-6


def test_tally_sees_the_departure_it_promises_to_see():
    """Of 200 samples with exactly the promised departure, 0.99 are seen; fewer than 190 has probability 1e-5."""
    alpha = 1e-5
    shift = smallest_total_variation(20_000, 9, alpha)
    assert (fits(200, 20_000, 10, shift) < alpha).sum() >= 190
    assert (fits(200, 20_000, 10) < alpha).sum() == 0


def pair_fits(count, samples, shift=0.0):
    """p-values of the joint law of two tokens, tested step by step; `shift` is a total variation, evenly spread."""
    rng = np.random.default_rng(7)
    raised = rng.permutation(25) < 12  # the same cells in every context: others would cancel, and are not promised
    found = []
    for _ in range(count):
        tally = Tally.empty(5, 6)
        for _ in range(4):
            joint = rng.dirichlet(np.full(25, 3.0))
            drawn = joint * np.where(raised, 1 + shift / joint[raised].sum(), 1 - shift / joint[~raised].sum())
            cells = rng.choice(25, size=samples // 4, p=drawn / drawn.sum())
            first, second = cells // 5, cells % 5
            law = joint.reshape(5, 5)
            opening = np.broadcast_to(law.sum(1), (len(cells), 5))
            tally.add_steps(np.zeros_like(first), first, opening, 0)
            tally.add_steps(1 + first, second, (law / law.sum(1, keepdims=True))[first], len(cells))
        found.append(tally.fit())
    return found


def test_joint_law_tested_step_by_step_keeps_its_false_alarms_and_sees_what_it_promises():
    """300 p-values, Kolmogorov-Smirnov at 1e-6. Of 60 samples with the promised departure 0.99 are seen; fewer than
    54 has probability 1e-5."""
    alpha = 2e-6
    honest = pair_fits(300, 6_000)
    assert {fit.degrees for fit in honest} == {24}
    assert honest[0].samples == 6_000
    assert stats.kstest([fit.p_value for fit in honest], "uniform").pvalue > 1e-6
    shift = smallest_total_variation(40_000, 24, alpha)
    assert sum(fit.p_value < alpha for fit in pair_fits(60, 40_000, shift)) >= 54


def test_tally_pools_rare_cells_and_leaves_certain_ones_alone():
    rare = Tally.empty(4)
    rare.add(np.array([900.0, 97.0, 2.0, 1.0]), np.array([0.9, 0.097, 0.002, 0.001]))
    assert rare.fit().degrees == 1
    certain = Tally.empty(3)
    certain.add(np.array([500.0, 0.0, 0.0]), np.array([1.0, 0.0, 0.0]))
    assert certain.fit().degrees == 0
    assert certain.fit().p_value == 1.0


def test_tallies_add_up():
    rng = np.random.default_rng(2)
    whole, left, right = (Tally.empty(6) for _ in range(3))
    for part in (left, right):
        law = random_law(rng, 6)
        counts = rng.multinomial(3000, law).astype(float)
        part.add(counts, law)
        whole.add(counts, law)
    left.merge(right)
    assert left.fit() == whole.fit()


def test_uniformity_and_independence_fits_pass_the_good_and_fail_the_bad():
    rng = np.random.default_rng(3)
    left, right = rng.random(20_000), rng.random(20_000)
    assert uniform_fit(left, 32).p_value > 1e-6
    assert uniform_fit(left**1.1, 32).p_value < 1e-6
    assert independence_fit(left, right, 8).p_value > 1e-6
    assert independence_fit(left, np.where(rng.random(20_000) < 0.1, left, right), 8).p_value < 1e-6


def test_two_sample_statistic_is_scipys():
    left, right = np.array([120.0, 640.0, 240.0]), np.array([300.0, 1250.0, 450.0])
    value, degrees = two_sample_fit(left, right)
    expected = stats.chi2_contingency(np.stack([left, right]), correction=False)
    assert (value, degrees) == (pytest.approx(expected.statistic), expected.dof)
