"""`SpeculativeConfig`: what a caller may say about speculation. Owns the keys, their ranges and their defaults."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from math import inf
from typing import Any, Final, Literal, no_type_check

from pilotfish.errors import SpeculativeConfigError
from pilotfish.verify import RULES

METHODS = ("auto", "lookup", "draft_model", "ngram", "suffix", "recycle", "table", "early_exit", "eagle")
ALIASES = {"eagle3": "eagle"}
AUTO: Final = "auto"
MOST_TOKENS = 512
DRAWING = ("draft_model", "early_exit", "eagle")
"""Methods that draw from a law of their own where the rule asks for one."""
MODEL_FREE: tuple[Mapping[str, Any], ...] = ({"method": "lookup"},)
"""What `auto` chooses from unless told otherwise: what needs no training and costs next to nothing."""
OWNERS: Mapping[str, tuple[str, ...]] = {
    "model": ("draft_model", "eagle", "table", "lookup", "early_exit"),
    "drafters": ("auto",),
    "shipped": ("auto",),
    "prompt_lookup_min": ("ngram",),
    "prompt_lookup_max": ("ngram",),
    "tree_width": ("suffix", "recycle", "lookup", "table", "eagle"),
    "exit_layer": ("early_exit",),
    "suffix_decoding_max_spec_factor": ("suffix",),
    "suffix_decoding_min_token_prob": ("suffix",),
    "suffix_pool": ("suffix",),
    "suffix_pool_tokens": ("suffix",),
}
"""Keys that only some methods use; for another method they are refused."""
_WANTED = {
    "draft_model": "a directory, GGUF file, or hub id",
    "eagle": "an EAGLE-3 head: a directory or hub id",
    "table": "the directory of a back-off table",
}
"""What `model` names, where it must."""
_SMALLEST = {"prompt_lookup_min": 1, "prompt_lookup_max": 1, "tree_width": 1}
_SMALLEST |= {"suffix_pool_tokens": 1, "exit_layer": 1}


# Values of any type are judged below, where the refusal can name the key; a type checker's own would come first.
@no_type_check
@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """Which drafter, how many tokens, which rule. The keys are those people know from vLLM.

    Attributes:
        method: kind of drafter; may be left out where `model` says it. "auto" has several and takes, per request and
            round, the draft with the best expected delivered tokens per second, or none.
        model: the draft model (directory, GGUF file, catalogue name or hub id) for `draft_model`, the head (directory
            or hub id) for `eagle`, the table for `table` and perhaps for `lookup`, or the adapter for `early_exit`
            (directories).
        num_speculative_tokens: tokens drafted per round (k). "auto" lets measured times and acceptance decide in each
            round, plain decoding included; a number fixes it (for method "auto": the most); 0 is plain decoding.
        drafters: what method "auto" chooses from, each a dictionary of these fields; `lookup` by default.
        shipped: method "auto" also has the drafters that come with this package for the target, known by its checksum;
            by default where `drafters` is not given. A table goes to `lookup`, which knows what to make of it.
        prompt_lookup_min, prompt_lookup_max: lengths of the n-grams looked for, for `ngram`.
        verification: the rule, a key of `pilotfish.verify.RULES`.
        tree_width: nodes drafted per position; 1 is a chain, but for `lookup` and `table` under `match` a tree of k
            nodes.
        exit_layer: layers of the target that draft, for `early_exit` without an adapter, which knows its own.
        suffix_decoding_max_spec_factor: a matched context of n tokens is continued by at most this times n.
        suffix_decoding_min_token_prob: estimated survival below which `suffix` stops.
        suffix_pool: name of a pool of past outputs that `suffix` copies from too, kept in the user's cache; off by
            default. Requests share a pool only if their engines name the same.
        suffix_pool_tokens: most tokens of that pool.

    Raises:
        SpeculativeConfigError: names the key, what was got and what was expected.
    """

    method: str | None = None
    model: str | None = None
    num_speculative_tokens: int | Literal["auto"] = AUTO
    drafters: tuple["SpeculativeConfig", ...] | None = None
    shipped: bool | None = None
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 4
    verification: str = "match"
    tree_width: int = 1
    exit_layer: int | None = None
    suffix_decoding_max_spec_factor: float = 1.0
    suffix_decoding_min_token_prob: float = 0.1
    suffix_pool: str | None = None
    suffix_pool_tokens: int = 65_536

    def __post_init__(self) -> None:
        if self.method is None:
            if self.model is None:
                raise SpeculativeConfigError(f"method is missing: expected one of {', '.join(METHODS)}")
            object.__setattr__(self, "method", "draft_model")
        if isinstance(self.method, str) and self.method in ALIASES:
            object.__setattr__(self, "method", ALIASES[self.method])
        _require_choice("method", self.method, METHODS)
        _require_choice("verification", self.verification, tuple(RULES))
        if self.num_speculative_tokens != AUTO:
            _require_integer("num_speculative_tokens", self.num_speculative_tokens, 0, f"{AUTO!r} or ")
            if self.num_speculative_tokens > MOST_TOKENS:
                raise SpeculativeConfigError(
                    f"num_speculative_tokens={self.num_speculative_tokens}: expected at most {MOST_TOKENS}"
                )
        for name, smallest in _SMALLEST.items():
            value = getattr(self, name)
            if name == "exit_layer" and value is None:
                continue
            _require_integer(name, value, smallest)
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise SpeculativeConfigError(
                f"prompt_lookup_min={self.prompt_lookup_min} is above prompt_lookup_max={self.prompt_lookup_max}: "
                "expected min <= max"
            )
        for name, methods in OWNERS.items():
            value = getattr(self, name)
            if self.method not in methods and value != type(self).__dataclass_fields__[name].default:
                owners = " or ".join(repr(method) for method in methods)
                raise SpeculativeConfigError(f"{name}={value!r} is only used by method={owners}, not {self.method!r}")
        if self.method in _WANTED and not self.model:
            raise SpeculativeConfigError(f"method={self.method!r} needs model: {_WANTED[self.method]}")
        if self.method == "early_exit" and (self.exit_layer is None) == (self.model is None):
            raise SpeculativeConfigError(
                f"method='early_exit' needs exit_layer (how many of the target's layers draft) or model (an adapter, "
                f"which knows its layer), and not both; got exit_layer={self.exit_layer!r} and model={self.model!r}"
            )
        if self.shipped is not None and not isinstance(self.shipped, bool):
            raise SpeculativeConfigError(f"shipped={self.shipped!r}: expected true or false")
        if self.tree_width > 1 and not RULES[self.verification].trees:
            raise SpeculativeConfigError(
                f"tree_width={self.tree_width} with verification={self.verification!r}: that rule takes chains only; "
                "use 'match' or 'traversal', or tree_width=1"
            )
        self._check_suffix()
        if self.method == AUTO:
            if self.shipped is None:
                object.__setattr__(self, "shipped", self.drafters is None)
            object.__setattr__(self, "drafters", self._members())

    def _members(self) -> tuple["SpeculativeConfig", ...]:
        """The drafters of "auto" as configurations, each of one kind and under the same rule."""
        given: Any = MODEL_FREE if self.drafters is None else self.drafters
        if isinstance(given, str | Mapping) or not isinstance(given, Sequence) or not given:
            raise SpeculativeConfigError(f"drafters={given!r}: expected a list of configurations, one per drafter")
        members = []
        for member in given:
            if isinstance(member, str):
                member = {"method": member}
            if isinstance(member, Mapping):
                for key in ("num_speculative_tokens", "verification"):
                    if key in member:
                        raise SpeculativeConfigError(f"drafters: {key} belongs to the whole, not to one drafter")
                member = SpeculativeConfig.from_mapping({**member, "verification": self.verification})
            if not isinstance(member, SpeculativeConfig) or member.method == AUTO:
                raise SpeculativeConfigError(f"drafters has {member!r}: expected the configuration of one drafter")
            if member.num_speculative_tokens != AUTO:
                raise SpeculativeConfigError(
                    f"drafters: num_speculative_tokens={member.num_speculative_tokens} belongs to the whole, not to one"
                )
            members.append(replace(member, verification=self.verification))
        if [member.method for member in members].count("early_exit") > 1:
            raise SpeculativeConfigError(
                "drafters has early_exit more than once: both would run their tokens in the same places of the "
                "target's cache; keep one exit_layer"
            )
        drawn = [str(member.method) for member in members if member.method in DRAWING]
        if len(drawn) > 1 and RULES[self.verification].needs_laws:
            raise SpeculativeConfigError(
                f"drafters has {' and '.join(drawn)} with verification={self.verification!r}: what is drawn for that "
                "rule is verified whole, one draft in a round, and the time of the other would be lost; keep one of "
                "them, or use verification='match'"
            )
        return tuple(members)

    @property
    def is_adaptive(self) -> bool:
        """True where the length of a draft is decided in each round."""
        return self.method == AUTO or self.num_speculative_tokens == AUTO

    def _check_suffix(self) -> None:
        factor, least = self.suffix_decoding_max_spec_factor, self.suffix_decoding_min_token_prob
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < inf:
            raise SpeculativeConfigError(f"suffix_decoding_max_spec_factor={factor!r}: expected a number above 0")
        if isinstance(least, bool) or not isinstance(least, int | float) or not 0 < least <= 1:
            raise SpeculativeConfigError(
                f"suffix_decoding_min_token_prob={least!r}: expected a number above 0 and at most 1"
            )
        if self.suffix_pool is not None and not isinstance(self.suffix_pool, str):
            raise SpeculativeConfigError(f"suffix_pool={self.suffix_pool!r}: expected a name")
        if self.suffix_pool is not None and RULES[self.verification].needs_laws:
            # A text of the same seed in the pool was made with the random numbers that are about to judge it.
            raise SpeculativeConfigError(
                f"suffix_pool={self.suffix_pool!r} with verification={self.verification!r}: a pool of past outputs is "
                "not independent of a repeated seed; use verification='match', or no pool"
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

    @classmethod
    @no_type_check
    def parse(cls, given: "SpeculativeConfig | Mapping[str, Any] | str | None") -> "SpeculativeConfig | None":
        """Whatever a caller may give: a configuration, a dictionary, "auto", or `None` for plain decoding.

        Raises:
            SpeculativeConfigError: it is none of these.
        """
        if given is None or isinstance(given, SpeculativeConfig):
            return given
        if given == AUTO:
            return cls(method=AUTO)
        if not isinstance(given, Mapping):
            raise SpeculativeConfigError(f"speculative_config={given!r}: expected a dictionary, {AUTO!r} or None")
        return cls.from_mapping(given)


def _require_integer(name: str, value: object, smallest: int, otherwise: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
        raise SpeculativeConfigError(f"{name}={value!r}: expected {otherwise}an integer of at least {smallest}")


def _require_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SpeculativeConfigError(f"{name}={value!r}: expected one of {', '.join(choices)}")
