"""Toy models behind the executor's contract: logits from a table, the row chosen by the last few tokens.

Owns the tables and how a context finds its row. Exact by construction, and so cheap that a statistical test can afford
hundreds of thousands of rounds of the real engine. Knows no sampling and no drafts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from pilotfish.errors import RowsError
from pilotfish.models.base import Executor, PassOutput, Segment
from pilotfish.models.config import DecoderConfig
from pilotfish.models.sequence import SequenceState
from pilotfish.terms import ROOT

CONTEXT_LENGTH = 4096
_MIX = 0x9E3779B1


@dataclass(frozen=True, slots=True)
class Table:
    """A language model that looks at its last `order` tokens.

    Attributes:
        logits: `[context, vocab]` float32, one row per class of contexts.
        order: tokens looked at; with 1 every token has its own row, as far as there are rows.
    """

    logits: NDArray[np.float32]
    order: int = 1

    @property
    def vocab_size(self) -> int:
        return int(self.logits.shape[1])

    def row(self, tokens: Sequence[int]) -> int:
        """The row that decides the token after `tokens`."""
        tail = tokens[-self.order :]
        if self.order == 1:
            return tail[0] % len(self.logits)
        mixed = 0
        for token in tail:
            mixed = ((mixed ^ token) * _MIX + 1) & 0xFFFFFFFF
        return (mixed >> 7) % len(self.logits)


def random_table(
    seed: Sequence[int], vocab_size: int, *, order: int = 1, rows: int | None = None, spread: float = 1.2
) -> Table:
    """Normal logits of standard deviation `spread`, another row for every class of contexts."""
    rng = np.random.default_rng(list(seed))
    count_rows = vocab_size if rows is None else rows
    return Table((spread * rng.standard_normal((count_rows, vocab_size))).astype(np.float32), order)


def nearby(table: Table, seed: Sequence[int], spread: float) -> Table:
    """A draft model for `table`: its logits with normal noise of standard deviation `spread`."""
    rng = np.random.default_rng(list(seed))
    noise = spread * rng.standard_normal(table.logits.shape)
    return Table((table.logits + noise).astype(np.float32), table.order)


class _Sequence:
    """Committed tokens and nodes of one sequence."""

    def __init__(self, number: int, capacity: int) -> None:
        self.state = SequenceState(number, capacity)
        self.committed: list[int] = []
        self.tokens: list[int] = []

    def context(self, node: int, order: int) -> list[int]:
        """The last tokens up to and including a node's own."""
        tail: list[int] = []
        while node != ROOT and len(tail) < order:
            tail.append(self.tokens[node])
            node = self.state.nodes[node].parent
        tail.reverse()
        missing = order - len(tail)
        return [*self.committed[max(0, len(self.committed) - missing) :], *tail] if missing else tail


class TableExecutor(Executor):
    """Runs a `Table`. No layers, so no layer ranges and no hidden states."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.config = DecoderConfig(
            family="table",
            vocab_size=table.vocab_size,
            hidden_size=0,
            intermediate_size=0,
            num_heads=0,
            num_kv_heads=0,
            head_dim=0,
            context_length=CONTEXT_LENGTH,
            norm_eps=0.0,
            query_scale=1.0,
            layers=(),
        )
        self._logits = torch.from_numpy(table.logits)
        self._sequences: dict[int, _Sequence] = {}
        self._numbers = count()

    @property
    def exact(self) -> bool:
        return True

    def open(self, capacity: int) -> int:
        if capacity < 1:
            raise RowsError(f"capacity is {capacity}; a sequence needs room for at least 1 position")
        number = next(self._numbers)
        self._sequences[number] = _Sequence(number, capacity)
        return number

    def close(self, sequence: int) -> None:
        self._open(sequence)
        del self._sequences[sequence]

    def length(self, sequence: int) -> int:
        return len(self._open(sequence).committed)

    def forward(
        self,
        segments: Sequence[Segment],
        *,
        layers: tuple[int, int] | None = None,
        hidden_in: Float[Tensor, "node hidden"] | None = None,
        capture: Sequence[int] = (),
    ) -> PassOutput:
        if layers is not None or hidden_in is not None or capture:
            raise RowsError("a table has no layers: leave out layers, hidden_in and capture")
        if len({segment.sequence for segment in segments}) != len(segments) or not segments:
            raise RowsError("a pass needs at least one segment, and at most one per sequence")
        checked = [(segment, self._open(segment.sequence)) for segment in segments]
        for segment, _ in checked:
            for token in segment.tokens:
                if not 0 <= token < self.table.vocab_size:
                    raise RowsError(f"token id {token} is outside the vocabulary of {self.table.vocab_size}")
        placed = [sequence.state.check_rows(segment, (0, 0)) for segment, sequence in checked]
        rows: list[int] = []
        for (segment, sequence), nodes in zip(checked, placed, strict=True):
            sequence.state.place(segment.first_node, nodes)
            sequence.tokens[segment.first_node :] = segment.tokens
            first = segment.first_node
            rows.extend(
                self.table.row(sequence.context(node, self.table.order))
                for node in range(first + segment.logits_from, first + len(nodes))
            )
        return PassOutput(self._logits[torch.tensor(rows, dtype=torch.int64)])

    def keep(self, sequence: int, path: Sequence[int]) -> None:
        kept = self._open(sequence)
        kept.state.check_path(path)
        kept.committed.extend(kept.tokens[node] for node in path)
        kept.state.keep(path)
        kept.tokens.clear()

    def truncate(self, sequence: int, length: int) -> None:
        cut = self._open(sequence)
        cut.state.check_length(length)
        cut.state.truncate(length)
        del cut.committed[length:]
        cut.tokens.clear()

    def _open(self, sequence: int) -> _Sequence:
        if sequence not in self._sequences:
            raise RowsError(f"sequence {sequence} is not open; use a number that open() gave and close() has not taken")
        return self._sequences[sequence]
