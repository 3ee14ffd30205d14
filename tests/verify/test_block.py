import math

import pytest
import torch

from pilotfish.errors import SpeculativeConfigError
from pilotfish.terms import EMPTY_DRAFT, Draft, Verdict
from pilotfish.verify import block, rejection
from pilotfish.verify.block import block_weights, next_law

TARGET = torch.tensor([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3], [0.1, 0.2, 0.7]], dtype=torch.float64)
DRAFTED = torch.tensor([[0.4, 0.4, 0.2], [0.2, 0.2, 0.6]], dtype=torch.float64)
DRAFT = Draft.chain([0, 2], DRAFTED)


def uniforms(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_block_weights_are_those_of_the_paper():
    found = block_weights(DRAFT, TARGET)
    # P_1 = 0.2/0.4; P_2 = P_1 * 0.3/0.6; D_1 = [0.5 * 0.6 - 0.2]+ = 0.1; h_1 = 0.1 / (0.1 + 1 - 0.5)
    assert found.prefix == pytest.approx((1.0, 0.5, 0.25))
    assert found.acceptance == pytest.approx((1 / 6, 0.25))
    assert block_weights(EMPTY_DRAFT, TARGET[:1]).acceptance == ()


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ((0.9, 0.9), Verdict((), 1)),
        ((0.1, 0.9), Verdict((0,), 0)),
        ((0.9, 0.1), Verdict((0, 1), 2)),
        ((0.1, 0.1), Verdict((0, 1), 2)),
    ],
)
def test_block_accepts_up_to_the_last_success(accept, expected):
    assert block(DRAFT, TARGET, uniforms(*accept), 0.4) == expected


def test_block_residual_is_weighted_by_the_prefix():
    assert next_law(DRAFT, TARGET, 1, 0.5).scaled(1.0).tolist() == [1.0, 0.0, 0.0]
    assert next_law(DRAFT, TARGET, 0, 1.0).scaled(1.0).tolist() == pytest.approx([0.0, 0.5, 0.5])
    assert next_law(DRAFT, TARGET, 2, 0.25).scaled(1.0).tolist() == pytest.approx([0.1, 0.2, 0.7])


def test_block_of_an_empty_draft_is_a_plain_draw():
    assert block(EMPTY_DRAFT, TARGET[:1], uniforms(), 0.21) == Verdict((), 1)


def test_block_at_the_very_weight_rejects():
    last = block_weights(DRAFT, TARGET).acceptance[-1]
    assert block(DRAFT, TARGET, uniforms(0.99, last), 0.5).path == ()
    assert block(DRAFT, TARGET, uniforms(0.99, math.nextafter(last, 0)), 0.5).path == (0, 1)


@pytest.mark.parametrize("uniform", [0.0, 2.0**-53])
def test_block_never_accepts_a_token_of_probability_zero_nor_what_follows_it(uniform):
    target = torch.tensor([[0.0, 1.0], [0.5, 0.5], [0.5, 0.5]])
    draft = Draft.chain([0, 1], torch.tensor([[1.0, 0.0], [0.1, 0.9]]))
    assert block(draft, target, uniforms(uniform, uniform), 0.5) == Verdict((), 1)


def test_block_always_accepts_where_the_laws_agree():
    rows = torch.rand(3, 1001, generator=torch.Generator().manual_seed(0)).softmax(-1)
    draft = Draft.chain([7, 8], rows[:2])
    assert block_weights(draft, rows).acceptance == (1.0, 1.0)
    assert block(draft, rows, uniforms(1 - 2.0**-53, 1 - 2.0**-53), 0.5).path == (0, 1)


def test_block_of_one_token_is_rejection():
    generator = torch.Generator().manual_seed(1)
    for _ in range(100):
        rows = torch.rand(3, 4, generator=generator).softmax(-1)
        draft = Draft.chain([int(torch.randint(4, (), generator=generator))], rows[2:])
        accept, resample = torch.rand(1, generator=generator).double(), torch.rand((), generator=generator).item()
        assert block(draft, rows[:2], accept, resample) == rejection(draft, rows[:2], accept, resample)


def test_block_refuses_a_tree_by_name():
    draft = Draft((0, 1), (-1, -1), DRAFTED)
    with pytest.raises(SpeculativeConfigError, match=r"'block' takes chains only.*traversal"):
        block(draft, TARGET, uniforms(0.5, 0.5), 0.5)
