"""Typed look-ups in a model's JSON configuration.

Owns the errors for keys that are missing or of the wrong type. Knows no family and no meaning of any key.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pilotfish.errors import UnsupportedModelError

T = TypeVar("T")


class _Required:
    """The type of `REQUIRED`."""


REQUIRED: Final = _Required()
"""Default of a key that must be there."""


class ConfigKeys:
    """One JSON object, read key by key. A `null` counts as absent except in `nullable_integer`.

    Every reader raises `UnsupportedModelError`, which names the key, when it is missing without a default or is not
    of the type asked for.
    """

    def __init__(self, values: Mapping[str, Any], name: str = "config.json") -> None:
        self._values = values
        self.name = name

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def get(self, key: str) -> Any:
        """The value as it is, `None` when absent."""
        return self._values.get(key)

    def integer(self, key: str, default: int | _Required = REQUIRED, *, minimum: int = 1) -> int:
        """A whole number of at least `minimum`."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self._ill_typed(key, value, f"a whole number of at least {minimum}")
        return value

    def number(self, key: str, default: float | _Required = REQUIRED) -> float:
        """A positive finite number."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < float("inf"):
            raise self._ill_typed(key, value, "a positive number")
        return float(value)

    def nullable_integer(self, key: str, default: int | None) -> int | None:
        """A whole number of at least 1, `None` for an explicit `null`, the default when the key is not there."""
        if key in self._values and self._values[key] is None:
            return None
        return default if key not in self._values else self.integer(key)

    def optional_number(self, key: str) -> float | None:
        return None if self.get(key) is None else self.number(key)

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._ill_typed(key, value, "true or false")
        return value

    def text(self, key: str, default: str | _Required = REQUIRED) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._ill_typed(key, value, "a string")
        return value

    def sequence(self, key: str, length: int) -> list[Any] | None:
        """A list of at least `length` items, cut to `length`; `None` when absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or len(value) < length:
            raise self._ill_typed(key, value, f"a list with one item for each of the {length} layers")
        return list(value[:length])

    def section(self, key: str) -> "ConfigKeys | None":
        """A JSON object inside this one; `None` when absent or empty."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self._ill_typed(key, value, "a JSON object")
        return ConfigKeys(value, f"{key} of {self.name}") if value else None

    def merged(self, other: "ConfigKeys") -> "ConfigKeys":
        """These keys overridden by another object's."""
        return ConfigKeys({**self._values, **other._values}, other.name)

    def _value(self, key: str, default: T | _Required) -> Any:
        value = self._values.get(key)
        if value is not None:
            return value
        if isinstance(default, _Required):
            raise UnsupportedModelError(
                f"{self.name} has no {key!r}, which this model type needs; "
                "use the configuration that was published with the weights"
            )
        return default

    def _ill_typed(self, key: str, value: object, expected: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{self.name} has {key!r}: {value!r}; expected {expected}; "
            "use the configuration that was published with the weights"
        )
