"""Options that change logits: bias, penalties for tokens that came before, the caller's own processors.

Penalties count the committed tokens once as they come (`history.py`) and the drafted ones on a row's path for that
row. A token's new logit is computed from its whole count in one way, whether it was committed or drafted, so that a
row has the same bits under speculation as in plain decoding.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pilotfish.errors import SamplingParamsError
from pilotfish.sampling.candidates import Scores
from pilotfish.sampling.history import TokenCounts
from pilotfish.sampling.params import LogitsProcessor
from pilotfish.sampling.prefix import Prefix
from pilotfish.sampling.step import Step

_LARGEST = float(np.finfo(np.float32).max)


class LogitBias(Step):
    """Adds a bias to the logits of some tokens."""

    def __init__(self, biases: Mapping[int, float]) -> None:
        self._ids = np.array(list(biases), dtype=np.int64)
        # Below the range of float32 a bias could make an infinity, and that is a mask, not a bias.
        self._values = np.clip(np.array(list(biases.values())), -_LARGEST / 4, _LARGEST / 4).astype(np.float32)

    def apply(self, logits: Float[Tensor, "row vocab"], prefixes: Sequence[Prefix]) -> Float[Tensor, "row vocab"]:
        logits.numpy()[:, self._ids] += self._values
        return logits


class CountPenalty(Step):
    """Changes the logit of each token that occurred, by its count.

    Attributes:
        native_form: `penalised` as the native code knows it: whether it scales, factor, step.
    """

    def __init__(self, native_form: tuple[bool, float, float], *, with_prompt: bool) -> None:
        self.native_form = native_form
        self._memory = TokenCounts(with_prompt=with_prompt)

    @abstractmethod
    def penalised(self, logits: Scores, counts: Scores) -> Scores:
        """New logits of tokens with these counts, elementwise."""

    def counts(self, prefixes: Sequence[Prefix]) -> Scores:
        """`[token]` how often each was committed, up to the highest one; what was drafted comes on top."""
        committed = prefixes[0].committed
        assert all(prefix.committed is committed for prefix in prefixes), "the rows of one call belong to one request"
        self._memory.follow(prefixes[0])
        return self._memory.counts

    def apply(self, logits: Float[Tensor, "row vocab"], prefixes: Sequence[Prefix]) -> Float[Tensor, "row vocab"]:
        rows = logits.numpy()
        counts = self.counts(prefixes)
        ids = np.flatnonzero(counts)
        known = self.penalised(rows.take(ids, axis=1), counts[ids])
        places, tokens, whole = _drafted(prefixes, counts)
        drafted = self.penalised(rows[places, tokens], whole)
        for row, changed in zip(rows, known, strict=True):
            row[ids] = changed
        rows[places, tokens] = drafted
        return logits


def _drafted(prefixes: Sequence[Prefix], counts: Scores) -> tuple[list[int], list[int], Scores]:
    """Rows and tokens of what was drafted on each row's path, and how often they occurred in all."""
    found = [(place, token) for place, prefix in enumerate(prefixes) for token in set(prefix.path)]
    places, tokens = [place for place, _ in found], [token for _, token in found]
    whole = [
        prefixes[place].path.count(token) + (counts[token] if token < counts.size else 0) for place, token in found
    ]
    return places, tokens, np.array(whole, dtype=np.float32)


class RepetitionPenalty(CountPenalty):
    """Divides positive logits of tokens in prompt and output by the penalty and multiplies negative ones.

    After Keskar et al., CTRL (https://arxiv.org/abs/1909.05858).
    """

    def __init__(self, penalty: float) -> None:
        self._penalty = np.float32(penalty)
        super().__init__((True, float(self._penalty), 0.0), with_prompt=True)

    def penalised(self, logits: Scores, counts: Scores) -> Scores:
        return np.where(logits > 0, logits / self._penalty, logits * self._penalty)


class OutputPenalty(CountPenalty):
    """Takes from the logits of tokens in the output: frequency penalty times count, and presence penalty."""

    def __init__(self, frequency: float, presence: float) -> None:
        self._frequency = np.float32(frequency)
        self._presence = np.float32(presence)
        super().__init__((False, float(self._frequency), float(self._presence)), with_prompt=False)

    def penalised(self, logits: Scores, counts: Scores) -> Scores:
        return logits - self._frequency * counts - self._presence


class Processor(Step):
    """A caller's own function on prefix and logits. What is not a number in its result counts as impossible."""

    def __init__(self, function: LogitsProcessor) -> None:
        self._function = function

    def apply(self, logits: Float[Tensor, "row vocab"], prefixes: Sequence[Prefix]) -> Float[Tensor, "row vocab"]:
        for row, prefix in enumerate(prefixes):
            changed = self._function(prefix, logits[row].clone())
            if not isinstance(changed, Tensor) or changed.shape != logits[row].shape:
                got = tuple(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
                raise SamplingParamsError(
                    f"logits_processors: {self._function!r} returned {got}; expected a tensor of shape "
                    f"{tuple(logits[row].shape)}, the logits it was given or new ones"
                )
            logits[row] = torch.nan_to_num(changed.float(), nan=-torch.inf, posinf=_LARGEST, neginf=-torch.inf)
        return logits
