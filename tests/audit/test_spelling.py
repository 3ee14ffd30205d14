"""The automaton written by hand and the grammar that the production path compiles say the same of every output."""

import re
from itertools import product

import numpy as np

from pilotfish.audit import spelling
from pilotfish.audit.oracle import end_if_nothing_is_left
from pilotfish.sampling.grammar import GrammarConstraint
from pilotfish.sampling.prefix import Prefix


def outputs(longest):
    """Every output of up to so many tokens that is allowed, and some that go on after their end."""
    level = [()]
    for _ in range(longest):
        yield from level
        level = [(*output, token) for output in level for token in spelling.allowed(output) or ()]


def test_automaton_allows_what_the_compiled_grammar_allows():
    seen = 0
    for output in outputs(5):
        # A matcher of its own each time: what it allows after one output must not depend on others.
        found = GrammarConstraint(spelling.compiled()).allowed(Prefix([0, *output], 1))
        assert (None if found is None else set(np.flatnonzero(found))) == spelling.allowed(output), output
        seen += 1
    assert seen > 300


def test_automaton_is_that_of_the_expression():
    whole = re.compile(spelling.EXPRESSION)
    texts = {"".join(spelling.TEXTS[token] for token in o): o for o in outputs(5) if spelling.END not in o}
    for text, output in texts.items():
        assert (whole.fullmatch(text) is not None) == (spelling.END in (spelling.allowed(output) or ())), text
    for letters in product("abcdx", repeat=4):
        text = "".join(letters)
        if whole.fullmatch(text):
            assert text in texts


def test_grammar_has_forced_tokens_and_ends():
    assert spelling.allowed((1,)) == {2}
    assert spelling.allowed((6, 0, 0, 0)) == {spelling.END}
    assert spelling.allowed((2,)) is None


def test_end_alone_stays_where_nothing_is_possible():
    assert end_if_nothing_is_left(np.array([-np.inf, -np.inf]), 1).tolist() == [-np.inf, 0.0]
    assert end_if_nothing_is_left(np.array([-np.inf, 2.0]), 0).tolist() == [-np.inf, 2.0]
