"""Structured output: which tokens a JSON schema, a regular expression or a grammar allows after an output.

Owns the only use of `llguidance`. A constraint is a function of the row's own output: the committed tokens advance one
matcher, and each drafted path is followed on a fork of it, so that nothing drafted ever has to be taken back.
"""

import logging
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pilotfish.errors import SamplingParamsError
from pilotfish.sampling.checks import refusal
from pilotfish.sampling.history import Memory
from pilotfish.sampling.prefix import Prefix
from pilotfish.sampling.structured import StructuredOutputs

logger = logging.getLogger(__name__)

_CACHED_GRAMMARS = 64
_JSON_STYLE: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Grammar:
    """A compiled grammar over one tokenizer."""

    def __init__(self, start: Any) -> None:
        self._start = start

    def matcher(self) -> Any:
        """A matcher at the start of an output."""
        return self._start.deep_copy()


class GrammarCompiler:
    """Compiles grammars for one tokenizer, and remembers the latest; in any number of threads.

    Args:
        tokenizer_json: gives the tokenizer in the form of `tokenizer.json`; asked once, with the first grammar.
        vocab_size: token ids of the tokenizer.
        eos_ids: the model's end-of-sequence ids; at least one.
    """

    def __init__(self, tokenizer_json: Callable[[], str], vocab_size: int, eos_ids: Sequence[int]) -> None:
        self._tokenizer_json = tokenizer_json
        self._vocab_size = vocab_size
        self._eos_ids = list(eos_ids)
        self._tokenizer: Any = None
        self._compiled: dict[StructuredOutputs, Grammar] = {}
        self._lock = Lock()

    def compile(self, structured: StructuredOutputs) -> Grammar:
        """The grammar of a form.

        Raises:
            SamplingParamsError: the form is malformed, allows no output at all, or needs what is not installed.
        """
        with self._lock:
            known = self._compiled.get(structured)
        if known is None:
            known = self._compile(structured)  # unlocked: whoever has a simple one does not wait for it
            with self._lock:
                while len(self._compiled) >= _CACHED_GRAMMARS:
                    del self._compiled[next(iter(self._compiled))]
                self._compiled[structured] = known
        return known

    def _compile(self, structured: StructuredOutputs) -> Grammar:
        option = f"structured_outputs.{structured.kind}"
        try:
            from llguidance import LLMatcher, LLTokenizer
        except ImportError as error:
            raise SamplingParamsError(
                f"{option} needs the package llguidance, which is not installed ({error}): "
                "pip install 'pilotfish[structured]'"
            ) from error
        if not self._eos_ids:
            raise SamplingParamsError(f"{option} needs an end-of-sequence id, and this model has none")
        if self._tokenizer is None:
            self._tokenizer = LLTokenizer(
                self._tokenizer_json(), n_vocab=self._vocab_size, eos_token=self._eos_ids, slices=None
            )
        translations: dict[str, Callable[[str], str]] = {
            "json": lambda text: LLMatcher.grammar_from_json_schema(text, defaults=_JSON_STYLE),
            "regex": LLMatcher.grammar_from_regex,
            "grammar": LLMatcher.grammar_from_lark,
            "choice": LLMatcher.grammar_from_regex,
        }
        text = structured.text
        try:
            grammar = translations[structured.kind](text)
        except ValueError as error:
            raise refusal(option, text, f"one that can be compiled ({error})") from None
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise refusal(option, text, f"one that can be compiled ({matcher.get_error().strip()})")
        if not _allowed(matcher.deep_copy()).any():
            raise refusal(option, text, "one that some text matches; none does")
        return Grammar(matcher)


class GrammarConstraint(Memory):
    """What the grammar of one request allows after any prefix of it."""

    def __init__(self, grammar: Grammar) -> None:
        super().__init__()
        self._grammar = grammar
        self.clear()

    def clear(self) -> None:
        self._forks: dict[tuple[int, ...], Any] = {(): self._grammar.matcher()}

    def take(self, committed: Sequence[int], place: int, prompt_length: int) -> None:
        if place < prompt_length:
            return
        matcher = self._forks[()]
        if matcher is not None and matcher.try_consume_tokens([committed[place]]) != 1:
            matcher = None
        self._forks = {(): matcher}

    def _reach(self, prefix: Prefix) -> Any:
        """A matcher after the prefix's output, `None` where the grammar does not allow that output."""
        self.follow(prefix)
        path = prefix.path
        known = len(path)
        while path[:known] not in self._forks:
            known -= 1
        for length in range(known, len(path)):
            fork = self._forks[path[:length]]
            if fork is not None:
                fork = fork.deep_copy()
                if fork.is_stopped() or fork.try_consume_tokens([path[length]]) != 1:
                    fork = None
            self._forks[path[: length + 1]] = fork
        return self._forks[path]

    def allows(self, prefix: Prefix) -> bool:
        """Whether the prefix's output is the beginning of one that the grammar allows."""
        return self._reach(prefix) is not None

    def allowed(self, prefix: Prefix) -> NDArray[np.bool_] | None:
        """`[vocab]` the tokens that may follow; `None` after an output that cannot come about, where all may.

        None at all may follow where the grammar has led into a dead end or beyond the matcher's limits. That is no
        error to raise: a draft may have led there, and what a draft does must not show.
        """
        matcher = self._reach(prefix)
        if matcher is None:
            return None
        allowed = _allowed(matcher)
        if matcher.is_error():
            logger.warning("structured_outputs: nothing can follow here: %s", matcher.get_error() or "a dead end")
        return allowed

    def forced(self, prefix: Prefix) -> list[int]:
        """Tokens that can only follow one after another, possibly none: each is the only one allowed at its place."""
        matcher = self._reach(prefix)
        if matcher is None or matcher.is_stopped():
            return []
        # On a copy: what the matcher remembers of having looked ahead must not show in a mask.
        return [int(token) for token in matcher.deep_copy().compute_ff_tokens()]


class GrammarEnd:
    """Follows the delivered tokens of one request and says when nothing more can come."""

    def __init__(self, grammar: Grammar) -> None:
        self._matcher = grammar.matcher()

    def push(self, token: int) -> bool:
        """Takes in one delivered token; true when the output is complete with it, or had come to a dead end."""
        return self._matcher.try_consume_tokens([token]) != 1 or bool(self._matcher.is_stopped())


def _allowed(matcher: Any) -> NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8), bitorder="little")
    if matcher.is_error():  # the mask of a matcher that has failed allows the end
        bits[:] = 0
    return bits.view(np.bool_)
