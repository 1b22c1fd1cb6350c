"""Metrics of a server, for Prometheus."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CHANGES = frozenset({"POST", "PUT", "DELETE"})
"""HTTP methods of requests that can change the catalog."""

METHODS: Final = frozenset(
    {"token", "issued-token", "oidc", "client-credentials", "token-exchange", "unknown"}
)
"""Methods of logins that are counted separately."""

_COMMITS = {409: "conflict", 504: "unknown"}


class Metrics:
    """The metrics of one server. The labels have a small number of values, whatever requests clients send."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "polaris_spark_http_requests",
            "Requests answered, by method, route and status.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "polaris_spark_http_request_seconds",
            "Time from a request's headers to its answer, in seconds.",
            ("method", "route"),
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=self._registry,
        )
        self._changes = Counter(
            "polaris_spark_changes",
            "Requested changes, by outcome: committed, refused, conflict (409), or unknown (504).",
            ("outcome",),
            registry=self._registry,
        )
        self._logins = Counter(
            "polaris_spark_logins",
            "Logins, by method and outcome: succeeded, refused, limited (429) or unavailable (503).",
            ("method", "outcome"),
            registry=self._registry,
        )
        self.in_flight = Gauge(
            "polaris_spark_http_requests_in_flight", "Requests in progress.", registry=self._registry
        )

    def record(self, method: str, route: str | None, status: int, seconds: float) -> None:
        """Record a request and its response.

        Args:
            method: method of the request.
            route: path template of the request's route; None if no route matches.
            status: status of the response.
            seconds: time from the request's headers to the response, in seconds.
        """
        known, where = (method, route) if route is not None else ("other", "unmatched")
        self._requests.labels(known, where, str(status)).inc()
        self._seconds.labels(known, where).observe(seconds)
        if route is not None and method in CHANGES:
            outcome = "committed" if status < 300 else _COMMITS.get(status, "refused")
            self._changes.labels(outcome).inc()

    def login(self, method: str, outcome: str) -> None:
        """Record a login or a refused one."""
        self._logins.labels(method if method in METHODS else "other", outcome).inc()

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
