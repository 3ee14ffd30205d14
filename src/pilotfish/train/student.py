"""What a drafter that is trained offers the trainer: `Student`, one per kind.

Owns the contract. A student turns a pack into logits over its draft vocabulary at the rows it could draft from; the
trainer compares them with the target's law there. Knows no optimizer and no loss.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pilotfish.train.packs import Pack


@dataclass(frozen=True, slots=True, eq=False)
class Depth:
    """A student's predictions at one depth of its drafts.

    Attributes:
        laws: for each, the row of the pack whose law it imitates.
        logits: over the draft vocabulary, or when it is not training over `examined_ids`.
    """

    laws: Int[Tensor, " start"]
    logits: Float[Tensor, "start draft_vocab"]


class Student(nn.Module, ABC):
    """A drafter in training.

    Attributes:
        kind: as the command line names it.
        method: as `speculative_config` names it.
        boundaries: whose hidden states it reads, in the target's count.
        target_ids: for each column of its logits the target's token id.
        unrolls: it feeds on what it made itself, so each depth is learned by itself; otherwise a draft at any depth
            reads nothing but tokens, and one depth says all.
    """

    kind: str
    method: str
    boundaries: tuple[int, ...]
    target_ids: Int[Tensor, " draft_vocab"]
    unrolls: bool = False

    @abstractmethod
    def forward(self, pack: Pack, depths: int) -> list[Depth]:
        """Predictions at `depths` depths, or at one where the student does not unroll.

        Without unrolling, that depth has a row for every answer token of the pack but the conversations' first ones.
        """

    @property
    def examined_ids(self) -> Int[Tensor, " draft_vocab"]:
        """For each column of its logits when it is not training the target's token id: what it drafts from in use."""
        return self.target_ids

    @abstractmethod
    def save(self, path: Path, dtype: torch.dtype, source: dict[str, Any] | None) -> None:
        """Writes a directory that the engine loads.

        Args:
            dtype: of the tensors.
            source: the target's `config.json`, where it has one.

        Raises:
            OSError: it cannot be written.
        """

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What describes its shape, for the record; a run that goes on must have the same."""

    def trained(self) -> dict[str, Tensor]:
        """The parameters that learn, by name."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Puts trained parameters back."""
        with torch.no_grad():
            for name, parameter in self.trained().items():
                parameter.copy_(tensors[name])


def require_layers(names: tuple[int, ...], num_layers: int) -> None:
    """Refuses layers that the target does not have."""
    from pilotfish.errors import InvalidInputError

    outside = [layer for layer in names if not 0 <= layer < num_layers]
    if outside:
        raise InvalidInputError(f"layers {outside}: the target has layers 0 to {num_layers - 1}")
