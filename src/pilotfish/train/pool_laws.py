"""The target's most likely next tokens at each row of a data set, from the hidden states that were kept.

Owns the final norm and the LM head, whole, one chunk of rows at a time. Knows no table.
"""

from typing import cast

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from pilotfish.models.config import DecoderConfig
from pilotfish.models.decoder import RMSNorm
from pilotfish.models.layout import head_rows
from pilotfish.models.native_linear import native_linear
from pilotfish.models.weights import Weights
from pilotfish.sampling.highest import highest_tokens

CHUNK = 64
"""Rows whose whole law is held at a time: their logits stay in the processor's caches."""


class TopOfLaws:
    """The target's last step, of which only the likeliest tokens are kept.

    Args:
        target: the decoder.
        weights: its tensors.
        count: tokens kept per row.
        storage: of the LM head on the native executor, as the data was made; where that cannot be, PyTorch computes in
            float32.
    """

    def __init__(self, target: DecoderConfig, weights: Weights, count: int, storage: str | None = None) -> None:
        self._norm = RMSNorm(target.hidden_size, target).requires_grad_(False)
        self._norm.weight.data = weights.read("model.norm.weight").to(torch.float32)
        head = nn.Linear(target.hidden_size, target.vocab_size, bias=False).requires_grad_(False)
        head.weight.data = head_rows(target, weights, torch.arange(target.vocab_size))
        self._head = native_linear(head, storage) or head
        self.count = min(count, target.vocab_size)

    @torch.no_grad()
    def __call__(self, hidden: Float[Tensor, "row hidden"]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Ids and probabilities (at temperature 1), `[row, count]`, the likeliest first.

        Args:
            hidden: states after the last layer.
        """
        ids = np.zeros((len(hidden), self.count), dtype=np.int32)
        probs = np.zeros((len(hidden), self.count), dtype=np.float32)
        for start in range(0, len(hidden), CHUNK):
            rows = slice(start, start + CHUNK)
            logits = self.logits(hidden[rows])
            best = torch.tensor(highest_tokens(logits.numpy(), logits.shape[1], self.count).ids)
            ids[rows] = best.numpy()
            probs[rows] = (logits.gather(1, best) - logits.logsumexp(-1, keepdim=True)).exp().numpy()
        return ids, probs

    @torch.no_grad()
    def logits(self, hidden: Float[Tensor, "row hidden"]) -> Float[Tensor, "row vocab"]:
        """All of them, of few rows at a time."""
        return cast(Tensor, self._head(self._norm(hidden.to(torch.float32))))
