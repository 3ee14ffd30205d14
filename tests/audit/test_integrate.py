"""Integration of a function's uniforms, with hints and without, with right hints and wrong ones."""

import pytest

from pilotfish.audit.integrate import outcome_law


def threshold_walk(point):
    """Two tests and a draw by inversion from (0.2, 0.5, 0.3)."""
    accepted = 0
    for value, limit in zip(point[:2], (0.37, 0.81), strict=True):
        if not value < limit:
            break
        accepted += 1
    return (7,) * accepted, 0 if point[2] < 0.2 else 1 if point[2] < 0.7 else 2


EXPECTED = dict(enumerate((1 - 0.37, 0.37 * (1 - 0.81), 0.37 * 0.81)))


@pytest.mark.parametrize("hints", [[], [0.37, 0.81], [0.1, 0.9]])
def test_outcome_law_is_exact_whatever_the_hints(hints):
    law = outcome_law(threshold_walk, (0, 1, 2), dict.fromkeys(range(3), hints))
    for accepted, probability in EXPECTED.items():
        for token, share in enumerate((0.2, 0.5, 0.3)):
            assert law[(7,) * accepted, token] == pytest.approx(probability * share, abs=1e-12)
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)


def test_outcome_law_sees_one_number_used_twice():
    def shared(point):
        accepted = point[0] < 0.4
        return ((7,) if accepted else ()), 0 if point[0] < 0.7 else 1

    law = outcome_law(shared, (0, 1), {0: [0.4], 1: [0.5]})
    assert law[(7,), 0] == pytest.approx(0.4, abs=1e-12)
    assert law[(), 0] == pytest.approx(0.3, abs=1e-12)
    assert law[(), 1] == pytest.approx(0.3, abs=1e-12)


def test_outcome_law_finds_a_narrow_token_between_two_others():
    def narrow(point):
        return (), 0 if point[0] < 0.5 else 1 if point[0] < 0.5 + 1e-6 else 2

    law = outcome_law(narrow, (0,), {})
    assert law[(), 1] == pytest.approx(1e-6, abs=1e-12)
