"""The ratio rules on the real path: pipeline, real draws, real streams, tested for the law that comes out.

Each test plays n = 2,500 rounds of one request (draft length 2, vocabulary 3) and compares the counts of the first
three tokens, 27 cells, with the product of the target's laws. Pearson's test at false-alarm rate 1e-6 sees a total
variation of 0.1 with probability 0.99. Exactness at 1e-12 is `test_exactness.py`'s business; here mistakes in the
use of randomness are to be seen, and the controls make them.
"""

from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats

from pilotfish.sampling import Prefix, Sampler, SamplingParams
from pilotfish.sampling.noise import Stream, uniforms
from pilotfish.terms import EMPTY_DRAFT, Draft
from pilotfish.verify import RULES, match

ROUNDS = 2_500
CONTROL_ROUNDS = 1_000
FALSE_ALARM = 1e-6
VOCAB = 3
SAMPLER = Sampler(SamplingParams(seed=20_26, temperature=0.8, top_p=0.97), VOCAB)
SHAPES = {"rejection": (-1, 0), "block": (-1, 0), "traversal": (-1, -1, 0)}
STRIDE = 4
"""Committed tokens between two rounds, so that a short round can be continued by plain ones before the next."""


def logits(model, context):
    rng = np.random.default_rng([model, *context])
    return torch.from_numpy(rng.normal(scale=1.2, size=(1, VOCAB + 2))).float()  # two padded columns


CONTEXTS = [context for length in range(3) for context in product(range(VOCAB), repeat=length)]
TARGET, DRAFTER = (
    {context: SAMPLER.laws(logits(model, context), [Prefix((), 0, context)])[0] for context in CONTEXTS}
    for model in (1, 2)
)


def draw_draft(shape, start):
    contexts, tokens, laws = [()], [], []
    for node, parent in enumerate(shape):
        context = contexts[parent + 1]
        law = DRAFTER[context].clone()
        law[[tokens[sibling] for sibling in range(node) if shape[sibling] == parent]] = 0.0  # without replacement
        tokens.append(SAMPLER.draw(law, start + len(context), start, node))
        laws.append(law)
        contexts.append((*context, tokens[-1]))
    return Draft(tuple(tokens), shape, torch.stack(laws)), contexts


def honest(start, draft, positions):
    return SAMPLER.accept_uniforms(positions, start), SAMPLER.resample_uniform(start, start)


def p_value(rule, randomness=honest, rounds=ROUNDS):
    counts = dict.fromkeys(product(range(VOCAB), repeat=3), 0)
    accepted = 0
    for start in range(0, rounds * STRIDE, STRIDE):
        draft, contexts = draw_draft(SHAPES[rule], start)
        target_probs = torch.stack([TARGET[context] for context in contexts])
        positions = [start + len(context) - 1 for context in contexts[1:]]
        verdict = RULES[rule].verify(draft, target_probs, *randomness(start, draft, positions))
        accepted += len(verdict.path)
        tokens = verdict.tokens(draft)
        while len(tokens) < 3:
            here = start + len(tokens)
            uniform = SAMPLER.resample_uniform(here, here)
            plain = RULES[rule].verify(EMPTY_DRAFT, TARGET[tokens][None], SAMPLER.accept_uniforms([], here), uniform)
            tokens += (plain.next_token,)
        counts[tokens] += 1
    assert rounds / 4 < accepted < 2 * rounds, "drafts were tested, some accepted and some not"
    return goodness_of_fit(counts)


def goodness_of_fit(counts):
    expected = {}
    for tokens in counts:
        laws = [TARGET[tokens[:length]].double() for length in range(3)]
        expected[tokens] = float(np.prod([law[token] / law.sum() for law, token in zip(laws, tokens, strict=True)]))
    assert all(counts[tokens] == 0 for tokens, probability in expected.items() if probability == 0)
    cells = [tokens for tokens, probability in expected.items() if probability > 0]
    return stats.chisquare(
        [counts[tokens] for tokens in cells], [expected[tokens] * sum(counts.values()) for tokens in cells]
    ).pvalue


def shared_with_acceptance(start, draft, positions):
    accept, _ = honest(start, draft, positions)
    return accept, accept[0].item()


def shared_with_the_draft(start, draft, positions):
    """The resample uniform is the one that drew the first token."""
    accept, _ = honest(start, draft, positions)
    return accept, uniforms(SAMPLER.seed, Stream.DRAFT, [0], [start], start)[0]


def acceptance_shared_with_the_draft(start, draft, positions):
    _, resample = honest(start, draft, positions)
    nodes = range(len(draft))
    return torch.tensor(uniforms(SAMPLER.seed, Stream.DRAFT, nodes, positions, start)), resample


@pytest.mark.parametrize("rule", SHAPES)
def test_rule_with_real_streams_emits_the_targets_law(rule):
    assert p_value(rule) > FALSE_ALARM


@pytest.mark.parametrize(
    ("rule", "control"),
    [
        ("rejection", shared_with_acceptance),
        ("rejection", shared_with_the_draft),
        ("rejection", acceptance_shared_with_the_draft),
        ("block", acceptance_shared_with_the_draft),
        ("traversal", acceptance_shared_with_the_draft),
    ],
)
def test_law_check_fails_shared_randomness(rule, control):
    assert p_value(rule, control, CONTROL_ROUNDS) < FALSE_ALARM


def test_match_with_coupled_drafts_emits_the_targets_law():
    """The drafter chooses with the target's noise; what is emitted is plain decoding's, token for token.

    n = 1,000 for the law itself, which sees a total variation of 0.15 with probability 0.99.
    """
    counts = dict.fromkeys(product(range(VOCAB), repeat=3), 0)
    accepted = 0
    for start in range(0, CONTROL_ROUNDS * STRIDE, STRIDE):
        committed = (0,) * start

        def choose(model, context, committed=committed):
            return SAMPLER.choices(logits(model, context), [Prefix(committed, 0, context)])[0]

        drafted = plain = ()
        for _ in range(2):
            drafted += (choose(2, drafted),)
        for _ in range(3):
            plain += (choose(1, plain),)
        draft = Draft.chain(drafted)
        verdict = match(draft, [choose(1, drafted[:length]) for length in range(3)])
        emitted = verdict.tokens(draft)
        assert emitted == plain[: len(emitted)]
        accepted += len(verdict.path)
        counts[plain] += 1
    assert CONTROL_ROUNDS / 4 < accepted < 2 * CONTROL_ROUNDS
    assert goodness_of_fit(counts) > FALSE_ALARM
