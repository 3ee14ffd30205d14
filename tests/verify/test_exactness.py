"""Every ratio rule by exact enumeration: all drafts, all outcomes, uniforms integrated out, against plain Python.

What is summed over are the rules' own acceptance probabilities and next-token laws. The laws of the toys, the
probabilities of the drafts and the expected joint law are not computed by the package.
"""

import itertools
from collections import defaultdict

import pytest
import torch

from pilotfish.terms import ROOT, Draft
from pilotfish.verify.block import block_weights
from pilotfish.verify.block import next_law as block_next_law
from pilotfish.verify.laws import Law, draft_law
from pilotfish.verify.rejection import acceptance
from pilotfish.verify.rejection import next_law as rejection_next_law
from pilotfish.verify.traversal import stops

EXACT = 1e-12
CHAINS = {k: tuple(range(-1, k - 1)) for k in (1, 2, 3)}
TREES = {
    "2x1": (-1, -1, 0, 1),
    "(2,2)": (-1, -1, 0, 0, 1, 1),
    "3-star": (-1, -1, -1),
    "ragged": (-1, 0, -1, 0, 3),
}

# --- drafts: every one that can be drawn, with its probability


def contexts_of(tokens, parents):
    """The root's context and each node's."""
    contexts = [()]
    for token, parent in zip(tokens, parents, strict=True):
        contexts.append((*contexts[parent + 1], token))
    return contexts


def sampled_drafts(toy, parents, replacement=True):
    """(draft, probability) of a tree of this shape, each child drawn from the law at its parent."""
    vocab = len(toy.law(()))

    def grow(tokens, rows, probability):
        node = len(tokens)
        if node == len(parents):
            yield Draft(tokens, parents, torch.stack(rows)), probability
            return
        row = toy.row(contexts_of(tokens, parents[:node])[parents[node] + 1]).clone()
        if not replacement:
            row[[token for sibling, token in enumerate(tokens) if parents[sibling] == parents[node]]] = 0.0
        total = sum(row.tolist())
        for token in range(vocab):
            if row[token] > 0:
                yield from grow((*tokens, token), [*rows, row], probability * (row[token].item() / total))

    return grow((), [], 1.0)


def certain_draft(parents, vocab):
    """The one draft of a drafter that is sure of itself: point masses, siblings different."""
    tokens = tuple((7 * parent + 2 * node + 3) % vocab for node, parent in enumerate(parents))
    return [(Draft(tokens, parents), 1.0)]


# --- outcomes of a rule on a draft: (accepted path, its probability, law of the next token)


def rejection_outcomes(draft, target_probs, law=rejection_next_law):
    reached = 1.0
    probabilities = acceptance(draft, target_probs)
    for accepted, probability in enumerate((*probabilities, 0.0)):
        yield range(accepted), reached * (1 - probability), law(draft, target_probs, accepted)
        reached *= probability


def block_outcomes(draft, target_probs, law=block_next_law):
    weights = block_weights(draft, target_probs)
    later_fail = 1.0
    for accepted in range(len(draft), 0, -1):
        success = weights.acceptance[accepted - 1]
        yield range(accepted), later_fail * success, law(draft, target_probs, accepted, weights.prefix[accepted])
        later_fail *= 1 - success
    yield range(0), later_fail, law(draft, target_probs, 0, 1.0)


def traversal_outcomes(draft, target_probs):
    reached = 1.0
    for stop in stops(draft, target_probs):
        path, node = [], stop.node
        while node != ROOT:
            path.insert(0, node)
            node = draft.parents[node]
        yield path, reached * stop.acceptance, stop.law
        reached *= 1 - stop.acceptance
    assert reached < EXACT, "the root always holds"


RULES = {"rejection": rejection_outcomes, "block": block_outcomes, "traversal": traversal_outcomes}


# --- what comes out, and what should


def emitted_law(outcomes, target, drafts):
    """Probability of every emitted token sequence, and the expected number of accepted tokens."""
    emitted, length, mass = defaultdict(float), 0.0, 0.0
    for draft, drawn in drafts:
        target_probs = target.rows(contexts_of(draft.tokens, draft.parents))
        mass += drawn
        for path, probability, law in outcomes(draft, target_probs):
            accepted = tuple(draft.tokens[node] for node in path)
            length += drawn * probability * len(accepted)
            dense = law.scaled(1.0) if isinstance(law, Law) else law
            for token, next_probability in enumerate(dense.tolist()):
                emitted[(*accepted, token)] += drawn * probability * next_probability
    assert mass == pytest.approx(1, abs=EXACT)
    return emitted, length


def joint_law(target, length):
    """The target's own law of the next `length` tokens, in plain Python."""
    joint = {(): 1.0}
    for _ in range(length):
        joint = {
            (*context, token): probability * p
            for context, probability in joint.items()
            for token, p in enumerate(target.law(context))
        }
    return joint


def error(outcomes, target, drafts, depth):
    """Largest difference between the law of the first depth + 1 tokens, short outputs continued, and the target's."""
    emitted, _ = emitted_law(outcomes, target, drafts)
    found = defaultdict(float)
    for tokens, probability in emitted.items():
        continued = {tokens: probability}
        while len(next(iter(continued))) < depth + 1:
            continued = {
                (*context, token): mass * p
                for context, mass in continued.items()
                for token, p in enumerate(target.law(context))
            }
        for context, mass in continued.items():
            found[context] += mass
    expected = joint_law(target, depth + 1)
    return max(abs(found[tokens] - expected.get(tokens, 0.0)) for tokens in {*found, *expected})


def depth_of(parents):
    return max(len(context) for context in contexts_of((0,) * len(parents), parents))


PAIRS = (
    "random",
    "peaked",
    "equal",
    "ties",
    "disjoint",
    "one-hot target",
    "one-hot draft",
    "equal one-hot",
    "p = 0 where q > 0",
    "q = 0 where p > 0",
)


def pairs(toys, vocab):
    """(target, drafter) toys: ordinary ones and the adversarial ones."""
    uniform, last = [1 / vocab] * vocab, [0.0] * (vocab - 1) + [1.0]
    first = [1.0] + [0.0] * (vocab - 1)
    lower, upper = [1.0, 3.0] + [0.0] * (vocab - 2), [0.0, 0.0] + [1.0] * (vocab - 2)
    hole = [0.0] + [1.0 + token for token in range(vocab - 1)]
    found = {
        "random": (toys.random(1, vocab), toys.random(2, vocab)),
        "peaked": (toys.random(3, vocab, 0.3), toys.random(4, vocab, 0.3)),
        "equal": (toys.random(5, vocab), toys.random(5, vocab)),
        "ties": (toys.fixed(uniform, hole), toys.fixed(uniform)),
        "disjoint": (toys.fixed(lower, upper), toys.fixed(upper, lower)),
        "one-hot target": (toys.fixed(first, last), toys.random(6, vocab)),
        "one-hot draft": (toys.random(7, vocab), toys.fixed(last, first)),
        "equal one-hot": (toys.fixed(last, first), toys.fixed(last, first)),
        "p = 0 where q > 0": (toys.fixed(hole), toys.random(8, vocab)),
        "q = 0 where p > 0": (toys.random(9, vocab), toys.fixed(hole, lower)),
    }
    assert tuple(found) == PAIRS
    return found


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("vocab", "k"), [(3, 1), (3, 2), (3, 3), (5, 1), (5, 2)])
def test_rule_on_sampled_chains_emits_the_targets_joint_law(toys, rule, pair, vocab, k):
    target, drafter = pairs(toys, vocab)[pair]
    assert error(RULES[rule], target, sampled_drafts(drafter, CHAINS[k]), k) < EXACT


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("vocab", [3, 5])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_rule_on_a_point_mass_chain_emits_the_targets_joint_law(toys, rule, vocab, k):
    for target, _ in pairs(toys, vocab).values():
        assert error(RULES[rule], target, certain_draft(CHAINS[k], vocab), k) < EXACT


@pytest.mark.parametrize("pair", ["random", "equal", "one-hot target", "p = 0 where q > 0"])
@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("shape", TREES)
def test_traversal_on_trees_emits_the_targets_joint_law(toys, shape, replacement, pair):
    target, drafter = pairs(toys, 3)[pair]
    drafts = sampled_drafts(drafter, TREES[shape], replacement)
    assert error(traversal_outcomes, target, drafts, depth_of(TREES[shape])) < EXACT


@pytest.mark.parametrize("shape", TREES)
def test_traversal_on_trees_of_point_masses_emits_the_targets_joint_law(toys, shape):
    for target, _ in pairs(toys, 5).values():
        assert error(traversal_outcomes, target, certain_draft(TREES[shape], 5), depth_of(TREES[shape])) < EXACT


def test_traversal_takes_certain_siblings_before_a_sampled_one(toys):
    """Each child carries its own law: the first a point mass, the second drawn from what is left."""
    target, drafter = toys.random(1, 4), toys.random(2, 4)
    row = drafter.row(()).clone()
    certain = torch.zeros(4)
    certain[2], row[2] = 1.0, 0.0
    drafts = [
        (Draft((2, token), (-1, -1), torch.stack([certain, row])), row[token].item() / sum(row.tolist()))
        for token in (0, 1, 3)
    ]
    assert error(traversal_outcomes, target, drafts, 1) < EXACT


# --- known-bad controls: the same check must fail


def plain_bonus(draft, target_probs, accepted, *_):
    return Law.of(target_probs[accepted])


def not_renormalised(draft, target_probs, accepted, *_):
    target_law = Law.of(target_probs[accepted])
    if accepted == len(draft):
        return target_law
    return (target_law.scaled(1.0) - draft_law(draft, accepted, target_law).scaled(1.0)).clamp(min=0)


def wrong_row(draft, target_probs, accepted, *_):
    if accepted == len(draft):
        return Law.of(target_probs[accepted - 1])
    return rejection_next_law(draft, target_probs, accepted)


def unweighted_residual(draft, target_probs, accepted, prefix_weight):
    return block_next_law(draft, target_probs, accepted, 1.0)


def first_failure_ends(draft, target_probs):
    weights = block_weights(draft, target_probs)
    reached = 1.0
    for accepted, success in enumerate((*weights.acceptance, 0.0)):
        law = block_next_law(draft, target_probs, accepted, weights.prefix[accepted])
        yield range(accepted), reached * (1 - success), law
        reached *= success


CONTROLS = {
    "rejection draws p after a rejection": lambda d, p: rejection_outcomes(d, p, plain_bonus),
    "rejection does not renormalise the residual": lambda d, p: rejection_outcomes(d, p, not_renormalised),
    "rejection draws the bonus from the wrong row": lambda d, p: rejection_outcomes(d, p, wrong_row),
    "block draws p after a rejection": lambda d, p: block_outcomes(d, p, plain_bonus),
    "block does not weight the residual": lambda d, p: block_outcomes(d, p, unweighted_residual),
    "block stops at the first failure": first_failure_ends,
}


@pytest.mark.parametrize("control", CONTROLS)
def test_exactness_check_fails_a_wrong_rule(toys, control):
    target, drafter = toys.random(1, 3), toys.random(2, 3)
    assert error(CONTROLS[control], target, sampled_drafts(drafter, CHAINS[2]), 2) > 1e-4


@pytest.mark.parametrize("replacement", [True, False])
def test_exactness_check_fails_siblings_in_probability_order(toys, replacement):
    def reordered(drafts):
        for draft, probability in drafts:
            first, second = (draft.probs[0, token].item() for token in draft.tokens)
            order = [0, 1] if first >= second else [1, 0]
            yield (
                Draft(tuple(draft.tokens[node] for node in order), draft.parents, draft.probs[order]),
                probability,
            )

    target, drafter = toys.random(1, 3), toys.random(2, 3)
    assert error(traversal_outcomes, target, reordered(sampled_drafts(drafter, (-1, -1), replacement)), 1) > 1e-3


@pytest.mark.parametrize("rule", RULES)
def test_exactness_check_fails_a_draft_cut_after_looking_at_its_token(toys, rule):
    def cut(drafts):
        for draft, probability in drafts:
            keep = len(draft) if draft.probs[-1, draft.tokens[-1]] > 0.4 else len(draft) - 1
            yield Draft(draft.tokens[:keep], draft.parents[:keep], draft.probs[:keep]), probability

    target, drafter = toys.random(1, 3), toys.random(2, 3)
    assert error(RULES[rule], target, cut(sampled_drafts(drafter, CHAINS[2])), 2) > 1e-3


@pytest.mark.parametrize("rule", RULES)
def test_exactness_check_fails_a_draft_law_that_is_not_the_one_drawn_from(toys, rule):
    def blunted(drafts):
        for draft, probability in drafts:
            yield Draft(draft.tokens, draft.parents, draft.probs.clamp(min=0.1)), probability

    target, drafter = toys.random(1, 3), toys.random(2, 3, 0.3)
    assert error(RULES[rule], target, blunted(sampled_drafts(drafter, CHAINS[2])), 2) > 1e-3


# --- expected accepted length


def expected_length(target, drafter, k, block):
    """E[accepted] in plain Python: sum over i of E_q[P(token i is kept)]."""
    total = 0.0
    for tokens in itertools.product(range(len(target.law(()))), repeat=k):
        drawn, weight = 1.0, 1.0
        kept = 0.0
        for i, token in enumerate(tokens):
            p, q = target.law(tokens[:i])[token], drafter.law(tokens[:i])[token]
            drawn *= q
            if q == 0:
                break
            weight = min(1.0, weight * p / q) if block else weight * min(1.0, p / q)
            kept += weight
        total += drawn * kept
    return total


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_expected_accepted_lengths_are_those_of_the_formulas_and_block_is_never_below_rejection(toys, pair, k):
    target, drafter = pairs(toys, 3)[pair]
    length = {rule: emitted_law(RULES[rule], target, sampled_drafts(drafter, CHAINS[k]))[1] for rule in RULES}
    assert length["rejection"] == pytest.approx(expected_length(target, drafter, k, block=False), abs=EXACT)
    assert length["block"] == pytest.approx(expected_length(target, drafter, k, block=True), abs=EXACT)
    assert length["block"] == pytest.approx(length["traversal"], abs=EXACT)
    assert length["block"] >= length["rejection"] - EXACT
    if pair in ("random", "peaked") and k > 1:
        assert length["block"] > length["rejection"] + 1e-3


@pytest.mark.parametrize("k", [1, 2, 3])
def test_expected_accepted_lengths_are_equal_for_point_masses(toys, k):
    for target, _ in pairs(toys, 5).values():
        length = [emitted_law(RULES[rule], target, certain_draft(CHAINS[k], 5))[1] for rule in RULES]
        assert length == pytest.approx([length[0]] * 3, abs=EXACT)


def test_traversal_accepts_more_of_a_tree_than_of_its_first_chain(toys):
    target, drafter = toys.random(1, 3), toys.random(2, 3)
    chain = emitted_law(traversal_outcomes, target, sampled_drafts(drafter, CHAINS[2]))[1]
    tree = emitted_law(traversal_outcomes, target, sampled_drafts(drafter, TREES["2x1"]))[1]
    without = emitted_law(traversal_outcomes, target, sampled_drafts(drafter, TREES["2x1"], False))[1]
    assert chain + 1e-3 < tree
    assert tree + 1e-3 < without
