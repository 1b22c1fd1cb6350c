"""Metrics of a server, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest

CHANGES = frozenset({"POST", "PUT", "DELETE"})
"""HTTP methods of requests that can change the catalog."""

METHODS: Final = frozenset(
    {"token", "issued-token", "oidc", "client-credentials", "token-exchange", "unknown"}
)
"""Methods of logins that are counted separately."""

_COMMITS = {409: "conflict", 504: "unknown"}


_MOST_REALMS: Final = 10_000
"""Maximum number of values of the label `realm`. Further realms are counted together, as `_FURTHER`."""
_FURTHER: Final = "::other"
"""No realm can have this name, so no realm gets the metrics of the others as its own."""


class Metrics:
    """The metrics of one server. Thread-safe. The labels have a small number of values, whatever clients send."""

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
        self._by_realm = (
            Counter(
                "polaris_spark_realm_requests",
                "Requests answered by a server of many realms, by realm and class of the status, such as 2xx.",
                ("realm", "status"),
                registry=self._registry,
            ),
            Counter(
                "polaris_spark_realm_logins",
                "Logins at a server of many realms, by realm and outcome, as for polaris_spark_logins.",
                ("realm", "outcome"),
                registry=self._registry,
            ),
        )
        self._realms: set[str] = set()
        self.in_flight = Gauge(
            "polaris_spark_http_requests_in_flight", "Requests in progress.", registry=self._registry
        )

    def record(
        self, method: str, route: str | None, status: int, seconds: float, realm: str | None = None
    ) -> None:
        """Record a request and its response.

        Args:
            method: method of the request.
            route: path template of the request's route; None if no route matches.
            status: status of the response.
            seconds: time from the request's headers to the response, in seconds.
            realm: the realm, if the server serves many realms and this is one of them.
        """
        if realm is not None:
            self._by_realm[0].labels(self._label(realm), f"{status // 100}xx").inc()
        known, where = (method, route) if route is not None else ("other", "unmatched")
        self._requests.labels(known, where, str(status)).inc()
        self._seconds.labels(known, where).observe(seconds)
        if route is not None and method in CHANGES:
            outcome = "committed" if status < 300 else _COMMITS.get(status, "refused")
            self._changes.labels(outcome).inc()

    def login(self, method: str, outcome: str, realm: str | None = None) -> None:
        """Record a login, accepted or refused. `realm` is given if the server serves many realms and this is one of
        them."""
        if realm is not None:
            self._by_realm[1].labels(self._label(realm), outcome).inc()
        self._logins.labels(method if method in METHODS else "other", outcome).inc()

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def text_of_realm(self, realm: str) -> bytes:
        """Return the metrics of one realm of a server of many realms, in Prometheus' text format. They reveal nothing
        about other realms."""
        return generate_latest(_OfRealm(self._by_realm, realm))

    def _label(self, realm: str) -> str:
        if realm not in self._realms:
            if len(self._realms) >= _MOST_REALMS:
                return _FURTHER
            self._realms.add(realm)
        return realm


class _OfRealm:
    """A Prometheus collector that returns those samples of the given metrics whose label `realm` is a given realm."""

    def __init__(self, metrics: Sequence[Counter], realm: str) -> None:
        self._metrics = metrics
        self._realm = realm

    def collect(self) -> Iterator[Metric]:
        for metric in self._metrics:
            for found in metric.collect():
                found.samples = [one for one in found.samples if one.labels["realm"] == self._realm]
                yield found
