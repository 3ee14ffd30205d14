"""An exit adapter in training: a correction of the target's state at an early layer, taught to foresee the last one's.

Owns the start and the rows it learns from; its mathematics is `models/exit_adapter.py`, the same that drafts. It reads
only one row, so a pack is one matrix product.
"""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from pilotfish.errors import InvalidInputError
from pilotfish.models.config import DecoderConfig
from pilotfish.models.exit_adapter import ExitAdapter, ExitConfig, save_exit_adapter
from pilotfish.models.layout import head_rows
from pilotfish.models.weights import Weights
from pilotfish.train.packs import Pack
from pilotfish.train.student import Depth, Student


class ExitStudent(Student):
    """An adapter behind the target's first layers.

    Args:
        target: the decoder.
        weights: its tensors: final norm and LM head.
        ids: the draft vocabulary.
        exit_layer: how many layers draft.
        rank: width of the correction.

    Raises:
        InvalidInputError: the target does not have more layers than that, or the rank is not positive.
    """

    kind, method = "exit", "early_exit"

    def __init__(
        self, target: DecoderConfig, weights: Weights, ids: Int[Tensor, " draft_vocab"], exit_layer: int, rank: int
    ) -> None:
        super().__init__()
        if not 1 <= exit_layer < target.num_layers:
            raise InvalidInputError(f"exit_layer is {exit_layer}: expected 1 to {target.num_layers - 1}")
        if rank < 1:
            raise InvalidInputError(f"rank is {rank}: expected at least 1")
        self.boundaries = (exit_layer,)
        self.register_buffer("target_ids", ids, persistent=False)
        self._target = target
        self.adapter = ExitAdapter(ExitConfig(exit_layer, rank, len(ids)), target)
        self.adapter.target_ids = ids
        with torch.no_grad():
            self.adapter.lm_head.weight.copy_(head_rows(target, weights, ids))
            self.adapter.norm.weight.copy_(weights.read("model.norm.weight").float())
            nn.init.zeros_(self.adapter.up.weight)  # starts as the plain early exit

    def forward(self, pack: Pack, depths: int) -> list[Depth]:
        laws = pack.starts(1)[0] + 1
        return [Depth(laws, self.adapter(pack.hidden[self.boundaries[0]][laws]).float())]

    def save(self, path: Path, dtype: torch.dtype, source: dict[str, Any] | None) -> None:
        save_exit_adapter(self.adapter, path, self._target, dtype)

    def settings(self) -> dict[str, Any]:
        config = self.adapter.config
        return {"exit_layer": config.exit_layer, "rank": config.rank, "draft_vocab_size": config.draft_vocab_size}
