"""Conversations side by side without padding, in an order that a seed decides.

Owns packing and order: which conversations make pack number i of epoch e is a function of the data, the seed and the
sizes, so that a resumed run goes on where it stopped. Knows no model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from pilotfish.errors import DataSetError
from pilotfish.train.dataset import DataSet, Place, Split


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    """Rows of several conversations. Row j of a conversation stands at its token j; its last token has no row.

    Attributes:
        tokens: the row's own token.
        following: the token after it, which the target's law at this row is about.
        answers: true where the target chose that token.
        positions: within the conversation.
        lengths: rows of each conversation.
        temperatures: at which the target chose, by conversation.
        hidden: by layer boundary, the target's states in float32.
    """

    tokens: Int[Tensor, " row"]
    following: Int[Tensor, " row"]
    answers: Bool[Tensor, " row"]
    positions: Int[Tensor, " row"]
    lengths: tuple[int, ...]
    temperatures: tuple[float, ...]
    hidden: dict[int, Float[Tensor, "row hidden"]]

    def starts(self, depths: int) -> list[Int[Tensor, " start"]]:
        """For each depth k the rows from which a draft can reach it: the k + 1 tokens after the next are answers.

        A draft that starts at row j knows token j + 1; at depth k it says token j + k + 2, by the law of row j + k + 1.
        """
        remaining = torch.cat([torch.arange(length, 0, -1) for length in self.lengths]).to(self.answers.device)
        alive = torch.ones_like(self.answers)
        found = []
        for depth in range(depths):
            ahead = self.answers.roll(-(depth + 1))
            alive = alive & ahead & (remaining > depth + 1)
            found.append(alive.nonzero()[:, 0])
        return found

    def to(self, device: torch.device) -> "Pack":
        moved = {boundary: states.to(device) for boundary, states in self.hidden.items()}
        return replace(
            self,
            tokens=self.tokens.to(device),
            following=self.following.to(device),
            answers=self.answers.to(device),
            positions=self.positions.to(device),
            hidden=moved,
        )


@dataclass(frozen=True, slots=True)
class Position:
    """Where in the stream of packs a run is."""

    epoch: int = 0
    pack: int = 0


class Packs:
    """The packs of one split.

    Args:
        data: opened; only its first `shards` shards are looked at, so that a set may grow meanwhile.
        boundaries: whose hidden states are read.
        batch_tokens, max_length, seed: see `TrainOptions`.

    Raises:
        DataSetError: the split has no conversation with an answer to learn from.
    """

    def __init__(
        self,
        data: DataSet,
        split: Split,
        boundaries: Sequence[int],
        *,
        batch_tokens: int,
        max_length: int,
        seed: int = 0,
        shards: int | None = None,
    ) -> None:
        self._data = data
        self.boundaries = tuple(sorted(set(boundaries)))
        self._batch_tokens = batch_tokens
        self._max_length = max_length
        self._seed = seed
        data.require_boundaries(self.boundaries)
        limit = len(data.manifest.shards) if shards is None else shards
        self.places: list[Place] = [
            place for place in data.places(split) if place.shard < limit and place.answer_tokens > 1
        ]
        if not self.places:
            raise DataSetError(
                f"{data.directory} has no conversation in its {split} split: make more data with `pilotfish train "
                "data`, or hold out a larger share of it"
            )
        self._plans: dict[int, list[list[Place]]] = {}

    def plan(self, epoch: int) -> list[list[Place]]:
        """The conversations of each pack of an epoch."""
        if epoch not in self._plans:
            order = np.random.default_rng((self._seed, epoch)).permutation(len(self.places))
            self._plans = {epoch: self._packed([self.places[index] for index in order])}
        return self._plans[epoch]

    def in_order(self, answer_tokens: int) -> list[list[Place]]:
        """Packs of the first conversations, in the data's order, until so many answer tokens are reached."""
        chosen, total = [], 0
        for place in self.places:
            chosen.append(place)
            total += place.answer_tokens
            if total >= answer_tokens:
                break
        return self._packed(chosen)

    def take(self, position: Position, count: int) -> tuple[list[list[Place]], Position]:
        """The next packs, and where the ones after them are."""
        epoch, pack = position.epoch, position.pack
        taken: list[list[Place]] = []
        while len(taken) < count:
            plan = self.plan(epoch)
            if pack == len(plan):
                epoch, pack = epoch + 1, 0
                continue
            taken.append(plan[pack])
            pack += 1
        return taken, Position(epoch, pack)

    def read(self, places: Sequence[Place]) -> Pack:
        """One pack with its hidden states.

        Raises:
            DataSetError: a shard is damaged.
        """
        parts = [self._data.read(place, self.boundaries) for place in places]
        sizes = [min(len(part.tokens), self._max_length) - 1 for part in parts]
        pairs = list(zip(parts, sizes, strict=True))
        return Pack(
            torch.cat([part.tokens[:size] for part, size in pairs]),
            torch.cat([part.tokens[1 : size + 1] for part, size in pairs]),
            torch.cat([part.loss_mask[1 : size + 1] for part, size in pairs]),
            torch.cat([torch.arange(size) for size in sizes]),
            tuple(sizes),
            tuple(part.temperature for part in parts),
            {
                boundary: torch.cat([part.hidden[boundary][:size] for part, size in pairs]).to(torch.float32)
                for boundary in self.boundaries
            },
        )

    def answers(self) -> Iterator[NDArray[np.int64]]:
        """The answer tokens of each conversation."""
        for place in self.places:
            part = self._data.read(place)
            yield part.tokens[part.loss_mask].numpy()

    def token_counts(self, vocab_size: int) -> NDArray[np.int64]:
        """How often each id was an answer token."""
        counts = np.zeros(vocab_size, dtype=np.int64)
        for answer in self.answers():
            counts += np.bincount(answer, minlength=vocab_size)
        return counts

    def _packed(self, places: Sequence[Place]) -> list[list[Place]]:
        packs: list[list[Place]] = []
        room = 0
        for place in places:
            size = min(place.tokens, self._max_length) - 1
            if size > room or not packs:
                packs.append([])
                room = self._batch_tokens
            packs[-1].append(place)
            room -= size
        return packs
