"""What Prometheus reads: the engine's counts as they are when it asks, and times that only the server sees.

Owns names and buckets; formulas of the counts are `pilotfish.metrics.counters`.
"""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pilotfish.engine.service import ServiceStats

PREFIX = "pilotfish:"
_FIRST = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_BETWEEN = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
_WHOLE = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class ServerMetrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self, stats: Callable[[], ServiceStats]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Engine(stats))
        self._first = Histogram(
            f"{PREFIX}time_to_first_token_seconds",
            "From the arrival of a request to the first tokens of a sample",
            buckets=_FIRST,
            registry=self.registry,
        )
        self._between = Histogram(
            f"{PREFIX}inter_token_latency_seconds",
            "Between deliveries of a sample, for each token of the later one its share",
            buckets=_BETWEEN,
            registry=self.registry,
        )
        self._whole = Histogram(
            f"{PREFIX}request_latency_seconds",
            "From the arrival of a request to the end of its response",
            ["path"],
            buckets=_WHOLE,
            registry=self.registry,
        )
        self._responses = Counter(
            f"{PREFIX}http_responses", "Responses by path and status", ["path", "status"], registry=self.registry
        )
        self.prompt_tokens = Counter(
            f"{PREFIX}prompt_tokens", "Tokens of the prompts that were taken", registry=self.registry
        )

    def delivered(self, last: float | None, now: float, tokens: int, arrived: float) -> None:
        """Notes that `tokens` tokens of a sample were delivered at `now`.

        Args:
            last: when its last ones were; `None` if these are the first.
            arrived: when its request was.
        """
        if last is None:
            self._first.observe(now - arrived)
            return
        for _ in range(tokens):
            self._between.observe((now - last) / tokens)

    def responded(self, path: str, status: int, seconds: float) -> None:
        """Notes a response. `path` is a route's, never a client's own."""
        self._responses.labels(path, str(status)).inc()
        self._whole.labels(path).observe(seconds)

    def text(self) -> bytes:
        """All of them as Prometheus reads them."""
        return generate_latest(self.registry)


class _Engine(Collector):
    """The engine's own counts."""

    def __init__(self, stats: Callable[[], ServiceStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        totals = stats.totals
        for name, text, count in (
            ("spec_decode_num_drafts", "Rounds of requests: target forwards that delivered tokens", totals.rounds),
            ("spec_decode_num_draft_tokens", "Drafted tokens", totals.drafted_tokens),
            ("spec_decode_num_accepted_tokens", "Drafted tokens that were delivered", totals.accepted_tokens),
            ("generation_tokens", "Delivered tokens", totals.delivered_tokens),
            ("num_preemptions", "Requests that lost their place in the cache", stats.preemptions),
            ("prefix_cache_queries", "Tokens looked up in the prefix cache", stats.prefix_queried_tokens),
            ("prefix_cache_hits", "Tokens found in the prefix cache", stats.prefix_hit_tokens),
        ):
            yield CounterMetricFamily(f"{PREFIX}{name}", text, value=count)
        by_position = CounterMetricFamily(
            f"{PREFIX}spec_decode_num_accepted_tokens_per_pos",
            "Delivered drafted tokens by depth in the draft",
            labels=["position"],
        )
        for position, count in enumerate(totals.accepted_per_position):
            by_position.add_metric([str(position)], count)
        yield by_position
        for name, text, count in (
            ("num_requests_running", "Requests that take part in rounds", stats.running),
            ("num_requests_waiting", "Requests in the queue", stats.waiting),
        ):
            yield GaugeMetricFamily(f"{PREFIX}{name}", text, value=count)
        pages = GaugeMetricFamily(f"{PREFIX}kv_cache_pages", "Pages of the key-value cache", labels=["state"])
        pages.add_metric(["used"], stats.kv_pages_used)
        pages.add_metric(["free"], stats.kv_pages_free)
        yield pages
