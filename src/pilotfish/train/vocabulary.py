"""Which of the target's tokens a drafter may say: the most frequent ones of its own answers.

Owns the count and the choice. Logits over fewer tokens are most of what a small drafter saves; what is left out can
never be accepted, so the choice is by coverage of the text the target really writes.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from pilotfish.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """A choice of tokens.

    Attributes:
        ids: the target's ids, rising.
        coverage: share of the counted tokens that are among them.
    """

    ids: Int[Tensor, " draft_vocab"]
    coverage: float


def choose_vocabulary(counts: NDArray[np.int64], size: int) -> DraftVocabulary:
    """The `size` most frequent ids; of equally frequent ones the lowest.

    Args:
        counts: by the target's id.

    Raises:
        InvalidInputError: the size is not from 1 to the target's vocabulary, or nothing was counted.
    """
    if not 1 <= size <= len(counts):
        raise InvalidInputError(f"a draft vocabulary of {size}: expected 1 to {len(counts)}, the target's vocabulary")
    total = int(counts.sum())
    if total == 0:
        raise InvalidInputError("no answer token was counted: the training split is empty; make more data")
    ids = np.sort(np.argsort(-counts, kind="stable")[:size])
    return DraftVocabulary(torch.from_numpy(ids.astype(np.int64)), float(counts[ids].sum()) / total)
