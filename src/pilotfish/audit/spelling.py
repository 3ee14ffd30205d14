"""A grammar small enough to be known by heart: an expression, its automaton written out, a tokenizer of eight tokens.

Owns what the oracle knows of structured output. The expression goes to the production path, which compiles it with its
own library; the automaton is written by hand, character by character, and shares nothing with it. Some tokens are
several characters long, some places leave only one token (a forced one), and some outputs can only end.
"""

import json
from collections.abc import Sequence
from functools import cache

from pilotfish.sampling.grammar import Grammar, GrammarCompiler
from pilotfish.sampling.structured import StructuredOutputs

EXPRESSION = "(a|bc|abd)*d?x[ab]{1,3}"
TEXTS = ("a", "b", "c", "d", "ab", "bc", "x")
END = 7
VOCAB_SIZE = 8
_START = "start"
_MOVES = {
    "start": {"a": "a", "b": "b", "d": "d", "x": "x"},
    "a": {"a": "a", "b": "ab", "d": "d", "x": "x"},
    "b": {"c": "start"},
    "ab": {"c": "start", "d": "start"},
    "d": {"x": "x"},
    "x": {"a": "one", "b": "one"},
    "one": {"a": "two", "b": "two"},
    "two": {"a": "three", "b": "three"},
    "three": {},
}
_MAY_END = ("one", "two")
_MUST_END = "three"
_OVER = "over"


def _moved(state: str | None, token: int) -> str | None:
    if token >= len(TEXTS):
        # What would follow an output that is over is never delivered. It shows in how a draft is verified that runs
        # on, and the production path's convention is followed there: the end again, once, and then anything.
        return _OVER if token == END and state in _MAY_END else None
    for character in TEXTS[token]:
        state = _MOVES.get(state or "", {}).get(character)
    return state


def allowed(output: Sequence[int]) -> frozenset[int] | None:
    """The tokens that may follow an output; `None` where the output is not the beginning of any that is allowed."""
    state: str | None = _START
    for token in output:
        state = _moved(state, token)
    if state is None:
        return None
    following = {token for token in range(len(TEXTS)) if _moved(state, token) is not None}
    return frozenset(following | {END} if state in (*_MAY_END, _MUST_END, _OVER) else following)


@cache
def compiled() -> Grammar:
    """The expression as the production path has it."""
    return GrammarCompiler(_tokenizer, VOCAB_SIZE, [END]).compile(StructuredOutputs(regex=EXPRESSION))


def _tokenizer() -> str:
    end = {"id": END, "content": "<end>", "special": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    model = {
        "type": "BPE",
        "ignore_merges": True,
        "vocab": {text: token for token, text in enumerate(TEXTS)},
        "merges": [["a", "b"], ["b", "c"]],
    }
    decoder = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return json.dumps({"version": "1.0", "added_tokens": [end | flags], "decoder": decoder, "model": model})
