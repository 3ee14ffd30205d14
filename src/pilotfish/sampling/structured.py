"""What form the output must have: `StructuredOutputs`, a schema, an expression, a Lark grammar or a choice of texts.

Owns the values and their shape. Whether a grammar makes sense is judged where it is compiled (`grammar.py`).
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, no_type_check

from pilotfish.errors import SamplingParamsError
from pilotfish.sampling.checks import refusal, strings

_ONE = "exactly one of json, regex, grammar, choice"


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
        choice: texts, one of which is the whole output.

    Raises:
        SamplingParamsError: none or several are given, or one is of the wrong type.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: Sequence[str] | None = None

    def __post_init__(self) -> None:
        given = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        if len(given) != 1:
            raise SamplingParamsError(f"structured_outputs has {' and '.join(given) or 'none'}; expected {_ONE}")
        if self.json is not None:
            object.__setattr__(self, "json", _schema_text(self.json))
        elif self.choice is not None:
            texts = strings("structured_outputs.choice", self.choice)
            if not texts:
                raise SamplingParamsError("structured_outputs.choice is empty; expected at least one text")
            object.__setattr__(self, "choice", texts)
        else:
            value = getattr(self, given[0])
            if not isinstance(value, str):
                raise refusal(f"structured_outputs.{given[0]}", value, "text")

    @property
    def kind(self) -> str:
        """Which of the four it is."""
        return next(field.name for field in fields(self) if getattr(self, field.name) is not None)

    @property
    def text(self) -> str:
        """Its schema, expression or grammar; a choice is an expression too."""
        return str(getattr(self, self.kind)) if self.choice is None else "|".join(map(_literally, self.choice))


def structured_outputs(option: str, value: Any) -> StructuredOutputs:
    """The option's normal form; a dictionary of the fields is one way to write it."""
    if isinstance(value, StructuredOutputs):
        return value
    if not isinstance(value, Mapping) or not value.keys() <= {"json", "regex", "grammar", "choice"}:
        raise refusal(option, value, f"a dictionary with {_ONE}")
    return StructuredOutputs(**value)


def _schema_text(schema: Any) -> str:
    expected = "a JSON schema: a dictionary, or its text"
    try:
        parsed = json.loads(schema) if isinstance(schema, str) else schema
        if not isinstance(parsed, Mapping | bool):
            raise refusal("structured_outputs.json", schema, expected)
        return json.dumps(parsed, ensure_ascii=False)
    except RecursionError:
        raise SamplingParamsError("structured_outputs.json is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise refusal("structured_outputs.json", schema, f"{expected} ({error})") from None


def _literally(text: str) -> str:
    """A regular expression of that text alone."""
    return re.sub(r"[^0-9A-Za-z_ ]", lambda found: f"\\x{{{ord(found.group()):x}}}", text)
