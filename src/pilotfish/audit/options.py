"""The sampling options under audit, one entry each: what the request asks for, and what the oracle makes of it.

To audit another option, add an entry to `SINGLES`; all pairs are formed from them. Shares no code with the pipeline.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from pilotfish.audit import oracle
from pilotfish.audit.oracle import Floats
from pilotfish.sampling.params import SamplingParams
from pilotfish.sampling.pipeline import Step
from pilotfish.sampling.prefix import Prefix

OracleStep = Callable[[Floats, frozenset[int]], Floats]
"""(logits, tokens in the row's own output so far) -> logits."""


@dataclass(frozen=True, slots=True)
class PresencePenalty(Step):
    """Lowers the logit of every token in the row's own output by `penalty`."""

    penalty: float

    def apply(self, logits: Float[Tensor, "row vocab"], prefixes: Sequence[Prefix]) -> Float[Tensor, "row vocab"]:
        lowered = logits.clone()
        for row, prefix in enumerate(prefixes):
            present = {*prefix.committed[prefix.prompt_length :], *prefix.path}
            lowered[row, list(present)] -= self.penalty
        return lowered


@dataclass(frozen=True, slots=True)
class Setting:
    """One option or a combination.

    Attributes:
        fields: of `SamplingParams`.
        steps: the oracle's, by their place in the documented order (0 penalties, 1 temperature, 2 top_k, 3 top_p).
        presence_penalty: of the audit's own step, which stands for every option that looks at the prefix; 0 is off.
    """

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[tuple[int, OracleStep], ...] = ()
    presence_penalty: float = 0.0

    def params(self, seed: int) -> SamplingParams:
        return SamplingParams(seed=seed, **self.fields)

    def state(self, output: Sequence[int]) -> frozenset[int]:
        """What of the output the law depends on, besides the model's own context."""
        return frozenset(output) if self.presence_penalty else frozenset()

    def law(self, logits: Floats, state: frozenset[int]) -> Floats:
        """The oracle's law of a row."""
        scores = logits.astype(np.float64)
        for _, step in sorted(self.steps, key=lambda item: item[0]):
            scores = step(scores, state)
        return oracle.softmax(scores)

    def __add__(self, other: "Setting") -> "Setting":
        return Setting(
            f"{self.name} + {other.name}",
            {**self.fields, **other.fields},
            (*self.steps, *other.steps),
            self.presence_penalty or other.presence_penalty,
        )


@dataclass(frozen=True, slots=True)
class _Scale:
    temperature: float

    def __call__(self, logits: Floats, state: frozenset[int]) -> Floats:
        return oracle.scale(logits, self.temperature)


@dataclass(frozen=True, slots=True)
class _Highest:
    count: int

    def __call__(self, logits: Floats, state: frozenset[int]) -> Floats:
        return oracle.keep_highest(logits, self.count)


@dataclass(frozen=True, slots=True)
class _Mass:
    mass: float

    def __call__(self, logits: Floats, state: frozenset[int]) -> Floats:
        return oracle.keep_mass(logits, self.mass)


@dataclass(frozen=True, slots=True)
class _Present:
    penalty: float

    def __call__(self, logits: Floats, state: frozenset[int]) -> Floats:
        return oracle.lower_present(logits, state, self.penalty)


PLAIN = Setting("no option")
GREEDY = Setting("temperature 0", {"temperature": 0}, ((1, _Scale(0.0)),))
HOT = Setting("temperature 1.6", {"temperature": 1.6}, ((1, _Scale(1.6)),))
SINGLES = (
    Setting("temperature 0.6", {"temperature": 0.6}, ((1, _Scale(0.6)),)),
    Setting("top_k 3", {"top_k": 3}, ((2, _Highest(3)),)),
    Setting("top_p 0.8", {"top_p": 0.8}, ((3, _Mass(0.8)),)),
    Setting("presence penalty 1.5", {}, ((0, _Present(1.5)),), 1.5),
)
PAIRS = tuple(left + right for left, right in combinations(SINGLES, 2))
ALL = (PLAIN, GREEDY, HOT, *SINGLES, *PAIRS)
BY_NAME = {setting.name: setting for setting in ALL}
