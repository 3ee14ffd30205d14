import pytest

from pilotfish.terms import EMPTY_DRAFT, Draft, Verdict
from pilotfish.verify import match

TREE = Draft(tokens=(5, 6, 7, 5, 8, 9), parents=(-1, -1, 0, 0, 1, 4))


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ([1, 2, 3, 4], Verdict((), 1)),
        ([5, 2, 3, 4], Verdict((0,), 2)),
        ([5, 6, 3, 4], Verdict((0, 1), 3)),
        ([5, 6, 7, 4], Verdict((0, 1, 2), 4)),
        ([1, 6, 7, 4], Verdict((), 1)),
    ],
)
def test_match_keeps_a_chain_as_long_as_it_agrees(choices, expected):
    assert match(Draft.chain([5, 6, 7]), choices) == expected


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ([4, 7, 8, 0, 0, 0, 0], Verdict((), 4)),
        ([5, 7, 8, 1, 0, 0, 0], Verdict((0, 2), 1)),
        ([5, 5, 8, 0, 2, 0, 0], Verdict((0, 3), 2)),
        ([5, 8, 8, 0, 0, 0, 0], Verdict((0,), 8)),
        ([6, 7, 8, 0, 0, 9, 3], Verdict((1, 4, 5), 3)),
        ([6, 7, 8, 0, 0, 1, 3], Verdict((1, 4), 1)),
    ],
)
def test_match_walks_a_tree_along_the_choices(choices, expected):
    assert match(TREE, choices) == expected


def test_match_takes_the_first_of_equal_siblings():
    draft = Draft(tokens=(5, 5, 6), parents=(-1, -1, 1))
    assert match(draft, [5, 6, 6, 0]) == Verdict((0,), 6)


def test_match_of_an_empty_draft_is_a_plain_step():
    assert match(EMPTY_DRAFT, [3]) == Verdict((), 3)


def test_match_needs_a_choice_for_every_node():
    with pytest.raises(AssertionError, match="one choice"):
        match(Draft.chain([5]), [5])


def test_match_emits_the_plain_continuation_for_every_draft():
    """The verdict's tokens are the beginning of what plain decoding says, whatever tree was drafted."""

    def plain(context):
        return (sum(context) * 7 + len(context)) % 3

    def continuation(length):
        tokens = ()
        while len(tokens) < length:
            tokens += (plain(tokens),)
        return tokens

    shape = (-1, -1, 0, 0, 1, 1, 2)
    accepted = set()
    for number in range(3 ** len(shape)):
        tokens = tuple(number // 3**node % 3 for node in range(len(shape)))
        draft = Draft(tokens, shape)
        paths = [()]
        for node, parent in enumerate(shape):
            paths.append((*paths[parent + 1], tokens[node]))
        verdict = match(draft, [plain(path) for path in paths])
        emitted = verdict.tokens(draft)
        assert emitted == continuation(len(emitted))
        accepted.add(len(verdict.path))
    assert accepted == {0, 1, 2, 3}
