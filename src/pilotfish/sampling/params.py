"""What a caller may ask of the text of one request: `SamplingParams`.

Owns the options, their ranges and their defaults. Knows no tensor, no tokenizer and no model; an option that depends
on one of these (a token id above the vocabulary, a budget above the context) is judged where both are known.
"""

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import no_type_check

from pilotfish.errors import SamplingParamsError

SEED_LIMIT = 2**64


# Values of any type are judged below, where the refusal can name the option; a type checker's own would come first.
@no_type_check
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of a request are chosen, and when it ends.

    Attributes:
        temperature: divides the logits; 0 takes the most probable token (ties: the lowest id).
        top_k: only this many most probable tokens stay possible; 0 or -1 switches it off.
        top_p: only the smallest set of most probable tokens whose mass reaches this stays possible; 1 switches it off.
        seed: together with weights, prompt and options decides the output; `None` lets the engine take a fresh one,
            which the output reports.
        max_tokens: tokens to generate at most; `None` goes on up to the model's context.
        stop: a string, or several, that end the text where they appear.
        stop_token_ids: token ids that end the text.
        ignore_eos: goes on past the model's end-of-sequence token.

    Raises:
        SamplingParamsError: a value is out of its range; names option, value and range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        # The one place that writes to the frozen fields: values are normalised before anyone can see them.
        normalised = {
            "temperature": _number("temperature", self.temperature, "a finite number >= 0", lambda x: x >= 0),
            "top_k": _integer("top_k", self.top_k, "an integer >= 1, or 0 or -1 for off", lambda x: x >= -1),
            "top_p": _number("top_p", self.top_p, "a number in (0, 1]", lambda x: 0 < x <= 1),
            "stop": _strings("stop", self.stop),
            "stop_token_ids": _token_ids("stop_token_ids", self.stop_token_ids),
        }
        if self.seed is not None:
            normalised["seed"] = _integer("seed", self.seed, "an integer in [0, 2**64)", lambda x: 0 <= x < SEED_LIMIT)
        if self.max_tokens is not None:
            normalised["max_tokens"] = _integer("max_tokens", self.max_tokens, "an integer >= 1", lambda x: x >= 1)
        if not isinstance(self.ignore_eos, bool):
            raise _refusal("ignore_eos", self.ignore_eos, "true or false")
        for name, value in normalised.items():
            object.__setattr__(self, name, value)

    @property
    def greedy(self) -> bool:
        """True when the most probable token is taken and no noise is used."""
        return self.temperature == 0

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple, whichever way it was given."""
        return tuple(self.stop)

    def with_seed(self, seed: int) -> "SamplingParams":
        """The same options with this seed."""
        return replace(self, seed=seed)


def fresh_seed() -> int:
    """A seed nobody has chosen, from the operating system's entropy.

    53 bits of the 64 a seed may have, so that it survives every JSON reader and the request can be replayed.
    """
    return secrets.randbits(53)


def _refusal(option: str, value: object, expected: str) -> SamplingParamsError:
    return SamplingParamsError(f"{option} is {value!r}; expected {expected}")


def _number(option: str, value: object, expected: str, in_range: Callable[[float], bool]) -> float:
    # A bool is a number to Python; to a caller who wrote `temperature=True` it is a mistake.
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _refusal(option, value, expected)
    number = float(value)
    if not math.isfinite(number) or not in_range(number):
        raise _refusal(option, value, expected)
    return number


def _integer(option: str, value: object, expected: str, in_range: Callable[[int], bool]) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or not in_range(int(value)):
        raise _refusal(option, value, expected)
    return int(value)


def _strings(option: str, value: object) -> tuple[str, ...]:
    expected = "a non-empty string, or a list of them"
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, Sequence) or isinstance(strings, bytes | bytearray):
        raise _refusal(option, value, expected)
    for string in strings:
        if not isinstance(string, str) or not string:
            raise _refusal(option, value, expected)
    return tuple(strings)


def _token_ids(option: str, value: object) -> tuple[int, ...]:
    expected = "a list of token ids, integers >= 0"
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        raise _refusal(option, value, expected)
    return tuple(_integer(option, token, expected, lambda x: x >= 0) for token in value)
