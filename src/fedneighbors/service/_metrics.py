"""Metrics of a broker for Prometheus: queries, seconds, and open links.

No metric has names of users, contents of queries, or numbers of objects.
"""

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client import generate_latest as encode_metrics

CONTENT_TYPE = CONTENT_TYPE_LATEST
"""Media type of the encoded metrics."""

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class BrokerMetrics:
    """Metrics of one broker.

    Parameters
    ----------
    n_running, n_links : callable
        Return the numbers of running queries and of open links.
    """

    def __init__(self, n_running: Callable[[], int], n_links: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        self._queries = Counter(
            "fedneighbors_queries",
            "Queries that have ended, by outcome: ok, or the code of the error",
            ("collection", "kind", "outcome"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "fedneighbors_query_seconds",
            "Seconds of a query at the broker",
            ("collection", "kind"),
            buckets=_SECONDS,
            registry=self._registry,
        )
        for name, text, read in (
            ("fedneighbors_queries_running", "Queries that run now", n_running),
            ("fedneighbors_providers_connected", "Providers with an open link", n_links),
        ):
            Gauge(name, text, registry=self._registry).set_function(read)

    def observe(self, collection: str, kind: str, outcome: str, seconds: float) -> None:
        """Count a query that has ended."""
        self._queries.labels(collection, kind, outcome or "ok").inc()
        self._seconds.labels(collection, kind).observe(seconds)

    def encode(self) -> bytes:
        """Return the metrics in Prometheus's text format."""
        return encode_metrics(self._registry)
