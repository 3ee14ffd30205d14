"""A row's own history, the only thing an option of the sampling pipeline may look at besides the row's logits."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prefix:
    """The tokens before the one that a row of logits decides.

    Nothing of a rejected branch, of a sibling or of another request is in it.

    Attributes:
        committed: prompt and committed output; shared, not copied: it must not change while the prefix is in use, and
            between prefixes it only grows.
        prompt_length: how many of them are the prompt.
        path: the drafted tokens from the root to the row, the row's own included; empty at the root.
    """

    committed: Sequence[int]
    prompt_length: int
    path: tuple[int, ...] = ()

    @property
    def position(self) -> int:
        """Absolute position of the token that will be chosen."""
        return len(self.committed) + len(self.path)

    @property
    def output_length(self) -> int:
        """Output tokens before the one that will be chosen."""
        return self.position - self.prompt_length

    def last(self, count: int) -> tuple[int, ...]:
        """The last `count` tokens, fewer where there are no more."""
        from_committed = min(count - len(self.path), len(self.committed))
        if from_committed <= 0:
            return self.path[len(self.path) - count :]
        return (*self.committed[len(self.committed) - from_committed :], *self.path)

    def last_output(self, count: int) -> tuple[int, ...]:
        """The last `count` output tokens, fewer where there are no more."""
        return self.last(min(count, self.output_length))
