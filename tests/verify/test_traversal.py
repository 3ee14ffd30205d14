import pytest
import torch

from pilotfish.terms import EMPTY_DRAFT, ROOT, Draft, Verdict
from pilotfish.verify import block, traversal
from pilotfish.verify.traversal import stops

TREE_SHAPE = (-1, -1, 0, 0, 1)


def uniforms(*values):
    return torch.tensor(values, dtype=torch.float64)


def random_rows(count, generator, vocab=4):
    return (2 * torch.randn(count, vocab, generator=generator)).softmax(-1)


def test_stops_come_leaf_by_leaf_and_end_with_the_root():
    rows = random_rows(11, torch.Generator().manual_seed(0))
    draft = Draft((0, 1, 2, 3, 0), TREE_SHAPE, rows[6:])
    found = list(stops(draft, rows[:6]))
    assert [stop.node for stop in found] == [2, 3, 0, 4, 1, ROOT]
    assert found[-1].acceptance == 1.0
    assert all(0 <= stop.acceptance <= 1 for stop in found)
    # A leaf of the draft goes on with the target's own law there, untouched by any deletion.
    for stop in found:
        if stop.node in (2, 3, 4):
            assert torch.equal(stop.law.weights, rows[stop.node + 1])


def test_traversal_ends_at_the_first_success_in_that_order():
    rows = random_rows(11, torch.Generator().manual_seed(0))
    draft = Draft((0, 1, 2, 3, 0), TREE_SHAPE, rows[6:])
    found = list(stops(draft, rows[:6]))
    paths = {2: (0, 2), 3: (0, 3), 0: (0,), 4: (1, 4), 1: (1,), ROOT: ()}
    for index, stop in enumerate(found):
        accept = [1 - 2.0**-53] * 5
        for later in found[index:-1]:
            accept[later.node] = 0.0 if later.acceptance > 0 else 0.5
        if stop.acceptance == 0 or any(earlier.acceptance == 1 for earlier in found[:index]):
            continue
        expected = Verdict(paths[stop.node], stop.law.draw(0.4))
        assert traversal(draft, rows[:6], uniforms(*accept), 0.4) == expected


def test_traversal_on_a_chain_gives_blocks_verdict_for_the_same_uniforms():
    generator = torch.Generator().manual_seed(1)
    accepted = set()
    for _ in range(300):
        k = int(torch.randint(1, 5, (), generator=generator))
        rows = random_rows(2 * k + 1, generator)
        draft = Draft.chain(torch.randint(4, (k,), generator=generator).tolist(), rows[k + 1 :])
        accept, resample = torch.rand(k, generator=generator).double(), torch.rand((), generator=generator).item()
        verdict = traversal(draft, rows[: k + 1], accept, resample)
        assert verdict == block(draft, rows[: k + 1], accept, resample)
        accepted.add(len(verdict.path))
    assert accepted == {0, 1, 2, 3, 4}


def test_traversal_of_an_empty_draft_is_a_plain_draw():
    assert traversal(EMPTY_DRAFT, torch.tensor([[0.2, 0.5, 0.3]]), uniforms(), 0.21) == Verdict((), 1)


def test_traversal_computes_nothing_behind_the_place_where_it_ends():
    rows = random_rows(11, torch.Generator().manual_seed(0))
    rows[2] = torch.nan  # the law at node 1, which comes after the first branch
    draft = Draft((0, 1, 2, 3, 0), TREE_SHAPE, rows[6:])
    assert traversal(draft, rows[:6], uniforms(0, 0, 0, 0, 0), 0.4).path == (0, 2)


@pytest.mark.parametrize("uniform", [0.0, 2.0**-53])
def test_traversal_never_accepts_a_token_of_probability_zero(uniform):
    target = torch.tensor([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [0.3, 0.3, 0.4]])
    laws = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])
    verdict = traversal(Draft((0, 1), (-1, -1), laws), target, uniforms(uniform, 1 - 2.0**-53), 0.3)
    assert verdict.path == ()
    assert verdict.next_token == 2  # 1 was drawn, tested and deleted: what is left of p there is 2


def test_traversal_of_certain_siblings_accepts_each_with_the_targets_probability():
    target = torch.tensor([[0.2, 0.5, 0.3]] * 3, dtype=torch.float64)
    found = list(stops(Draft((1, 2), (-1, -1)), target))
    assert [stop.acceptance for stop in found] == pytest.approx([0.5, 0.6, 1.0])
    assert found[-1].law.scaled(1.0).tolist() == pytest.approx([1.0, 0.0, 0.0])


def test_traversal_needs_a_uniform_for_every_node():
    with pytest.raises(AssertionError, match="one uniform per node"):
        traversal(Draft.chain([0]), torch.full((2, 3), 1 / 3), uniforms(), 0.5)
