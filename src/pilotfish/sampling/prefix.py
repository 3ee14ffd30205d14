"""A row's own history, the only thing an option of the sampling pipeline may look at besides the row's logits."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prefix:
    """The tokens before the one that a row of logits decides.

    Nothing of a rejected branch, of a sibling or of another request is in it.

    Attributes:
        committed: prompt and committed output; shared, not copied: it must not change while the prefix is in use.
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
