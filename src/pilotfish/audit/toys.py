"""Toy laws of the theory level: ordinary pairs of target and drafter, and those at the edges. p = target, q = draft."""

from collections.abc import Callable, Sequence

import numpy as np

from pilotfish.audit import oracle
from pilotfish.audit.oracle import Context, Floats


class Toy:
    """A law per context as float32, as rules get them; used as float64 rows that add up to 1."""

    def __init__(self, make: Callable[[Context], Floats]) -> None:
        self._make = make
        self._rows: dict[Context, Floats] = {}

    def row(self, context: Context) -> Floats:
        """float32 numbers that stand for the law."""
        if context not in self._rows:
            self._rows[context] = self._make(context).astype(np.float32).astype(np.float64)
        return self._rows[context]

    def law(self, context: Context) -> Floats:
        row = self.row(context)
        return np.asarray(row / row.sum())


def random_toy(seed: Sequence[int], vocab_size: int, concentration: float = 1.0) -> Toy:
    """Laws from a Dirichlet, another for every context."""

    def make(context: Context) -> Floats:
        rng = np.random.default_rng([*seed, vocab_size, len(context), *context])
        return np.asarray(rng.dirichlet([concentration] * vocab_size))

    return Toy(make)


def fixed_toy(*laws: Sequence[float]) -> Toy:
    """Laws that depend on the last token alone."""
    return Toy(lambda context: np.array(laws[(context[-1] if context else 0) % len(laws)], dtype=np.float64))


def close_toy(target: Toy, seed: Sequence[int], spread: float = 1.0) -> Toy:
    """A drafter that knows the target: its log laws with normal noise."""

    def make(context: Context) -> Floats:
        noise = np.random.default_rng([*seed, len(context), *context]).standard_normal(len(target.law(context)))
        return oracle.softmax(np.log(target.law(context)) + spread * noise)

    return Toy(make)


def toy_pairs(seed: int, vocab_size: int) -> dict[str, tuple[Toy, Toy]]:
    """(target, drafter): ordinary pairs, and those at the edges."""
    last, first = [0.0] * (vocab_size - 1) + [1.0], [1.0] + [0.0] * (vocab_size - 1)
    hole = [0.0] + [1.0 + token for token in range(vocab_size - 1)]
    lower, upper = [1.0] + [0.0] * (vocab_size - 1), [0.0] + [1.0] * (vocab_size - 1)
    equal = random_toy((seed, 5), vocab_size)
    return {
        "random": (random_toy((seed, 1), vocab_size), random_toy((seed, 2), vocab_size)),
        "close": (known := random_toy((seed, 10), vocab_size), close_toy(known, (seed, 12))),
        "peaked": (random_toy((seed, 3), vocab_size, 0.3), random_toy((seed, 4), vocab_size, 0.3)),
        "equal laws": (equal, equal),
        "disjoint supports": (fixed_toy(lower, upper), fixed_toy(upper, lower)),
        "certain target": (fixed_toy(first, last), random_toy((seed, 6), vocab_size)),
        "certain draft": (random_toy((seed, 7), vocab_size), fixed_toy(last, first)),
        "p = 0 where q > 0": (fixed_toy(hole), random_toy((seed, 8), vocab_size)),
        "q = 0 where p > 0": (random_toy((seed, 9), vocab_size), fixed_toy(hole, upper)),
    }
