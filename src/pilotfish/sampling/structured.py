"""What form the output must have: `StructuredOutputs`, a JSON schema, a regular expression or a Lark grammar.

Owns the values and their shape. Whether a grammar makes sense is judged where it is compiled (`grammar.py`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, no_type_check

from pilotfish.sampling.checks import refusal

_ONE = "exactly one of json, regex and grammar"


@no_type_check
@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputs:
    """Exactly one of these is given.

    Attributes:
        json: a JSON schema, as a dictionary or as its text; kept as text. The output is written like Python's
            `json.dumps` (", " and ": ", no other free space); the key "x-guidance" of the schema can change that
            (`{"whitespace_flexible": true}`).
        regex: a regular expression that the whole output matches (Rust's `regex` syntax, anchored at both ends).
        grammar: a context-free grammar in Lark syntax with the rule `start`.

    Raises:
        SamplingParamsError: none or several are given, or one is of the wrong type.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        given = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        if len(given) != 1:
            raise refusal("structured_outputs", given or "empty", _ONE)
        if self.json is not None:
            object.__setattr__(self, "json", _schema_text(self.json))
        else:
            value = getattr(self, given[0])
            if not isinstance(value, str):
                raise refusal(f"structured_outputs.{given[0]}", value, "text")

    @property
    def kind(self) -> str:
        """Which of the three it is."""
        return next(field.name for field in fields(self) if getattr(self, field.name) is not None)

    @property
    def text(self) -> str:
        """Its schema, expression or grammar."""
        return str(getattr(self, self.kind))


def structured_outputs(option: str, value: Any) -> StructuredOutputs:
    """The option's normal form; a dictionary of the fields is one way to write it."""
    if isinstance(value, StructuredOutputs):
        return value
    if not isinstance(value, Mapping) or not value.keys() <= {"json", "regex", "grammar"}:
        raise refusal(option, value, f"a dictionary with {_ONE}")
    return StructuredOutputs(**value)


def _schema_text(schema: Any) -> str:
    expected = "a JSON schema: a dictionary, or its text"
    try:
        parsed = json.loads(schema) if isinstance(schema, str) else schema
        if not isinstance(parsed, Mapping | bool):
            raise refusal("structured_outputs.json", schema, expected)
        return json.dumps(parsed, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise refusal("structured_outputs.json", schema, f"{expected} ({error})") from None
