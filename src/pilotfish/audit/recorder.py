"""Watches an executor: keeps the logits that decided each committed token. Owns nothing but the record."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from pilotfish.models.base import Executor, PassOutput, Segment


class Recorder(Executor):
    """Passes everything through to another executor.

    Attributes:
        rows: by sequence, then by absolute position of the token decided: the logits of the kept row before it.
    """

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self.config = inner.config
        self.rows: dict[int, dict[int, Tensor]] = {}
        self._waiting: dict[int, dict[int, Tensor]] = {}

    @property
    def exact(self) -> bool:
        return self._inner.exact

    def open(self, capacity: int) -> int:
        sequence = self._inner.open(capacity)
        self.rows[sequence] = {}
        return sequence

    def close(self, sequence: int) -> None:
        self._inner.close(sequence)

    def length(self, sequence: int) -> int:
        return self._inner.length(sequence)

    def forward(
        self,
        segments: Sequence[Segment],
        *,
        layers: tuple[int, int] | None = None,
        hidden_in: Float[Tensor, "node hidden"] | None = None,
        capture: Sequence[int] = (),
    ) -> PassOutput:
        output = self._inner.forward(segments, layers=layers, hidden_in=hidden_in, capture=capture)
        row = 0
        for segment in segments:
            waiting = self._waiting.setdefault(segment.sequence, {})
            for node in range(segment.logits_from, len(segment.tokens)):
                waiting[segment.first_node + node] = output.logits[row].detach().cpu()
                row += 1
        return output

    def keep(self, sequence: int, path: Sequence[int]) -> None:
        before = self._inner.length(sequence)
        self._inner.keep(sequence, path)
        waiting = self._waiting.pop(sequence, {})
        for place, node in enumerate(path, start=before):
            if node in waiting:
                # Copied, so that one kept row does not hold the logits of a whole pass.
                self.rows[sequence][place + 1] = waiting[node].clone()

    def truncate(self, sequence: int, length: int) -> None:
        self._waiting.pop(sequence, None)
        self._inner.truncate(sequence, length)
