"""The target as a teacher: its law over a draft vocabulary, from hidden states that were kept.

Owns the final norm and the LM head, frozen, on the training device. Only the columns of the draft vocabulary are
computed, and the rest's mass where it is asked for, because over the whole vocabulary the teacher would cost as much as
the drafter. Knows no drafter.
"""

from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from pilotfish.models.config import DecoderConfig
from pilotfish.models.decoder import RMSNorm
from pilotfish.models.layout import head_rows
from pilotfish.models.weights import Weights

CHUNK = 256
"""Rows whose whole law is held at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """The target's law at some rows.

    Attributes:
        probs: over the draft vocabulary. Sums to 1 where the rest was not asked for.
        best: the target's most likely token of all, in its own ids; `None` where the rest was not asked for.
        text: the probability of given tokens of the whole vocabulary; `None` where they were not given.
    """

    probs: Float[Tensor, "row draft_vocab"]
    best: Int[Tensor, " row"] | None = None
    text: Float[Tensor, " row"] | None = None


class Teacher:
    """The target's last step.

    Args:
        target: the decoder.
        weights: its tensors.
        ids: the draft vocabulary.
        temperature: at which the law is taken.
        device: where to compute.
    """

    def __init__(
        self,
        target: DecoderConfig,
        weights: Weights,
        ids: Int[Tensor, " draft_vocab"],
        *,
        temperature: float = 1.0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.boundary = target.num_layers
        self.ids = ids.to(device)
        self._norm = RMSNorm(target.hidden_size, target).to(device).requires_grad_(False)
        self._norm.weight.data = weights.read("model.norm.weight").to(device, torch.float32)
        self._head = head_rows(target, weights, torch.arange(target.vocab_size)).to(device)
        self._columns = self._head[self.ids]
        self._temperature = temperature

    @torch.no_grad()
    def restricted(self, hidden: Float[Tensor, "row hidden"]) -> Law:
        """The law made to sum to 1 over the draft vocabulary.

        Args:
            hidden: states after the last layer.
        """
        return Law((F.linear(self._normed(hidden), self._columns) / self._temperature).softmax(-1))

    @torch.no_grad()
    def whole(self, hidden: Float[Tensor, "row hidden"], text: Int[Tensor, " row"] | None = None) -> Law:
        """The law as it is, of which only a part lies in the draft vocabulary.

        Args:
            hidden: states after the last layer.
            text: tokens whose probability is wanted.
        """
        parts = []
        for start in range(0, len(hidden), CHUNK):
            logits = F.linear(self._normed(hidden[start : start + CHUNK]), self._head) / self._temperature
            total = logits.logsumexp(-1, keepdim=True)
            said = None if text is None else (logits.gather(1, text[start : start + CHUNK, None]) - total).exp()[:, 0]
            parts.append(Law((logits[:, self.ids] - total).exp(), logits.argmax(-1), said))
        best = torch.cat([part.best for part in parts if part.best is not None])
        texts = [part.text for part in parts if part.text is not None]
        return Law(torch.cat([part.probs for part in parts]), best, torch.cat(texts) if texts else None)

    def _normed(self, hidden: Float[Tensor, "row hidden"]) -> Float[Tensor, "row hidden"]:
        return cast(Tensor, self._norm(hidden))
