"""What prefix-dependent options remember of the committed tokens, so that a long history costs nothing.

Each memory is a function of the committed tokens alone and is caught up as they grow; drafted tokens never enter it,
they are looked at per row. Handed another list than last time, it starts anew, so a call's result never depends on
calls before it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pilotfish.sampling.prefix import Prefix


class Memory(ABC):
    """Follows one growing list of committed tokens."""

    def __init__(self) -> None:
        self._committed: Sequence[int] | None = None
        self._read = 0

    def follow(self, prefix: Prefix) -> None:
        """Takes in what was committed since."""
        if prefix.committed is not self._committed or len(prefix.committed) < self._read:
            self._committed = prefix.committed
            self._read = 0
            self.clear()
        for place in range(self._read, len(prefix.committed)):
            self.take(prefix.committed, place, prefix.prompt_length)
        self._read = len(prefix.committed)

    @abstractmethod
    def clear(self) -> None:
        """Forgets everything."""

    @abstractmethod
    def take(self, committed: Sequence[int], place: int, prompt_length: int) -> None:
        """Takes in the token at `place`; those before it have been."""


class TokenCounts(Memory):
    """How often each token was committed, in the output alone or in prompt and output."""

    def __init__(self, *, with_prompt: bool) -> None:
        super().__init__()
        self._with_prompt = with_prompt
        self.clear()

    def clear(self) -> None:
        self._counts = np.zeros(1024, dtype=np.float32)
        self._known = 0

    def take(self, committed: Sequence[int], place: int, prompt_length: int) -> None:
        if place < prompt_length and not self._with_prompt:
            return
        token = committed[place]
        self._known = max(self._known, token + 1)
        if self._known > self._counts.size:
            self._counts = np.pad(self._counts, (0, max(self._known - self._counts.size, self._counts.size)))
        self._counts[token] += 1

    @property
    def counts(self) -> NDArray[np.float32]:
        """`[token]` counts, up to the highest token that was committed."""
        return self._counts[: self._known]


class Followers(Memory):
    """Which tokens followed each n-gram of one length, in prompt and output."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length
        self.clear()

    def clear(self) -> None:
        self._after: dict[tuple[int, ...], set[int]] = {}

    def take(self, committed: Sequence[int], place: int, prompt_length: int) -> None:
        if place >= self._length:
            key = tuple(committed[place - self._length : place])
            self._after.setdefault(key, set()).add(committed[place])

    def after(self, key: tuple[int, ...]) -> set[int]:
        """Tokens that followed `key`."""
        return self._after.get(key, set())
