"""What an option of the pipeline is: a pure function of a row's own logits and prefix."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pilotfish.sampling.candidates import Candidates
from pilotfish.sampling.prefix import Prefix


class Step(ABC):
    """One option."""

    @abstractmethod
    def apply(self, logits: Float[Tensor, "row vocab"], prefixes: Sequence[Prefix]) -> Float[Tensor, "row vocab"]:
        """New logits, float32 on the CPU. Row i may depend on row i and `prefixes[i]` only.

        The logits given are the pipeline's own copy: they may be changed and returned.
        """


class Truncation(Step):
    """An option that looks at scores alone, and that may leave fewer candidates than it was given."""

    @abstractmethod
    def candidates(self, found: Candidates) -> Candidates:
        """The candidates that stay, with their scores; what is given stays as it is."""

    def apply(self, logits: Float[Tensor, "row vocab"], prefixes: Sequence[Prefix]) -> Float[Tensor, "row vocab"]:
        """The same on whole rows."""
        found = self.candidates(Candidates(None, logits.numpy()))
        return torch.from_numpy(found.spread(found.scores, -np.inf, logits.shape[1]))
