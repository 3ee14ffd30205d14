"""What may come next, looked up and not computed, and the tree of the likeliest continuations.

Owns three stores and the arithmetic over them: counts of the text itself (what followed its last 1 to 14 tokens), the
target's favourites of earlier rounds (after the last token, and after the last two), and a fixed table. Each token that
any of them names gets one probability from all of them (`lookup_weights.py`). This is the reference;
`native/lookup.cpp` is the same, fast. Knows no requests and no drafts.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pilotfish.drafters import lookup_weights as at
from pilotfish.drafters.backoff import BackoffTable
from pilotfish.drafters.lookup_weights import LookupWeights
from pilotfish.errors import ExecutorUnavailableError
from pilotfish.models.native_executor import native_module
from pilotfish.sampling.noise import gumbel_at

CONTEXT = max(at.TEXT_LENGTHS)
"""Of the latest tokens, as many as are looked at."""
CHILDREN = 12
"""Successors remembered per context of the text, the latest."""
REMEMBERED = 32_768
"""Contexts whose favourites are remembered, at least; twice as many at most."""

Proposal: TypeAlias = tuple[list[int], list[int], list[float]]
"""Tokens, parents (-1: the context), estimated probability of each given its parent."""

HOTTEST = 2.0
"""Temperatures above are taken as this one."""
LEAST_UNNAMED = 0.03
"""Of the probability, left for what nothing named."""


class PositionNoise(NamedTuple):
    """What the target will add to its scores is known before it has any: a function of seed, position and token.

    Attributes:
        seed: the request's.
        position: of the token after the context.
        temperature: the request's, above 0.
    """

    seed: int
    position: int
    temperature: float


@runtime_checkable
class LookupIndex(Protocol):
    """What both implementations offer."""

    def __len__(self) -> int:
        """Tokens of the text that are counted."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Counts further tokens of the text."""

    def learn(self, previous: int, token: int, ids: Sequence[int], shares: Sequence[float]) -> None:
        """The target's favourites after `token`, which stood after `previous` (-1: at the start of the text)."""

    def propose(
        self,
        context: Sequence[int],
        depth: int,
        nodes: int,
        vocabulary: int,
        least: float,
        branching: bool,
        noise: PositionNoise | None = None,
    ) -> Proposal:
        """The likeliest continuations of `context`, the likeliest path first.

        Args:
            context: the latest tokens; `CONTEXT` of them are looked at.
            depth: most tokens on a path.
            nodes: most tokens in all.
            vocabulary: ids from here on are not proposed.
            least: estimated survival below which a path ends.
            branching: a tree, instead of the chain of each likeliest token.
            noise: of the target, where the rule is `match`: it decides among what is about equally likely.
        """


def index_factory(table: BackoffTable | None) -> Callable[[], LookupIndex]:
    """Makes empty indexes over one table, native where the extension works."""
    weights = at.fitted_weights(table is not None)
    try:
        native = native_module()
    except ExecutorUnavailableError:
        return lambda: PythonLookupIndex(weights, table)
    shared = None if table is None else native_table(table)
    return lambda: cast(LookupIndex, native.LookupIndex(weights.factors, weights.noise, shared, REMEMBERED))


def native_table(table: BackoffTable) -> Any:
    """A table in native memory, for any number of indexes."""
    native = native_module().LookupTable()
    for length, order in table.orders.items():
        native.add_order(length, order.keys, order.starts, order.successors, order.shares, order.seen)
    return native


def _logit(share: float) -> float:
    clamped = min(max(share, 1e-4), 1.0 - 1e-4)
    return math.log(clamped / (1.0 - clamped))


def _kept_logit(share: float) -> float:
    """In the precision in which favourites and tables are kept."""
    return float(np.float32(_logit(share)))


def _sigmoid(score: float) -> float:
    return 1.0 / (1.0 + math.exp(-score))


class PythonLookupIndex:
    """The reference index.

    Args:
        weights: see `lookup_weights.py`.
        table: looked up as well.
        remembered: see `REMEMBERED`.
    """

    def __init__(
        self,
        weights: LookupWeights,
        table: BackoffTable | None = None,
        remembered: int = REMEMBERED,
    ) -> None:
        self._weights = weights
        self._table = table
        self._remembered = remembered
        self._size = 0
        self._tail: list[int] = []
        # Total, and by token how often it came, the latest one last.
        self._text: dict[tuple[int, ...], tuple[list[int], dict[int, int]]] = {}
        self._young: dict[tuple[int, ...], dict[int, float]] = {}
        self._old: dict[tuple[int, ...], dict[int, float]] = {}

    def __len__(self) -> int:
        return self._size

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            for length in at.TEXT_LENGTHS:
                if length > len(self._tail):
                    break
                total, children = self._text.setdefault(tuple(self._tail[-length:]), ([0], {}))
                total[0] += 1
                seen = children.pop(token, 0)
                if seen == 0 and len(children) == CHILDREN:
                    del children[next(iter(children))]
                children[token] = seen + 1
            self._tail = [*self._tail, token][-CONTEXT:]
            self._size += 1

    def learn(self, previous: int, token: int, ids: Sequence[int], shares: Sequence[float]) -> None:
        favourites = {known: _kept_logit(share) for known, share in zip(ids, shares, strict=True)}
        if previous >= 0:
            self._young[previous, token] = favourites
        self._young[token,] = favourites
        if len(self._young) >= self._remembered:
            self._old, self._young = self._young, {}

    def candidates(self, context: Sequence[int], vocabulary: int) -> dict[int, NDArray[np.float64]]:
        """The units' sums for what any store names, in the order in which it was named."""
        w = self._weights.factors
        units: dict[int, NDArray[np.float64]] = {}
        known = []
        for length in at.TEXT_LENGTHS:
            node = self._text.get(tuple(context[-length:])) if length <= len(context) else None
            if node is None:
                break
            known.append(node)
        longest = len(known)
        bias = w[at.BIAS + longest]
        for order in range(longest, 0, -1):
            (total,), children = known[order - 1]
            for token, seen in reversed(children.items()):
                if token in units or not 0 <= token < vocabulary:
                    continue
                own = bias + w[at.LISTED + 2 * (order - 1) + (seen > 1)]
                own = own + w[at.SHARE + order - 1] * _logit(seen / (total + 0.5))
                if order < longest:
                    own = own + w[at.ESCAPE + longest - 1]
                units[token] = own
        fresh = bias + w[at.ESCAPE + longest - 1] if longest > 0 else bias
        sources = self._sources(context)
        for logits, _ in sources:
            for token in logits:
                if token not in units and 0 <= token < vocabulary:
                    units[token] = fresh
        for logits, place in sources:
            for token in units:
                logit = logits.get(token)
                own = w[place + 2] if logit is None else w[place] + w[place + 1] * logit
                units[token] = units[token] + own
        return units

    def _sources(self, context: Sequence[int]) -> list[tuple[dict[int, float], int]]:
        """The logits that favourites and table give their tokens, and where the weights of each source begin."""
        sources = []
        for length, place in ((2, at.PAIR), (1, at.SINGLE)):
            key = tuple(context[-length:])
            favourites = self._young.get(key) or self._old.get(key) if len(key) == length else None
            if favourites:
                sources.append((favourites, place))
        for length, order in self._table.orders.items() if self._table is not None else ():
            entry = order.find(context[-length:]) if len(context) >= length else None
            if entry is not None:
                rank = at.SEEN_CLASSES * (min(length, at.TABLE_ORDERS) - 1) + int(order.seen[entry])
                tokens, shares = order.successors_of(entry)
                logits = {token: _kept_logit(share) for token, share in zip(tokens, shares, strict=True)}
                sources.append((logits, at.TABLE + 3 * rank))
        return sources

    def probabilities(
        self, context: Sequence[int], vocabulary: int, noise: PositionNoise | None = None
    ) -> dict[int, float]:
        """Of what any store names, how likely the target is to choose it next."""
        shares = {token: _sigmoid(at.score(units)) for token, units in self.candidates(context, vocabulary).items()}
        if noise is None or not shares:
            return shares
        w = self._weights.noise
        temperature = min(noise.temperature, HOTTEST)
        unnamed = math.log(max(1.0 - sum(shares.values()), LEAST_UNNAMED))
        known = gumbel_at(noise.seed, [noise.position], np.array([list(shares)], dtype=np.int64))[0].tolist()
        chances = {
            token: math.exp(w[0] * (math.log(share) + w[1] * temperature * added))
            for (token, share), added in zip(shares.items(), known, strict=True)
        }
        total = math.exp(w[2] + w[3] * temperature + w[4] * unnamed) + sum(chances.values())
        return {token: chance / total for token, chance in chances.items()}

    def propose(
        self,
        context: Sequence[int],
        depth: int,
        nodes: int,
        vocabulary: int,
        least: float,
        branching: bool,
        noise: PositionNoise | None = None,
    ) -> Proposal:
        tokens: list[int] = []
        parents: list[int] = []
        confidence: list[float] = []
        arrivals = count()
        waiting: list[tuple[float, int, float, int, int, list[int], int]] = []

        def expand(path: list[int], survival: float, parent: int, level: int) -> None:
            if level > depth:
                return
            here = None if noise is None else noise._replace(position=noise.position + level - 1)
            found = self.probabilities(path, vocabulary, here)
            if not branching and found:
                best = max(found, key=found.__getitem__)
                found = {best: found[best]}
            for token, probability in found.items():
                if survival * probability >= least:
                    arrival = next(arrivals)
                    entry = (-survival * probability, arrival, probability, token, parent, path, level)
                    heapq.heappush(waiting, entry)

        expand(list(context[-CONTEXT:]), 1.0, -1, 1)
        while waiting and len(tokens) < nodes:
            negative, _, probability, token, parent, path, level = heapq.heappop(waiting)
            tokens.append(token)
            parents.append(parent)
            confidence.append(probability)
            if len(tokens) < nodes:
                expand([*path, token][-CONTEXT:], -negative, len(tokens) - 1, level + 1)
        return tokens, parents, confidence
