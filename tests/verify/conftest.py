"""Toy language models for the rules: probability tables with context."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

Context = tuple[int, ...]


class Toy:
    """A law per context, float32 as a rule gets it; `law` is the same as Python floats that add up to 1."""

    def __init__(self, make_row: Callable[[Context], Tensor]) -> None:
        self._make_row = make_row
        self._rows: dict[Context, Tensor] = {}

    def row(self, context: Context) -> Tensor:
        if context not in self._rows:
            self._rows[context] = self._make_row(context).float()
        return self._rows[context]

    def rows(self, contexts: list[Context]) -> Tensor:
        return torch.stack([self.row(context) for context in contexts])

    def law(self, context: Context) -> list[float]:
        values = self.row(context).tolist()
        total = sum(values)
        return [value / total for value in values]


def random_toy(seed: int, vocab: int, concentration: float = 1.0) -> Toy:
    """Laws drawn from a Dirichlet, another for every context."""

    def make_row(context: Context) -> Tensor:
        rng = np.random.default_rng([seed, vocab, len(context), *context])
        return torch.from_numpy(rng.dirichlet([concentration] * vocab))

    return Toy(make_row)


def fixed_toy(*laws: list[float]) -> Toy:
    """Laws that depend on the last token only: its id modulo their number."""
    return Toy(lambda context: torch.tensor(laws[(context[-1] if context else 0) % len(laws)], dtype=torch.float64))


@pytest.fixture(scope="session")
def toys() -> SimpleNamespace:
    return SimpleNamespace(random=random_toy, fixed=fixed_toy)
