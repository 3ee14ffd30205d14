"""The target's hidden states for training: kept as they pass by in generation, or computed again. float16.

Owns the way states are rounded for storage, so that both ways give the same numbers. Knows no files.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Float16
from torch import Tensor

from pilotfish.drafters.base import Drafter, DraftJob, Observation
from pilotfish.models.base import Executor, PagedExecutor, Segment
from pilotfish.terms import EMPTY_DRAFT, Draft

ROWS = 256
"""Rows of a pass that computes states again."""
LARGEST = 65504.0
PROBE_TOKENS, PROBE_VALUES = 16, 8
PROBE_TOLERANCE = 0.02
"""Of the largest value: what other machines' order of summation may change, and far less than other weights would."""


def as_half(states: Float[Tensor, "row hidden"]) -> Float16[Tensor, "row hidden"]:
    """States as they are stored: rounded to float16, what is beyond its range clamped to it.

    Some models have single values of many thousands at a text's first token; an infinity would spoil a training.
    """
    return states.clamp(-LARGEST, LARGEST).to(torch.float16)


class Recorder(Drafter):
    """Proposes nothing, and keeps the target's states at all that is committed.

    Args:
        boundaries: whose states to keep.
        hidden_size: their width.
    """

    observes_end = True

    def __init__(self, boundaries: Sequence[int], hidden_size: int) -> None:
        self.hidden_boundaries = tuple(boundaries)
        self._hidden_size = hidden_size
        self._running: dict[int, _Recording] = {}
        self._ended: dict[int, _Recording] = {}

    def begin(self, request: int, capacity: int) -> None:
        self._running[request] = _Recording(self.hidden_boundaries, capacity, self._hidden_size)

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft]:
        return [EMPTY_DRAFT for _ in jobs]

    def observe(self, observation: Observation) -> None:
        self._running[observation.request].add(observation)

    def end(self, request: int) -> None:
        self._ended[request] = self._running.pop(request)

    def take(self, request: int, tokens: Sequence[int], executor: Executor) -> dict[int, Float16[Tensor, "row hidden"]]:
        """The states of a request that ended, at all its tokens but the last; they are forgotten here.

        Args:
            request: its key.
            tokens: all its tokens.
            executor: the target, for a beginning that it did not run because it had it in its cache.
        """
        recording = self._ended.pop(request)
        states = recording.states(len(tokens) - 1)
        if recording.first == 0:
            return states
        start = compute_states(executor, tokens[: recording.first + 1], self.hidden_boundaries)
        return {boundary: torch.cat((start[boundary], rows)) for boundary, rows in states.items()}


class _Recording:
    """One request's states, each row at its position; `first` is the first position that was seen."""

    def __init__(self, boundaries: Sequence[int], capacity: int, hidden_size: int) -> None:
        self._rows = {boundary: torch.empty(capacity, hidden_size, dtype=torch.float16) for boundary in boundaries}
        self._end: int | None = None
        self.first = 0

    def add(self, observation: Observation) -> None:
        for boundary, rows in self._rows.items():
            states = observation.hidden[boundary]
            start = observation.cached_length - len(states)
            rows[start : observation.cached_length] = as_half(states)
        if self._end is None:
            self.first = start
        assert self._end is None or start <= self._end, "rows are run in order, again perhaps, without a gap"
        self._end = observation.cached_length

    def states(self, stop: int) -> dict[int, Float16[Tensor, "row hidden"]]:
        assert self._end == stop, "the last round was observed"
        return {boundary: rows[self.first : stop].clone() for boundary, rows in self._rows.items()}


def probe(executor: Executor) -> tuple[float, ...]:
    """A few values of the last hidden state of a fixed text: a checksum of what a model computes.

    Names and sizes of files can be those of another model; this can not.
    """
    config = executor.config
    tokens = [(7 * place + 3) % config.vocab_size for place in range(PROBE_TOKENS + 1)]
    last = len(config.layers)
    return tuple(compute_states(executor, tokens, (last,))[last][-1, :PROBE_VALUES].tolist())


def same_probe(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Whether two probes are of the same model."""
    most = PROBE_TOLERANCE * max(map(abs, ours))
    return len(ours) == len(theirs) and all(abs(a - b) <= most for a, b in zip(ours, theirs, strict=True))


@torch.inference_mode()
def compute_states(
    executor: Executor, tokens: Sequence[int], boundaries: Sequence[int]
) -> dict[int, Float16[Tensor, "row hidden"]]:
    """The states at all tokens but the last, by boundary, computed now; layers above the last of them do not run."""
    read = tokens[:-1]
    layers = (0, max(boundaries))
    if isinstance(executor, PagedExecutor):  # texts that nobody uses now may fill the cache
        executor.prefix_cache.provide(executor.pages_for(len(tokens)))
    sequence = executor.open(len(tokens))
    try:
        parts: dict[int, list[Tensor]] = {boundary: [] for boundary in boundaries}
        for start in range(0, len(read), ROWS):
            rows = read[start : start + ROWS]
            segment = Segment(sequence, rows, logits_from=len(rows))
            output = executor.forward([segment], layers=layers, capture=boundaries)
            executor.keep(sequence, range(len(rows)))
            for boundary in boundaries:
                parts[boundary].append(as_half(output.hidden[boundary]).cpu())
    finally:
        executor.close(sequence)
    return {boundary: torch.cat(states) for boundary, states in parts.items()}
