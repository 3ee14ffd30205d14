"""Judges of option values: each returns the value in its normal form, or refuses it by option, value and range.

Knows no option by name; `params.py` says what belongs where.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from pilotfish.errors import SamplingParamsError

_IDS = "a list of token ids, integers >= 0"
_LARGEST = float.fromhex("0x1.fffffep+127")  # in single precision
_ID = re.compile("[0-9]{1,18}")  # more digits than any id has


def refusal(option: str, value: object, expected: str) -> SamplingParamsError:
    """The error that says what was got and what was expected."""
    return SamplingParamsError(f"{option} is {shortened(repr(value))}; expected {expected}")


def shortened(text: str) -> str:
    """A text that fits into a message."""
    return text if len(text) <= 200 else text[:200] + "..."


def number(option: str, value: Any, expected: str, in_range: Callable[[float], bool]) -> float:
    """A finite number in range; finite as single precision too, in which logits are changed."""
    # A bool is a number to Python; to a caller who wrote `temperature=True` it is a mistake.
    if isinstance(value, bool) or not isinstance(value, Real):
        raise refusal(option, value, expected)
    size: Any = abs(value)  # of an integer too large for a float as well
    if not size <= _LARGEST or not in_range(float(value)):
        raise refusal(option, value, expected)
    return float(value)


def integer(option: str, value: Any, expected: str, in_range: Callable[[int], bool]) -> int:
    """An integer in range."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not in_range(int(value)):
        raise refusal(option, value, expected)
    return int(value)


def flag(option: str, value: Any) -> bool:
    """True or false, nothing that merely counts as one."""
    if not isinstance(value, bool):
        raise refusal(option, value, "true or false")
    return value


def choice(option: str, value: Any, choices: Sequence[str]) -> str:
    """One of a few words."""
    if value not in choices:
        raise refusal(option, value, "one of " + ", ".join(choices))
    return str(value)


def strings(option: str, value: Any) -> tuple[str, ...]:
    """A non-empty string or a list of them, as a tuple."""
    expected = "a non-empty string, or a list of them"
    found = (value,) if isinstance(value, str) else value
    if not isinstance(found, Sequence) or isinstance(found, bytes | bytearray):
        raise refusal(option, value, expected)
    for string in found:
        if not isinstance(string, str) or not string:
            raise refusal(option, value, expected)
    return tuple(found)


def token_ids(option: str, value: Any) -> tuple[int, ...]:
    """A list of token ids, as a tuple."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        raise refusal(option, value, _IDS)
    return tuple(integer(option, token, _IDS, lambda x: x >= 0) for token in value)


def biases(option: str, value: Any) -> dict[int, float]:
    """A bias for each of some token ids. Keys may be written as strings, as JSON must."""
    expected = "a dictionary from token id (an integer >= 0) to a finite number"
    if not isinstance(value, Mapping):
        raise refusal(option, value, expected)
    found: dict[int, float] = {}
    for key, bias in value.items():
        token = int(key) if isinstance(key, str) and _ID.fullmatch(key) else key
        found[integer(option, token, expected, lambda x: x >= 0)] = number(option, bias, expected, lambda x: True)
    if len(found) < len(value):  # such as "5" and "05", or 5 and "5"
        raise refusal(option, value, f"{expected}, each id once")
    return found


def callables(option: str, value: Any) -> tuple[Callable[..., Any], ...]:
    """A list of callables, as a tuple."""
    if not isinstance(value, Sequence) or not all(callable(item) for item in value):
        raise refusal(option, value, "a list of callables (prefix, logits) -> logits")
    return tuple(value)
