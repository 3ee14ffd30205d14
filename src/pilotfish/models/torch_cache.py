"""One sequence's key-value cache on PyTorch: tensors addressed by slot that grow, and the masks over them.

Owns where keys and values lie and what a row may see of them; the rules about nodes are `sequence.py`'s. Must not
know the decoder.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pilotfish.errors import CacheFullError
from pilotfish.models.config import DecoderConfig
from pilotfish.models.decoder import windowed
from pilotfish.models.sequence import Node, SequenceState
from pilotfish.terms import ROOT

LEAST_SLOTS = 64
"""Slots of a cache's first tensors; they double as more are needed."""


class TorchCache:
    """Keys and values of one sequence, `[layer, kv_head, slot, head_dim]` each.

    Committed token i lies in slot i, node i in slot `length + i`; rollback therefore costs nothing, because slots that
    are neither are never looked at.
    """

    def __init__(self, state: SequenceState, config: DecoderConfig, device: torch.device, dtype: torch.dtype) -> None:
        self.state = state
        shape = (config.num_layers, config.num_kv_heads, 0, config.head_dim)
        self.keys: Float[Tensor, "layer kv_head slot head_dim"] = torch.zeros(shape, device=device, dtype=dtype)
        self.values: Float[Tensor, "layer kv_head slot head_dim"] = torch.zeros(shape, device=device, dtype=dtype)

    def reserve(self, slots: int) -> None:
        """Makes sure that there are so many slots.

        Raises:
            CacheFullError: the tensors cannot be allocated; nothing was changed.
        """
        known = self.keys.shape[2]
        if slots <= known:
            return
        wanted = max(slots, min(max(2 * known, LEAST_SLOTS), self.state.capacity))
        try:
            self.keys, self.values = self._grown(self.keys, wanted), self._grown(self.values, wanted)
        except RuntimeError as error:
            raise CacheFullError(
                f"no memory for a key-value cache of {wanted} positions on {self.keys.device}; close other sequences"
            ) from error

    @staticmethod
    def _grown(tensor: Tensor, slots: int) -> Tensor:
        # Zeros, not garbage: masked slots get probability 0, and 0 times a stray NaN would still be NaN.
        grown = tensor.new_zeros((*tensor.shape[:2], slots, tensor.shape[3]))
        grown[:, :, : tensor.shape[2]] = tensor
        return grown

    def write(
        self,
        layer: int,
        slot: int,
        key: Float[Tensor, "row kv_head head_dim"],
        value: Float[Tensor, "row kv_head head_dim"],
    ) -> None:
        """Stores the rows' keys and values in one layer from `slot` on."""
        self.reserve(slot + len(key))
        self.keys[layer, :, slot : slot + len(key)] = key.transpose(0, 1)
        self.values[layer, :, slot : slot + len(value)] = value.transpose(0, 1)

    def read(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """A copy of the keys and values of these slots, all layers."""
        return self.keys[:, :, start:stop].clone(), self.values[:, :, start:stop].clone()

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Goes on with committed positions that another cache has computed for the same text."""
        start, count = self.state.length, keys.shape[2]
        self.reserve(start + count)
        self.keys[:, :, start : start + count] = keys
        self.values[:, :, start : start + count] = values
        self.state.append(count, keys.shape[0])

    def keep(self, path: Sequence[int]) -> None:
        """Commits the nodes of a checked path: their keys and values move to the slots of their positions."""
        length = self.state.length
        if list(path) != list(range(len(path))):
            source = [length + node for node in path]
            target = slice(length, length + len(path))
            self.keys[:, :, target] = self.keys[:, :, source]  # indexing by list copies, so overlap is harmless
            self.values[:, :, target] = self.values[:, :, source]
        self.state.keep(path)


class RowMasks:
    """What the rows of one segment see: the committed prefix, their ancestors and themselves.

    Args:
        state: the sequence, its nodes already placed.
        first_node: the first row's node; the rows are all nodes from there on.
        device: where masks are needed.
    """

    def __init__(self, state: SequenceState, first_node: int, device: torch.device) -> None:
        prefix = torch.arange(state.length, device=device)
        depths = torch.tensor([node.depth for node in state.nodes], device=device, dtype=prefix.dtype)
        self._slot_positions: Int[Tensor, " slot"] = torch.cat((prefix, state.length + depths))
        self.row_positions: Int[Tensor, " row"] = self._slot_positions[state.length + first_node :]
        ancestors = tree_mask(state.nodes)[first_node:].to(device)
        seen_prefix = torch.ones((len(ancestors), state.length), dtype=torch.bool, device=device)
        self._by_window: dict[int | None, Bool[Tensor, "row slot"]] = {None: torch.cat((seen_prefix, ancestors), dim=1)}

    def visible(self, window: int | None) -> Bool[Tensor, "row slot"]:
        """The mask of a layer with this sliding window; made once per pass."""
        if window not in self._by_window:
            self._by_window[window] = windowed(self._by_window[None], self.row_positions, self._slot_positions, window)
        return self._by_window[window]


def tree_mask(nodes: Sequence[Node]) -> Bool[Tensor, "node node"]:
    """True where the column is the row's ancestor or itself."""
    mask = torch.eye(len(nodes), dtype=torch.bool)
    if all(node.parent == index - 1 for index, node in enumerate(nodes)):
        return torch.ones_like(mask).tril()  # a chain, as every prompt is
    for index, node in enumerate(nodes):
        if node.parent != ROOT:
            mask[index] |= mask[node.parent]
    return mask
