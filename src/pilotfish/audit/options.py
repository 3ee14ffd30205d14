"""The sampling options under audit, one entry each: what the request asks for, and what the oracle makes of it.

To audit another option, add an entry to `SINGLES` with its place in the documented order (the numbers of the table in
`sampling/pipeline.py`); all pairs are formed from them. Shares no code with the pipeline.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from pilotfish.audit import oracle, spelling
from pilotfish.audit.oracle import Floats
from pilotfish.engine.detokenizer import Detokenizer
from pilotfish.engine.ending import Ending
from pilotfish.sampling.grammar import GrammarEnd
from pilotfish.sampling.params import SamplingParams
from pilotfish.sampling.sampler import Sampler


class History(NamedTuple):
    """What came before the row on its own path."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]


OracleStep = Callable[[Floats, History], Floats]

NO_HISTORY = History((), ())


@dataclass(frozen=True, slots=True)
class Setting:
    """One option or a combination.

    Attributes:
        fields: of `SamplingParams`.
        steps: the oracle's, each with its place in the documented order.
        looks_back: whether the law depends on prompt and output beyond the model's own context.
        bad_words: token sequences that must not come out; a request names them as text, a sampler gets the tokens.
        spelled: whether the output must match the expression of `spelling.py`, and may end before its budget.
    """

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[tuple[int, OracleStep], ...] = ()
    looks_back: bool = False
    bad_words: tuple[tuple[int, ...], ...] = ()
    spelled: bool = False

    def params(self, seed: int) -> SamplingParams:
        return SamplingParams(seed=seed, **self.fields)

    def sampler(self, make: Callable[..., Sampler], seed: int, vocab_size: int) -> Sampler:
        """A request's sampler with this setting."""
        more: dict[str, Any] = {}
        if self.bad_words:
            more["bad_words"] = self.bad_words
        if self.spelled:
            more |= {"grammar": spelling.compiled(), "eos_ids": (spelling.END,)}
        return make(self.params(seed), vocab_size, **more)

    def ending(self, params: SamplingParams, max_tokens: int, prompt: Sequence[int]) -> Ending:
        """A request's end conditions with this setting."""
        text = Detokenizer(_no_text, prompt)
        if self.spelled:
            return Ending(params, (spelling.END,), max_tokens, text, GrammarEnd(spelling.compiled()))
        return Ending(params, (), max_tokens, text)

    def history(self, prompt: Sequence[int], output: Sequence[int]) -> History:
        """What of the text the law depends on."""
        return History(tuple(prompt), tuple(output)) if self.looks_back else NO_HISTORY

    def law(self, logits: Floats, history: History) -> Floats:
        """The oracle's law of a row."""
        scores = logits.astype(np.float64)
        for _, step in sorted(self.steps, key=lambda item: item[0]):
            scores = step(scores, history)
        return oracle.softmax(scores)

    def __add__(self, other: "Setting") -> "Setting":
        return Setting(
            f"{self.name} + {other.name}",
            {**self.fields, **other.fields},
            (*self.steps, *other.steps),
            self.looks_back or other.looks_back,
            self.bad_words or other.bad_words,
            self.spelled or other.spelled,
        )


def _no_text(ids: Sequence[int]) -> str:
    return ""


def _spell(logits: Floats, history: History) -> Floats:
    """What the expression allows; all, after an output that it does not allow itself."""
    tokens = spelling.allowed(history.output)
    return logits if tokens is None else oracle.only(logits, tuple(tokens))


def _scale(temperature: float) -> OracleStep:
    return lambda logits, _: oracle.scale(logits, temperature)


def _allow(tokens: tuple[int, ...]) -> Setting:
    return Setting("allowed_token_ids", {"allowed_token_ids": tokens}, ((5, lambda x, _: oracle.only(x, tokens)),))


def _pair(left: Setting, right: Setting) -> Setting:
    """Both options at once; where few tokens are allowed and none may follow another twice, none may soon be left."""
    if (left.name, right.name) == ("allowed_token_ids", "no_repeat_ngram_size 2"):
        left = _allow(ALLOWED_TO_FOLLOW)
    return left + right


BIASES = {0: 1.5, 3: -1.0}
BANNED = (1,)
ALLOWED = (0, 1, 2, 4)
ALLOWED_TO_FOLLOW = (0, 1, 2, 4, 5, 7)
BAD_WORDS = ((2, 0), (3,))

PLAIN = Setting("no option")
GREEDY = Setting("temperature 0", {"temperature": 0}, ((11, _scale(0.0)),))
HOT = Setting("temperature 1.6", {"temperature": 1.6}, ((11, _scale(1.6)),))
SINGLES = (
    Setting("logit_bias", {"logit_bias": BIASES}, ((1, lambda x, _: oracle.add(x, BIASES)),)),
    Setting(
        "repetition_penalty 1.5",
        {"repetition_penalty": 1.5},
        ((2, lambda x, h: oracle.repeat_less(x, (*h.prompt, *h.output), 1.5)),),
        looks_back=True,
    ),
    Setting(
        "presence_penalty 1.5",
        {"presence_penalty": 1.5},
        ((3, lambda x, h: oracle.lower(x, h.output, 0.0, 1.5)),),
        looks_back=True,
    ),
    Setting(
        "frequency_penalty 0.8",
        {"frequency_penalty": 0.8},
        ((3, lambda x, h: oracle.lower(x, h.output, 0.8, 0.0)),),
        looks_back=True,
    ),
    _allow(ALLOWED),
    Setting("banned_token_ids", {"banned_token_ids": BANNED}, ((5, lambda x, _: oracle.without(x, BANNED)),)),
    Setting(
        "bad_words",
        steps=((6, lambda x, h: oracle.without(x, oracle.completing(h.output, BAD_WORDS))),),
        looks_back=True,
        bad_words=BAD_WORDS,
    ),
    Setting(
        "no_repeat_ngram_size 2",
        {"no_repeat_ngram_size": 2},
        ((7, lambda x, h: oracle.without(x, oracle.repeating((*h.prompt, *h.output), 2))),),
        looks_back=True,
    ),
    Setting(
        "structured_outputs",
        steps=((9, _spell), (9, lambda x, _: oracle.end_if_nothing_is_left(x, spelling.END))),
        looks_back=True,
        spelled=True,
    ),
    Setting("top_k 3", {"top_k": 3}, ((10, lambda x, _: oracle.keep_highest(x, 3)),)),
    Setting("temperature 0.6", {"temperature": 0.6}, ((11, _scale(0.6)),)),
    Setting("top_p 0.8", {"top_p": 0.8}, ((12, lambda x, _: oracle.keep_mass(x, 0.8)),)),
    Setting("min_p 0.2", {"min_p": 0.2}, ((13, lambda x, _: oracle.keep_share(x, 0.2)),)),
    Setting("typical_p 0.8", {"typical_p": 0.8}, ((14, lambda x, _: oracle.keep_typical(x, 0.8)),)),
)
PAIRS = tuple(_pair(left, right) for left, right in combinations(SINGLES, 2))
BY_NAME = {setting.name: setting for setting in (PLAIN, GREEDY, HOT, *SINGLES, *PAIRS)}
