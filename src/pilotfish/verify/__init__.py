"""Verification rules: how a draft becomes an accepted path and the target's own next token.

Pure functions on finished choices (`match`) or finished laws (the ratio rules). Knows no temperature, no text and no
model; p = target, q = draft.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from pilotfish.terms import Draft, Verdict
from pilotfish.verify.block import block
from pilotfish.verify.match import match
from pilotfish.verify.rejection import rejection
from pilotfish.verify.traversal import traversal

RatioRule = Callable[[Draft, Tensor, Tensor, float], Verdict]
"""(draft, target_probs, accept, resample) -> verdict."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a rule is called and what it needs.

    Attributes:
        name: the value of `speculative_config["verification"]`.
        trees: whether it takes a draft that branches; otherwise it refuses one with `SpeculativeConfigError`.
        verify: the function on laws and uniforms; `None` for `match`, which takes the target's choices.
    """

    name: str
    trees: bool
    verify: RatioRule | None

    @property
    def needs_laws(self) -> bool:
        """True for a ratio rule: finished laws of target and draft, and a draft honestly drawn from its law."""
        return self.verify is not None


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        rule.name: rule
        for rule in (
            Rule("match", trees=True, verify=None),
            Rule("rejection", trees=False, verify=rejection),
            Rule("block", trees=False, verify=block),
            Rule("traversal", trees=True, verify=traversal),
        )
    }
)

__all__ = ["RULES", "RatioRule", "Rule", "block", "match", "rejection", "traversal"]
