import math

import pytest
import torch

from pilotfish.errors import SpeculativeConfigError
from pilotfish.terms import EMPTY_DRAFT, Draft, Verdict
from pilotfish.verify import rejection
from pilotfish.verify.rejection import acceptance, next_law

TARGET = torch.tensor([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3], [0.1, 0.2, 0.7]], dtype=torch.float64)
DRAFTED = torch.tensor([[0.4, 0.4, 0.2], [0.2, 0.2, 0.6]], dtype=torch.float64)
DRAFT = Draft.chain([0, 2], DRAFTED)


def uniforms(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_acceptance_is_the_ratio_capped_at_one():
    assert acceptance(DRAFT, TARGET) == pytest.approx((0.5, 0.5))
    assert acceptance(Draft.chain([1, 0], DRAFTED), TARGET) == (1.0, 1.0)
    assert acceptance(EMPTY_DRAFT, TARGET[:1]) == ()


@pytest.mark.parametrize(
    ("accept", "resample", "expected"),
    [
        ((0.51, 0.1), 0.3, Verdict((), 1)),
        ((0.51, 0.1), 0.6, Verdict((), 2)),
        ((0.49, 0.51), 0.9, Verdict((0,), 0)),
        ((0.49, 0.49), 0.05, Verdict((0, 1), 0)),
        ((0.49, 0.49), 0.25, Verdict((0, 1), 1)),
        ((0.49, 0.49), 0.35, Verdict((0, 1), 2)),
    ],
)
def test_rejection_accepts_below_the_ratio_and_draws_residual_or_bonus(accept, resample, expected):
    assert rejection(DRAFT, TARGET, uniforms(*accept), resample) == expected


def test_rejection_of_an_empty_draft_is_a_plain_draw():
    assert rejection(EMPTY_DRAFT, TARGET[:1], uniforms(), 0.21) == Verdict((), 1)


def test_rejection_at_the_very_ratio_rejects():
    (exact, _) = acceptance(DRAFT, TARGET)
    assert rejection(DRAFT, TARGET, uniforms(exact, 0.1), 0.3).path == ()
    assert rejection(DRAFT, TARGET, uniforms(math.nextafter(exact, 0), 0.9), 0.3).path == (0,)


@pytest.mark.parametrize("uniform", [0.0, 2.0**-53])
def test_rejection_never_accepts_a_token_of_probability_zero(uniform):
    target = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    draft = Draft.chain([0], torch.tensor([[1.0, 0.0]]))
    assert rejection(draft, target, uniforms(uniform), 0.5) == Verdict((), 1)


def test_rejection_always_accepts_where_the_laws_agree():
    row = torch.rand(1, 1001, generator=torch.Generator().manual_seed(0)).softmax(-1)
    draft = Draft.chain([7], row)
    assert rejection(draft, row.repeat(2, 1), uniforms(1 - 2.0**-53), 0.5).path == (0,)
    assert torch.equal(next_law(draft, row.repeat(2, 1), 0).weights, row[0])  # nothing left over: p itself


def test_rejection_of_a_point_mass_accepts_with_the_targets_probability_and_removes_the_token():
    draft = Draft.chain([1])
    assert acceptance(draft, TARGET[:2]) == (0.5,)
    assert next_law(draft, TARGET[:2], 0).scaled(1.0).tolist() == pytest.approx([0.4, 0.0, 0.6])


def test_rejection_refuses_a_tree_by_name():
    draft = Draft((0, 1), (-1, -1), DRAFTED)
    with pytest.raises(SpeculativeConfigError, match=r"'rejection' takes chains only.*traversal"):
        rejection(draft, TARGET, uniforms(0.5, 0.5), 0.5)


def test_rejection_refuses_laws_that_do_not_fit_the_draft():
    with pytest.raises(AssertionError, match="one target law"):
        rejection(DRAFT, TARGET[:2], uniforms(0.5, 0.5), 0.5)
    with pytest.raises(AssertionError, match="one vocabulary"):
        rejection(DRAFT, TARGET[:, :2], uniforms(0.5, 0.5), 0.5)
