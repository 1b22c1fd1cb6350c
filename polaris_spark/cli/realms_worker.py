"""A worker for many realms of a store, for `polaris-spark work --realms` and `polaris-spark serve --realms --work`."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from polaris_spark.cli.stores import OpenStore
from polaris_spark.clock import Clock, SystemClock
from polaris_spark.commits.state import reading_state
from polaris_spark.errors import NotFoundError, PolarisError
from polaris_spark.jobs.worker import POLL_SECONDS, Restrict, Worker
from polaris_spark.maintenance.policies.rows import policies_reference
from polaris_spark.maintenance.queue.changes import LEASE_MS, followed, is_due
from polaris_spark.maintenance.queue.rows import queue_reference
from polaris_spark.system.realms import RealmState

if TYPE_CHECKING:
    from polaris_spark.config import Properties
    from polaris_spark.rest.session import Session

log = logging.getLogger(__name__)

LOOKS_PER_SECOND: Final = 50
"""Maximum number of realms in which the worker looks for tasks in a second. A look reads several rows."""
_POLICIES_SECONDS: Final = 600.0
"""Interval at which a realm with policies is opened even though no task is due, in seconds. A namespace that was
restored can make a policy apply again."""
_MOST_REMEMBERED: Final = 256
"""Maximum number of realms whose caches are kept after their tasks have run."""
_SLOT_SECONDS: Final = 0.2


class RealmsWorker:
    """Runs what is due in the ACTIVE realms of a store, by the rights of the operator of the store. `run` and `run_due`
    are called on one thread.

    The worker looks for due tasks in one realm after another. If a realm has some, another thread opens the realm, runs
    at most one task of each of its catalogs, and closes it. A realm occupies one thread at a time, so the other threads
    go on with other realms while the tasks of a realm take long.

    A realm that cannot be read or opened is skipped. The log says so once, and again if the error changes.
    """

    def __init__(
        self,
        opened: OpenStore,
        properties: Properties,
        served: Collection[str] | None = None,
        *,
        concurrency: int = 2,
        lease_ms: int = LEASE_MS,
        restrict: Callable[[str], Restrict] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """
        Args:
            properties: properties of all sessions. The realm and the catalog are replaced.
            served: names of the realms; None for all realms of the store.
            concurrency: maximum number of simultaneous runs.
            lease_ms: duration of the lease of a task, in milliseconds.
            restrict: returns, for the name of a realm, a function that restricts its sessions to the locations that
                tasks may name; None to allow only the warehouses.
            clock: decides what is due; by default, the clock of the system.
        """
        self._opened = opened
        self._properties = properties
        self._served = None if served is None else frozenset(served)
        self._lease_ms = lease_ms
        self._restrict = restrict
        self._slots = threading.BoundedSemaphore(concurrency)
        self._threads = ThreadPoolExecutor(concurrency, "polaris-realms-worker")
        self._clock = clock or SystemClock()
        self._guard = threading.Lock()
        self._busy: set[str] = set()
        """Names of the realms whose tasks run now."""
        self._problems: dict[tuple[str, str], str] = {}
        """Why realms, or catalogs of them, are skipped, as the log says. The keys are the names of the realm and
        of the catalog, which is empty for the whole realm."""
        self._visited: dict[str, float] = {}
        """Time of the monotonic clock at which the tasks of a realm were last looked at in a session."""
        self._remembered: OrderedDict[str, None] = OrderedDict()
        """Instance ids of the realms whose caches are kept, the one that was used last at the end."""
        self._begun = 0

    def run(self, stop: threading.Event, poll_seconds: float = POLL_SECONDS) -> None:
        """Run what is due until an event is set. Then cancel the runs, and give back their leases."""
        while not stop.is_set():
            before = self._begun
            self._go_round(stop)
            until = time.monotonic() + poll_seconds
            while not stop.wait(min(_SLOT_SECONDS, poll_seconds)):
                if self._begun != before or time.monotonic() >= until:
                    break  # a realm whose task has ended may have more of them
        self.close()

    def run_due(self, stop: threading.Event) -> int:
        """Run what is due now, wait for its end, and return the number of runs."""
        now = self._clock.now_ms()
        while not stop.is_set():
            before = self._begun
            self._go_round(stop, now)
            while self._busy and not stop.wait(0.02):
                continue
            if self._begun == before:
                break
        self.close()
        return self._begun

    def close(self) -> None:
        """Wait until all realms are closed. The event of `run` or `run_due` must be set, or nothing may run."""
        self._threads.shutdown(wait=True)

    def _go_round(self, stop: threading.Event, due_by: int | None = None) -> None:
        """Look for due tasks in all realms, and begin to run them."""
        try:
            names = self._opened.realm_names() if self._served is None else sorted(self._served)
        except Exception as error:
            self._skip("", "", error)
            return
        self._problems.pop(("", ""), None)
        for name in names:
            with self._guard:
                if name in self._busy:
                    continue
            if stop.wait(1 / LOOKS_PER_SECOND):
                return
            try:
                wanted = self._has_work(name, due_by)
            except Exception as error:  # the other realms get their turn
                self._skip(name, "", error)
                continue
            if wanted:
                while not self._slots.acquire(timeout=_SLOT_SECONDS):
                    if stop.is_set():
                        return
                with self._guard:
                    self._busy.add(name)
                self._threads.submit(self._visit, name, stop, due_by)
            else:
                self._problems.pop((name, ""), None)

    def _has_work(self, name: str, due_by: int | None) -> bool:
        """Whether a realm must be opened, because a task is due or its policies may require other tasks.

        Raises:
            PolarisError: the realm is not ACTIVE, has no catalog, or cannot be read.
        """
        if self._served is None and self._opened.state(name) is RealmState.GONE:
            return False
        realm = self._opened.active_realm(name)
        catalogs = realm.catalogs()
        if not catalogs:
            raise NotFoundError(f"realm {name!r} has no catalog")
        live = {one.name: one for one in realm.references() if one.registration.state == "live"}
        now = self._clock.now_ms() if due_by is None else due_by
        for row in catalogs:
            policies, queue = live.get(policies_reference(row)), live.get(queue_reference(row))
            state = None if queue is None else reading_state(realm.head_of(queue))
            if state is not None and is_due(state, now):
                return True
            if policies is not None:
                commit = 0 if state is None else followed(state)
                if realm.head_of(policies).head.commit != commit:
                    return True
                if time.monotonic() - self._visited.get(name, float("-inf")) > _POLICIES_SECONDS:
                    return True
        return False

    def _visit(self, name: str, stop: threading.Event, due_by: int | None) -> None:
        """Open a realm, and run at most one due task of each of its catalogs."""
        try:
            with self._session(name) as session:
                restrict = None if self._restrict is None else self._restrict(name)
                worker = Worker(
                    session,
                    concurrency=1,
                    lease_ms=self._lease_ms,
                    clock=self._clock,
                    restrict=restrict,
                    by_operator=True,
                    skip=partial(self._skip, name),
                )
                try:
                    self._visited[name] = time.monotonic()
                    begun = worker.run_some(stop, due_by)
                finally:
                    worker.stop()
                with self._guard:
                    self._begun += begun
                self._remember(session)
            self._problems.pop((name, ""), None)
        except Exception as error:
            self._skip(name, "", error)
        finally:
            with self._guard:
                self._busy.discard(name)
            self._slots.release()

    def _session(self, name: str) -> Session:
        from polaris_spark.extension import ROUTER
        from polaris_spark.rest.opening import open_session

        catalogs = self._opened.active_realm(name).catalogs()
        if not catalogs:
            raise NotFoundError(f"realm {name!r} has no catalog")
        properties = dataclasses.replace(
            self._properties, realm=name, catalog=catalogs[0].name, create=False, credential=None, token=None
        )
        return open_session(properties, SystemClock(), ROUTER, logs_in=False)

    def _remember(self, session: Session) -> None:
        """Keep the caches of a realm, and forget those of the realm that was used least recently."""
        with self._guard:
            instance = session.catalog.references.store.realm
            self._remembered[instance] = None
            self._remembered.move_to_end(instance)
            if len(self._remembered) > _MOST_REMEMBERED:
                session.connection.forget_realm(self._remembered.popitem(last=False)[0])

    def _skip(self, name: str, catalog: str, error: Exception) -> None:
        """Log why a realm or a catalog of it is skipped, unless the log says so already."""
        text = f"{type(error).__name__}: {error}"
        with self._guard:
            if self._problems.get((name, catalog)) == text:
                return
            self._problems[name, catalog] = text
        unexpected = None if isinstance(error, PolarisError) else error
        if not name:
            log.warning("the worker cannot list the realms of the store: %s", error, exc_info=unexpected)
        elif catalog:
            log.warning(
                "the worker skips catalog %r of realm %r: %s", catalog, name, error, exc_info=unexpected
            )
        else:
            log.warning("the worker skips the realm %r: %s", name, error, exc_info=unexpected)


class WorkerThread:
    """A worker in a thread of a server. Use it in a `with` block."""

    def __init__(self, worker: RealmsWorker, poll_seconds: float = POLL_SECONDS) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=worker.run, args=(self._stop, poll_seconds), name="polaris-worker", daemon=True
        )

    def __enter__(self) -> WorkerThread:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join()
