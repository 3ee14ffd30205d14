import pytest

from pilotfish.bench.expected import expected_speed, pass_seconds
from pilotfish.bench.totals import compared
from pilotfish.errors import InvalidInputError
from tests.bench.runs import made_pair, made_run

COSTS = {"passes": [{"rows": 1, "seconds": 0.2}, {"rows": 3, "seconds": 0.25}]}


def test_formula_is_tokens_over_the_cost_of_a_round_in_plain_steps():
    """A plain step takes 0.25 s, 0.125 s of it around the pass; a round drafts for 0.05 s, its two rows add 0.05 s to
    the pass, and 0.05 s go by around it."""
    expected = expected_speed(compared([made_pair()]), COSTS)
    assert expected.tokens_per_round == pytest.approx(2.0)
    assert expected.drafted_per_round == pytest.approx(2.0)
    assert expected.draft_cost == pytest.approx(0.2)
    assert expected.row_cost == pytest.approx(0.2)
    assert expected.overhead == pytest.approx((0.05 - 0.125) / 0.25)
    assert expected.speedup == pytest.approx(2.0 / (1.4 - 0.3))
    assert expected.against(2.0)["error"] == pytest.approx(1 / 1.1 - 1)


def test_round_without_a_draft_costs_a_plain_step():
    expected = expected_speed(compared([made_pair(speculative=made_run())]), COSTS)
    assert expected.speedup == pytest.approx(1.0)


def test_nothing_decoded_is_refused():
    short = made_run(tokens=(1,), rounds=1, draft_sizes={})
    with pytest.raises(InvalidInputError, match="nothing to predict"):
        expected_speed(compared([made_pair(short, short)]), COSTS)


def test_pass_seconds_are_straight_lines_between_and_beyond():
    measured = {1: 1.0, 3: 2.0, 5: 4.0}
    assert [pass_seconds(measured, rows) for rows in (1, 2, 3, 4, 5, 7)] == [1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert pass_seconds({2: 1.0}, 9) == 1.0
