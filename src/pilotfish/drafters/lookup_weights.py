"""How much each thing that `lookup_index.py` finds says about what comes next: a small network and its fitted weights.

Owns the factors' order, the network's shape and `lookup_weights.json`. A token's factors are what speaks for and
against it: 1 where a source lists it, how large a share it has there, 1 where a source is silent about it. Each factor
has a weight for each of `UNITS` units. A token's score is the first unit's sum, plus the sums of the next `RAISING`
units where they are above zero, minus those of the others where they are; its probability is 1 / (1 + exp(-score)). So
sources that agree add up, a guess that most of them contradict sinks, and sources that say the same are not believed
twice. After Mahoney's mixing of contexts in PAQ ("Adaptive Weighing of Context Models", 2005), with fixed weights:
learning them on the way was measured and brought nothing. `engine/survival.py` calibrates what comes out.

`benchmarks/fit_lookup.py` fits the weights and writes the file. What they weigh is shares and counts, so that another
model need not have its own.

`share` below is multiplied by the logit of the share that a source gives the token.

| factors | for |
|---|---|
| 8 | the longest context known in the text is none, or the first, ... last of `TEXT_LENGTHS` |
| 7 x 2 | the text has the token after a context of such a length: seen there once, or more often |
| 7 | share of it there |
| 7 | not after the longest known context, of such a length |
| 3 | the target's favourites after the last two tokens: among them, share, not among them |
| 3 | after the last token alone: the same |
| 4 x 5 x 3 | a table's context of 1, ... 4 tokens, seen once, 2 to 3, to 15, to 127 times, more often: the same |

Above temperature 0 the target's noise g at a position is known beforehand. It chooses the highest log(probability) +
temperature * g; our estimate q of the probability is less sure, so the candidate's chance is in proportion to
exp(w0 * (log(q) + w1 * temperature * g)), and that of a token that nothing named, of probability r, to
exp(w2 + w3 * temperature + w4 * log(r)): the five `noise` weights, fitted at temperatures 0.3 to 1.3 together.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

TEXT_LENGTHS = (1, 2, 3, 4, 6, 9, 14)
"""Of the contexts that the text is counted by; long ones tell what is copied from what is only like it."""
TEXT_ORDERS = len(TEXT_LENGTHS)
TABLE_ORDERS = 4
SEEN_CLASSES = 5
BIAS = 0
LISTED = BIAS + TEXT_ORDERS + 1
SHARE = LISTED + 2 * TEXT_ORDERS
ESCAPE = SHARE + TEXT_ORDERS
PAIR = ESCAPE + TEXT_ORDERS
SINGLE = PAIR + 3
TABLE = SINGLE + 3
COUNT = TABLE + 3 * TABLE_ORDERS * SEEN_CLASSES
"""Factors."""
UNITS = 16
RAISING = 8
SIGNS = np.array([1.0] * (1 + RAISING) + [-1.0] * (UNITS - 1 - RAISING))
NOISE_COUNT = 5
FILE = Path(__file__).with_suffix(".json")


@dataclass(frozen=True, slots=True, eq=False)
class LookupWeights:
    """One fit.

    Attributes:
        factors: `[COUNT, UNITS]`.
        noise: `NOISE_COUNT` of them.
    """

    factors: NDArray[np.float64]
    noise: Sequence[float]


@cache
def fitted_weights(with_table: bool) -> LookupWeights:
    """The weights of the package's file; without a table its factors have none."""
    values = json.loads(FILE.read_text(encoding="utf-8"))["with_table" if with_table else "without_table"]
    factors = np.zeros((COUNT, UNITS))
    factors[: len(values["factors"])] = values["factors"]
    return LookupWeights(factors, tuple(values["noise"]))


def score(units: NDArray[np.float64]) -> float:
    """Of the units' sums."""
    return float(units[0] + (np.maximum(units[1:], 0.0) * SIGNS[1:]).sum())
