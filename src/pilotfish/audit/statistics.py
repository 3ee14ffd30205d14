"""Goodness of fit with honest numbers: p-values, power, sample sizes.

Owns the arithmetic of the tests and nothing of what is tested. Every test is a quadratic form of counts whose mean and
covariance are known exactly; its tail is that of a gamma law with the statistic's exact first two moments, which keeps
it right where a plain chi-square tail would promise too much.

Power: a departure of total variation t makes the statistic noncentral with parameter at least 4 n t^2, because
sum d^2 / p >= (sum |d|)^2 for any departure d of a law p, and sum |d| = 2 t. So n = lambda / (4 t^2), where lambda is
the noncentrality at which a chi-square of the same degrees of freedom exceeds the critical value with the power asked
for. The joint law of several tokens is tested step by step, each token given those before it; the parts of d that
belong to the steps are orthogonal, so the steps' parameters add up to that of the joint law, to first order in d.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

POWER = 0.99
SMALLEST_CELL = 20.0
"""Cells that expect fewer counts are pooled: below, no tail of a quadratic form can be trusted at 1e-6."""
SMALLEST_VARIANCE = 10.0


def chi2_sf(value: int | float, degrees: int | float) -> float:
    """P(chi-square with `degrees` > value)."""
    half = torch.tensor([degrees / 2, max(value, 0.0) / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def chi2_critical(degrees: int | float, alpha: float) -> float:
    """The value that a chi-square exceeds with probability `alpha`."""
    low, high = 0.0, degrees + 10.0
    while chi2_sf(high, degrees) > alpha:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if chi2_sf(middle, degrees) > alpha else (low, middle)
    return high


def noncentral_sf(value: int | float, degrees: int | float, noncentrality: float) -> float:
    """P(noncentral chi-square > value): a Poisson mixture of central ones."""
    half = noncentrality / 2
    terms = torch.arange(0, int(half + 12 * math.sqrt(half + 1) + 30), dtype=torch.float64)
    weights = torch.exp(terms * math.log(half) - half - torch.lgamma(terms + 1)) if half > 0 else (terms == 0).double()
    tails = torch.special.gammaincc(degrees / 2 + terms, torch.full_like(terms, value / 2))
    return float((weights * tails).sum())


@cache
def needed_noncentrality(degrees: int, alpha: float, power: float = POWER) -> float:
    """The noncentrality at which a level-`alpha` test rejects with probability `power`."""
    critical = chi2_critical(degrees, alpha)
    low, high = 0.0, 10.0
    while noncentral_sf(critical, degrees, high) < power:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if noncentral_sf(critical, degrees, middle) < power else (low, middle)
    return high


def smallest_total_variation(samples: int, degrees: int, alpha: float) -> float:
    """t = sqrt(lambda / (4 n)): the smallest departure seen with probability `POWER`; 1 where there is no test."""
    if degrees < 1 or samples < 1:
        return 1.0
    return min(1.0, math.sqrt(needed_noncentrality(degrees, alpha) / (4 * samples)))


def smallest_share(trials: int) -> float:
    """The smallest share of bad trials of which at least one comes up with probability `POWER`; 1 without trials."""
    return 1.0 if trials < 1 else 1 - (1 - POWER) ** (1 / trials)


@dataclass(frozen=True, slots=True)
class Fit:
    """One test of counts against what was expected.

    Attributes:
        p_value: 1 where nothing could be tested.
        degrees: degrees of freedom after pooling.
        samples: observations.
    """

    p_value: int | float
    degrees: int
    samples: int


@dataclass(slots=True)
class Tally:
    """Counts in blocks of cells, their exact mean and covariance; adds up over contexts, options and runs.

    Each observation falls into one cell of one block, with probabilities that are known before it is made, and that may
    differ from one to the next; which block may depend on everything before. What was observed minus what was expected
    is then a sum of martingale differences, with covariance sum of (diag(p) - p p^T) in each block and none between
    blocks, whether or not the observations are independent.

    Attributes:
        observed, expected: `[block, cell]`.
        covariance: `[block, cell, cell]`.
        samples: what the power is reckoned with: observations of one block, or complete windows of several.
    """

    observed: Floats
    expected: Floats
    covariance: Floats
    samples: int = 0

    @classmethod
    def empty(cls, cells: int, blocks: int = 1) -> "Tally":
        return cls(np.zeros((blocks, cells)), np.zeros((blocks, cells)), np.zeros((blocks, cells, cells)))

    def add(self, counts: Floats, law: Floats) -> None:
        """Adds observations of the first block that were all made under one law."""
        number = counts.sum()
        self.observed[0] += counts
        self.expected[0] += number * law
        self.covariance[0] += number * (np.diag(law) - np.outer(law, law))
        self.samples += int(number)

    def add_steps(self, blocks: Integers, outcomes: Integers, laws: Floats, samples: int) -> None:
        """Adds observations one by one.

        Args:
            blocks, outcomes: `[step]` where each fell.
            laws: `[step, cell]` the law each was made under.
            samples: how many complete ones they are.
        """
        np.add.at(self.observed, (blocks, outcomes), 1.0)
        for block in np.unique(blocks):
            own = laws[blocks == block]
            total = own.sum(axis=0)
            self.expected[block] += total
            self.covariance[block] += np.diag(total) - own.T @ own
        self.samples += samples

    def merge(self, other: "Tally") -> None:
        self.observed += other.observed
        self.expected += other.expected
        self.covariance += other.covariance
        self.samples += other.samples

    def fit(self) -> Fit:
        """The quadratic form of the departure, cells pooled so that each expects `SMALLEST_CELL` counts.

        Blocks with too few counts for two cells are thrown together.
        """
        large = self.expected.sum(axis=1) >= 2 * SMALLEST_CELL
        form = _Form()
        for block in np.flatnonzero(large):
            form.add(self.observed[block], self.expected[block], self.covariance[block])
        if not large.all():
            rest = ~large
            form.add(self.observed[rest].sum(0), self.expected[rest].sum(0), self.covariance[rest].sum(0))
        return Fit(form.tail() if form.degrees else 1.0, form.degrees, self.samples)


@dataclass(slots=True)
class _Form:
    """A sum of quadratic forms of uncorrelated blocks."""

    statistic: float = 0.0
    degrees: int = 0
    excess: float = 0.0
    """By how much the variance of Pearson's statistic exceeds that of the chi-square law."""

    def add(self, observed: Floats, expected: Floats, covariance: Floats) -> None:
        pooling = _pooling(expected)
        departure = pooling @ (observed - expected)
        variances, directions = np.linalg.eigh(pooling @ covariance @ pooling.T)
        usable = variances >= SMALLEST_VARIANCE
        if not usable.any():
            return
        self.statistic += float((((directions.T @ departure)[usable]) ** 2 / variances[usable]).sum())
        self.degrees += int(usable.sum())
        pooled = pooling @ expected
        total = pooled.sum()
        probabilities = pooled[pooled > 0] / total
        cells = len(probabilities)
        self.excess += (float((1 / probabilities).sum()) - cells**2 - 2 * cells + 2) / total

    def tail(self) -> float:
        """Tail of the gamma law with mean `degrees` and the variance of Pearson's statistic, never below 2 degrees."""
        variance = 2 * self.degrees + max(0.0, self.excess)
        scale = 2 * self.degrees / variance  # a gamma law is a chi-square of other degrees, stretched
        return chi2_sf(self.statistic * scale, self.degrees * scale)


def _pooling(expected: Floats) -> Floats:
    """`[pool, cell]` 0/1: cells in ascending order of expectation, joined until each pool expects enough."""
    pools: list[list[int]] = [[]]
    mass = 0.0
    for cell in np.argsort(expected, kind="stable"):
        if mass >= SMALLEST_CELL:
            pools.append([])
            mass = 0.0
        pools[-1].append(int(cell))
        mass += expected[cell]
    if mass < SMALLEST_CELL and len(pools) > 1:
        pools[-2].extend(pools.pop())
    pooling = np.zeros((len(pools), len(expected)))
    for pool, cells in enumerate(pools):
        pooling[pool, cells] = 1.0
    return pooling


def uniform_fit(values: Floats, bins: int) -> Fit:
    """Numbers in [0, 1) against the uniform law, in equal bins."""
    counts = np.bincount(np.minimum((values * bins).astype(np.int64), bins - 1), minlength=bins).astype(np.float64)
    tally = Tally.empty(bins)
    tally.add(counts, np.full(bins, 1 / bins))
    return tally.fit()


def independence_fit(left: Floats, right: Floats, bins: int) -> Fit:
    """Pairs of numbers in [0, 1): their joint law against the uniform one on the square."""
    rows = np.minimum((left * bins).astype(np.int64), bins - 1)
    columns = np.minimum((right * bins).astype(np.int64), bins - 1)
    counts = np.bincount(rows * bins + columns, minlength=bins * bins).astype(np.float64)
    tally = Tally.empty(bins * bins)
    tally.add(counts, np.full(bins * bins, 1 / bins**2))
    return tally.fit()


def two_sample_fit(left: Floats, right: Floats) -> tuple[float, int]:
    """Pearson's statistic that two rows of counts come from one law, and its degrees of freedom; small cells pooled."""
    total = left + right
    share = left.sum() / total.sum()
    pooling = _pooling(total * min(share, 1 - share))
    left, total = pooling @ left, pooling @ total
    kept = total > 0
    degrees = int(kept.sum()) - 1
    if degrees < 1:
        return 0.0, 0
    departure = left[kept] - share * total[kept]
    return float((departure**2 / (share * (1 - share) * total[kept])).sum()), degrees
