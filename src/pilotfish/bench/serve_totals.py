"""Figures of many requests to a server: totals first, ratios and percentiles last.

Owns every formula of the report. Knows no protocol and no output format.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pilotfish.bench.load import Served
from pilotfish.errors import InvalidInputError

SHARES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Run:
    """All requests of one side at one load, once.

    Attributes:
        served: what came of each.
        client_seconds: processor time of the process that made the load, which it took from a server beside it.
    """

    served: tuple[Served, ...]
    client_seconds: float

    @property
    def seconds(self) -> float:
        """From the first request's sending to the last one's end."""
        if not self.served:
            return 0.0
        return max(one.ended for one in self.served) - min(one.due for one in self.served)


@dataclass(frozen=True, slots=True)
class ServeTotals:
    """Sums and samples over runs of one side at one load; refused and broken requests count as `failed` alone.

    Attributes:
        seconds: of all runs, one after the other.
        first_seconds: of each request, from when it was due to its first delivery.
        token_seconds: of each token after the first delivery, its wait: the gap between two deliveries, shared evenly
            by the tokens of the later one, which is the pace at which a reader gets them.
        gap_seconds: the same gaps, once each: how long a reader sees nothing.
        request_seconds: of each request, from when it was due to its end.
        errors: how often each message came.
    """

    requests: int
    failed: int
    tokens: int
    seconds: float
    client_seconds: float
    first_seconds: tuple[float, ...]
    token_seconds: tuple[float, ...]
    gap_seconds: tuple[float, ...]
    request_seconds: tuple[float, ...]
    rounds: int
    drafted_tokens: int
    accepted_tokens: int
    errors: dict[str, int]

    @classmethod
    def of(cls, runs: Sequence[Run]) -> "ServeTotals":
        everything = [one for run in runs for one in run.served]
        whole = [one for one in everything if one.error is None]
        gaps = [gap for one in whole for gap in delivery_gaps(one)]
        return cls(
            requests=len(whole),
            failed=len(everything) - len(whole),
            tokens=sum(one.tokens for one in whole),
            seconds=math.fsum(run.seconds for run in runs),
            client_seconds=math.fsum(run.client_seconds for run in runs),
            first_seconds=tuple(one.deliveries[0][0] - one.due for one in whole if one.deliveries),
            token_seconds=tuple(seconds / count for seconds, count in gaps for _ in range(count)),
            gap_seconds=tuple(seconds for seconds, _ in gaps),
            request_seconds=tuple(one.ended - one.due for one in whole),
            rounds=sum(one.rounds for one in whole),
            drafted_tokens=sum(one.drafted_tokens for one in whole),
            accepted_tokens=sum(one.accepted_tokens for one in whole),
            errors=dict(Counter(one.error for one in everything if one.error is not None)),
        )

    @property
    def tokens_per_second(self) -> float | None:
        """Throughput: all tokens of whole answers over all seconds, waiting and reading of prompts included."""
        return ratio(self.tokens, self.seconds)

    @property
    def requests_per_second(self) -> float | None:
        return ratio(self.requests, self.seconds)

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens per round; `None` where the server does not tell rounds."""
        return ratio(self.tokens, self.rounds)

    def as_dict(self) -> dict[str, Any]:
        """The figures for JSON."""
        return {
            "requests": self.requests,
            "failed": self.failed,
            "errors": self.errors,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "requests_per_second": self.requests_per_second,
            "time_to_first_token": percentiles(self.first_seconds),
            "inter_token_latency": percentiles(self.token_seconds),
            "delivery_gap": percentiles(self.gap_seconds),
            "request_latency": percentiles(self.request_seconds),
            "rounds": self.rounds,
            "drafted_tokens": self.drafted_tokens,
            "accepted_tokens": self.accepted_tokens,
            "acceptance_rate": ratio(self.accepted_tokens, self.drafted_tokens),
            "mean_acceptance_length": self.mean_acceptance_length,
            "client_load": ratio(self.client_seconds, self.seconds),
        }


def delivery_gaps(served: Served) -> list[tuple[float, int]]:
    """The waits between a request's deliveries, and the tokens that came at the end of each.

    A server that does not tell tokens apart is taken to deliver one at a time.
    """
    times = served.deliveries
    return [(later - earlier, max(count, 1)) for (earlier, _), (later, count) in pairwise(times)]


def percentile(values: Sequence[float], share: float | int) -> float:
    """The value that `share` of the values do not exceed; between two of them, on the straight line.

    Raises:
        InvalidInputError: there are no values, or the share is not from 0 to 1.
    """
    if not values or not 0 <= share <= 1:
        raise InvalidInputError(
            f"percentile {share} of {len(values)} values: expected some values, and a share from 0 to 1"
        )
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """The percentiles that are reported, by name, and the mean."""
    found = {f"p{share * 100:g}": percentile(values, share) if values else None for share in SHARES}
    return {**found, "mean": ratio(sum(values), len(values))}


def ratio(value: float | int, unit: float | int) -> float | None:
    """One over the other, where there is something to divide by."""
    return value / unit if unit > 0 else None


def different_texts(served: Iterable[Served]) -> list[str]:
    """Keys of whole answers that are not all the same text."""
    texts: dict[Any, set[str]] = {}
    for one in served:
        if one.error is None:
            texts.setdefault(one.key, set()).add(one.text)
    return sorted(str(key) for key, found in texts.items() if len(found) > 1)
