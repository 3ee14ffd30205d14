"""`SpeculativeConfig`: what a caller may say about speculation. Owns the keys, their ranges and their defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, no_type_check

from pilotfish.errors import SpeculativeConfigError
from pilotfish.verify import RULES

METHODS = ("draft_model", "ngram")
DEFAULT_DRAFT_LEN = 4


# Values of any type are judged below, where the refusal can name the key; a type checker's own would come first.
@no_type_check
@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """Which drafter, how many tokens, which rule. The keys are those people know from vLLM.

    Attributes:
        method: kind of drafter; may be left out where `model` says it.
        model: the draft model (directory, GGUF file, catalogue name or hub id), for `draft_model`.
        num_speculative_tokens: tokens drafted per round (k); 0 is plain decoding.
        prompt_lookup_min, prompt_lookup_max: lengths of the n-grams looked for, for `ngram`.
        verification: the rule, a key of `pilotfish.verify.RULES`.

    Raises:
        SpeculativeConfigError: names the key, what was got and what was expected.
    """

    method: str | None = None
    model: str | None = None
    num_speculative_tokens: int = DEFAULT_DRAFT_LEN
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 4
    verification: str = "match"

    def __post_init__(self) -> None:
        if self.method is None:
            if self.model is None:
                raise SpeculativeConfigError(f"method is missing: expected one of {', '.join(METHODS)}")
            object.__setattr__(self, "method", "draft_model")
        _require_choice("method", self.method, METHODS)
        _require_choice("verification", self.verification, tuple(RULES))
        for name in ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max"):
            value = getattr(self, name)
            smallest = 0 if name == "num_speculative_tokens" else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
                raise SpeculativeConfigError(f"{name}={value!r}: expected an integer of at least {smallest}")
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise SpeculativeConfigError(
                f"prompt_lookup_min={self.prompt_lookup_min} is above prompt_lookup_max={self.prompt_lookup_max}: "
                "expected min <= max"
            )
        if self.method == "draft_model" and not self.model:
            raise SpeculativeConfigError("method='draft_model' needs model: a directory, GGUF file, or hub id")
        if self.method != "draft_model" and self.model is not None:
            raise SpeculativeConfigError(
                f"model={self.model!r} is only used by method='draft_model', not {self.method!r}"
            )

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "SpeculativeConfig":
        """A configuration from a dictionary; an unknown key is an error that names the nearest known one."""
        known = [field.name for field in fields(cls)]
        for key in mapping:
            if key not in known:
                near = get_close_matches(str(key), known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise SpeculativeConfigError(
                    f"speculative_config has no key {key!r}: expected {', '.join(known)}{hint}"
                )
        return cls(**mapping)


def _require_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SpeculativeConfigError(f"{name}={value!r}: expected one of {', '.join(choices)}")
