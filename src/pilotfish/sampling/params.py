"""What a caller may ask of the text of one request: `SamplingParams`.

Owns the options, their ranges and their defaults. Knows no tensor, no tokenizer and no model; an option that depends
on one of these (a token id above the vocabulary, a budget above the context) is judged where both are known. The order
in which options apply, and their meaning at the edges: `docs/sampling.md`.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias, no_type_check

from pilotfish.errors import SamplingParamsError
from pilotfish.sampling import checks
from pilotfish.sampling.noise import derived_seed
from pilotfish.sampling.structured import StructuredOutputs, structured_outputs

SEED_LIMIT = 2**64

LogprobsMode: TypeAlias = Literal["raw_logprobs", "processed_logprobs"]

LogitsProcessor: TypeAlias = Callable[..., Any]
"""(prefix, logits) -> logits: a `Prefix` and the row's float32 `[vocab]` tensor, which is its own copy."""


# Values of any type are judged below, where the refusal can name the option; a type checker's own would come first.
@no_type_check
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of a request are chosen, and when it ends. Names and meanings as in vLLM where it has them.

    Attributes:
        temperature: divides the logits; 0 takes the most probable token (ties: the lowest id).
        top_k: only this many most probable tokens stay possible; 0 or -1 switches it off.
        top_p: only the smallest set of most probable tokens whose mass reaches this stays possible; 1 switches it off.
        min_p: only tokens at least this times as probable as the most probable one stay possible; 0 switches it off.
        typical_p: only the smallest set of tokens whose information is nearest to the law's entropy and whose mass
            reaches this stays possible; 1 switches it off.
        repetition_penalty: divides positive logits, and multiplies negative ones, of all tokens in prompt and output.
        presence_penalty: taken from the logit of every token in the output.
        frequency_penalty: taken from the logit of every token, times its count in the output.
        no_repeat_ngram_size: no n-gram of this many tokens appears twice in prompt and output; 0 switches it off.
        logit_bias: added to the logits of these token ids.
        allowed_token_ids: no other token is possible; `None` allows all.
        banned_token_ids: none of these tokens is possible.
        bad_words: texts whose tokens, with or without a space before, do not follow one another in the output.
        logits_processors: callables (prefix, logits) -> logits, run in order. They must be pure functions: they see
            drafted prefixes too, in no promised order or number.
        structured_outputs: the form the output must have; a `StructuredOutputs` or a dictionary of its fields.
        seed: together with weights, prompt and options decides the output; `None` lets the engine take a fresh one,
            which the output reports.
        n: samples per prompt; sample 0 has the seed itself, sample i the seed `derived_seed(seed, i)`.
        best_of: samples made, of which the n with the highest cumulative logprob are given; `None` makes n.
        max_tokens: tokens to generate at most; `None` goes on up to the model's context.
        min_tokens: tokens before the request may end with an end-of-sequence token, a stop token or a stop string.
        stop: a string, or several, that end the text where they appear.
        stop_token_ids: token ids that end the text.
        ignore_eos: goes on past the model's end-of-sequence token.
        include_stop_str_in_output: leaves the stop string, or the text of the token that ended it, in the text.
        skip_special_tokens: leaves control tokens out of the text.
        logprobs: reports log probabilities of each delivered token and of this many most probable ones; 0 reports
            those of the delivered tokens alone.
        logprobs_mode: "raw_logprobs" are of the model's own law, before any option; "processed_logprobs" are of the
            final law, from which the token was drawn.
        prompt_logprobs: the same for the tokens of the prompt, always of the model's own law.

    Raises:
        SamplingParamsError: a value is out of its range or contradicts another; names option, value and range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    allowed_token_ids: Sequence[int] | None = None
    banned_token_ids: Sequence[int] = ()
    bad_words: str | Sequence[str] = ()
    logits_processors: Sequence[LogitsProcessor] = ()
    structured_outputs: StructuredOutputs | Mapping[str, Any] | None = None
    seed: int | None = None
    n: int = 1
    best_of: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    logprobs_mode: LogprobsMode = "raw_logprobs"
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        # The one place that writes to the frozen fields: values are normalised before anyone can see them.
        for name, value in self._normalised().items():
            object.__setattr__(self, name, value)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise checks.refusal("min_tokens", self.min_tokens, f"at most max_tokens, {self.max_tokens}")
        if self.best_of is not None and self.best_of < self.n:
            raise checks.refusal("best_of", self.best_of, f"at least n, {self.n}")
        if self.greedy and self.sample_count > 1:
            option = "n" if self.best_of is None else "best_of"
            raise checks.refusal(option, self.sample_count, "1 at temperature 0, where all samples are the same")
        if self.allowed_token_ids is not None and not set(self.allowed_token_ids) - set(self.banned_token_ids):
            raise SamplingParamsError("allowed_token_ids without banned_token_ids leaves no token: allow another one")

    def _normalised(self) -> dict[str, Any]:
        found = {
            "temperature": checks.number("temperature", self.temperature, "a finite number >= 0", lambda x: x >= 0),
            "top_k": checks.integer("top_k", self.top_k, "an integer >= 1, or 0 or -1 for off", lambda x: x >= -1),
            "top_p": checks.number("top_p", self.top_p, "a number in (0, 1]", lambda x: 0 < x <= 1),
            "min_p": checks.number("min_p", self.min_p, "a number in [0, 1]", lambda x: 0 <= x <= 1),
            "typical_p": checks.number("typical_p", self.typical_p, "a number in (0, 1]", lambda x: 0 < x <= 1),
            "repetition_penalty": checks.number(
                "repetition_penalty", self.repetition_penalty, "a number from 1e-6 to 1e6", lambda x: 1e-6 <= x <= 1e6
            ),
            "banned_token_ids": checks.token_ids("banned_token_ids", self.banned_token_ids),
            "bad_words": checks.strings("bad_words", self.bad_words),
            "logits_processors": checks.callables("logits_processors", self.logits_processors),
            "stop": checks.strings("stop", self.stop),
            "stop_token_ids": checks.token_ids("stop_token_ids", self.stop_token_ids),
            "logprobs_mode": checks.choice("logprobs_mode", self.logprobs_mode, ("raw_logprobs", "processed_logprobs")),
            "n": checks.integer("n", self.n, "an integer >= 1", lambda x: x >= 1),
        }
        for name in ("presence_penalty", "frequency_penalty"):
            found[name] = checks.number(name, getattr(self, name), "a number in [-2, 2]", lambda x: -2 <= x <= 2)
        for name in ("no_repeat_ngram_size", "min_tokens"):
            found[name] = checks.integer(name, getattr(self, name), "an integer >= 0", lambda x: x >= 0)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            found[name] = checks.flag(name, getattr(self, name))
        at_least_0 = partial(checks.integer, expected="an integer >= 0", in_range=lambda x: x >= 0)
        at_least_1 = partial(checks.integer, expected="an integer >= 1", in_range=lambda x: x >= 1)
        optional: dict[str, Callable[..., Any]] = {
            "logit_bias": checks.biases,
            "allowed_token_ids": checks.token_ids,
            "structured_outputs": structured_outputs,
            "seed": partial(
                checks.integer, expected="an integer in [0, 2**64)", in_range=lambda x: 0 <= x < SEED_LIMIT
            ),
            "best_of": at_least_1,
            "max_tokens": at_least_1,
            "logprobs": at_least_0,
            "prompt_logprobs": at_least_0,
        }
        for name, judge in optional.items():
            if getattr(self, name) is not None:
                found[name] = judge(name, getattr(self, name))
        return found

    @property
    def greedy(self) -> bool:
        """True when the most probable token is taken and no noise is used."""
        return self.temperature == 0

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple, whichever way it was given."""
        return tuple(self.stop)

    @property
    def sample_count(self) -> int:
        """Samples to make per prompt."""
        return self.n if self.best_of is None else self.best_of

    def with_seed(self, seed: int) -> "SamplingParams":
        """The same options with this seed."""
        return replace(self, seed=seed)

    def samples(self) -> "list[SamplingParams]":
        """One request's options per sample to make, each with its own seed; needs a seed if there are several."""
        if self.sample_count == 1:
            return [replace(self, best_of=None)]
        assert self.seed is not None, "several samples derive their seeds from one"
        # Which are the best is told by their logprobs, whether the caller wants to see them or not.
        logprobs = 0 if self.logprobs is None and self.sample_count > self.n else self.logprobs
        return [
            replace(self, n=1, best_of=None, seed=derived_seed(self.seed, index), logprobs=logprobs)
            for index in range(self.sample_count)
        ]


def fresh_seed() -> int:
    """A seed nobody has chosen, from the operating system's entropy.

    53 bits of the 64 a seed may have, so that it survives every JSON reader and the request can be replayed.
    """
    return secrets.randbits(53)
