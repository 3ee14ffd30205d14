"""The logits of a pass as NumPy rows, and back.

Right after a pass of the model the caches hold weights, and the first calls into PyTorch cost more than the work they
do. So a pass's logits are handed on as one array, cut into rows by NumPy.
"""

from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

Rows: TypeAlias = NDArray[np.float32]
"""`[row, padded_vocab]` logits, in the order of a pass's rows."""


def rows_of(logits: Float[Tensor, "row padded_vocab"]) -> Rows:
    """The same logits, float32 on the CPU; shared where they are so already."""
    try:  # one call into PyTorch where that is enough
        rows = logits.numpy()
    except (TypeError, RuntimeError):  # on another device, of a type that NumPy has not, or with a gradient
        return logits.detach().to("cpu", torch.float32).numpy()
    return rows if rows.dtype == np.float32 else rows.astype(np.float32)
