import pytest
import torch

from pilotfish.terms import Draft
from pilotfish.verify.laws import Law, draft_law, excess, ratio, survival


def law(*weights, dtype=torch.float32):
    return Law.of(torch.tensor(weights, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_law_divides_by_its_sum_in_float64(dtype):
    found = law(1.0, 3.0, dtype=dtype)
    assert found.prob(1) == 0.75
    assert found.scaled(0.5).tolist() == [0.125, 0.375]
    assert found.scaled(1.0).dtype == torch.float64


def test_scaled_leaves_the_law_as_it_was():
    found = law(1.0, 3.0, dtype=torch.float64)
    found.scaled(0.1).zero_()
    assert found.weights.tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    ("uniform", "token"), [(2.0**-53, 1), (0.249, 1), (0.25, 4), (0.251, 4), (0.999, 4), (1 - 2.0**-53, 4)]
)
def test_law_draw_inverts_the_cumulative_law_and_skips_tokens_without_mass(uniform, token):
    assert law(0.0, 0.25, 0.0, 0.0, 0.75, 0.0).draw(uniform) == token


def test_law_draw_stays_inside_when_rounding_lifts_the_threshold():
    weights = torch.zeros(50, dtype=torch.float64)
    weights[3:40] = 0.1
    assert Law.of(weights).draw(1 - 2.0**-53) == 39


def test_excess_is_the_normalised_positive_part():
    rest = excess(0.5, law(0.5, 0.5, 0.0), law(0.125, 0.5, 0.375))
    assert rest.total == 0.125
    assert rest.scaled(1.0).tolist() == [1.0, 0.0, 0.0]


def test_excess_of_equal_laws_is_nothing_whatever_rounding_their_sum_has():
    row = torch.rand(1001, generator=torch.Generator().manual_seed(0)).softmax(-1)
    assert excess(1.0, Law.of(row), Law.of(row.clone())) is None


def test_ratio_is_zero_where_the_target_has_nothing_and_infinite_where_only_the_draft_has_nothing():
    assert ratio(law(0.0, 1.0), law(0.0, 1.0), 0) == 0.0
    assert ratio(law(0.0, 1.0), law(0.5, 0.5), 0) == 0.0
    assert ratio(law(0.5, 0.5), law(0.0, 1.0), 0) == float("inf")
    assert ratio(law(0.5, 0.5), law(0.25, 0.75), 0) == 2.0


def test_survival_is_one_where_its_denominator_is_zero():
    assert survival(None, 1.0) == 1.0
    assert survival(None, 0.5) == 0.0
    assert survival(Law(torch.ones(2), 0.25), 0.75) == 0.5


def test_draft_law_without_laws_is_a_point_mass():
    assert draft_law(Draft.chain([2]), 0, law(1.0, 1.0, 1.0)).scaled(1.0).tolist() == [0.0, 0.0, 1.0]
