"""A worker: runs the due tasks and schedules of all catalogs of a realm.

Any number of workers, in any number of processes, can serve one realm. A worker claims a task by a commit to the queue
of a catalog, and then holds a lease, which it renews while the procedure runs. If a worker dies, another one takes over
the task when the lease has expired. So a task runs at least once, and a procedure may run again although an earlier run
of it has done its work.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, NamedTuple

from polaris_spark.catalog.catalogs.catalogs import list_catalogs
from polaris_spark.catalog.rows import CatalogRow
from polaris_spark.commits.change import Operation
from polaris_spark.errors import (
    ForbiddenError,
    NotFoundError,
    OutcomeUnknownError,
    PolarisError,
    RealmStateError,
    TaskRunningError,
    TryAgainError,
)
from polaris_spark.jobs.procedure import Call
from polaris_spark.jobs.queue.history import (
    commit_queue,
    error_text,
    kept_ms,
    read_queue,
    statistics_of,
)
from polaris_spark.jobs.queue.policies import tasks_of_policies
from polaris_spark.jobs.queue.values import from_json
from polaris_spark.maintenance.policies.applicable import policies_state
from polaris_spark.maintenance.policies.rows import policies_reference
from polaris_spark.maintenance.queue.changes import (
    LEASE_MS,
    Claim,
    Finish,
    FollowPolicies,
    GiveBack,
    QueueChange,
    Renew,
    ended,
    followed,
)
from polaris_spark.maintenance.queue.rows import Lease, Outcome, QueuedTask, queue_reference
from polaris_spark.names import MAIN
from polaris_spark.store.references import new_version
from polaris_spark.system.clocks import process_name

if TYPE_CHECKING:
    from polaris_spark.clock import Clock
    from polaris_spark.rest.session import Session

log = logging.getLogger(__name__)

POLL_SECONDS = 5.0
"""Interval at which a worker without work looks for tasks that are due, in seconds."""
CLOSING_SECONDS = 30.0
"""Maximum time for which a worker that is stopped waits for its cancelled runs, in seconds. A run that takes longer
keeps its lease, and another worker takes its task over after the end of the lease."""
_SLOT_SECONDS = 0.2
"""Interval at which a worker that waits for the end of a run looks whether it is to stop, in seconds."""
RENEWALS = 3
"""Number of renewals within the duration of a lease."""

Restrict = Callable[["Session"], "Session"]


class _Running(NamedTuple):
    """A run in progress."""

    session: Session
    """Session of the worker in the task's catalog."""
    task: QueuedTask
    lease: Lease
    call: Call


class Worker:
    """Runs what is due in the catalogs of a realm. `run` and `run_due` are called on one thread."""

    def __init__(
        self,
        session: Session,
        *,
        concurrency: int = 2,
        lease_ms: int = LEASE_MS,
        clock: Clock | None = None,
        restrict: Restrict | None = None,
        holder: str = "",
        by_operator: bool = False,
        skip: Callable[[str, Exception], None] | None = None,
    ) -> None:
        """
        Args:
            session: a session of any catalog of the realm. The worker opens other catalogs with its properties. In a
                realm with access control, its principal needs the privilege CATALOG_MAINTAIN on the realm.
            concurrency: maximum number of simultaneous runs.
            lease_ms: duration of a lease, in milliseconds.
            clock: decides what is due; by default, the clock of the session.
            restrict: restricts a session to locations that HTTP clients may name, for tasks that came over HTTP.
            holder: name of the worker in the queue; by default, host and process.
            by_operator: whether the worker has not logged in, and acts by the rights of the operator of the store. In a
                realm with access control, a task runs as the principal that added it, and what policies require is not
                limited by access control. All tasks are restricted as if they came over HTTP: they reach no other realm
                of the store, no environment variables, and only the locations of `restrict`.
            skip: called with the name of a catalog in which the worker cannot look for tasks, and the error; by
                default, logs a warning.
        Raises:
            ValueError: the number of simultaneous runs is less than 1.
            ForbiddenError: the principal lacks the privilege.
        """
        self._session = session
        self._slots = threading.BoundedSemaphore(concurrency)
        self._threads = ThreadPoolExecutor(concurrency, "polaris-worker")
        self._lease_ms = lease_ms
        self._clock = clock or session.connection.clock
        self._restrict = restrict or _restricted
        self._holder = holder or process_name()
        self._sessions: dict[tuple[int, str], Session] = {}
        self._opening = threading.Lock()
        self._wanted: dict[int, list[QueuedTask]] = {}
        """The tasks that the policies of each catalog, by its id, required when this worker looked last."""
        self._guard = threading.Lock()
        self._running: dict[bytes, _Running] = {}
        self._is_stopping = False
        self._stopped = threading.Event()
        self._renewing = threading.Thread(target=self._keep, name="polaris-worker-renews", daemon=True)
        self._by_operator = by_operator
        self._skip = skip or _log_skipped
        if not by_operator:
            require_worker(session)
        self._renewing.start()

    def run(self, stop: threading.Event, poll_seconds: float = POLL_SECONDS) -> None:
        """Run what is due until an event is set. Then cancel the runs, and give back their leases."""
        while not stop.is_set():
            try:
                found = self._begin_due(stop)
            except PolarisError as error:
                log.warning("the worker cannot look for tasks now: %s", error)
                found = False
            except Exception:  # the worker looks again later
                log.exception("the worker has failed unexpectedly to look for tasks")
                found = False
            if not found:
                stop.wait(poll_seconds)
        self.stop()

    def run_due(self, stop: threading.Event | None = None) -> int:
        """Run everything that is due at the time of the call, wait for its end, and return the number of runs. What
        becomes due meanwhile, such as a schedule with a short interval, is left for later.

        Args:
            stop: ends this early when it is set.
        """
        stop, begun, due_by = stop or threading.Event(), 0, self._clock.now_ms()
        while not stop.is_set():
            futures: list[Future[None]] = []
            while self._begin_due(stop, futures, due_by):
                continue
            if not futures:
                break
            begun += len(futures)
            while wait(futures, _SLOT_SECONDS).not_done and not stop.is_set():
                continue
        return begun

    def run_some(self, stop: threading.Event, due_by: int | None = None) -> int:
        """Run at most one due task of each catalog, wait for its end, and return the number of runs.

        Args:
            stop: ends this early when it is set.
            due_by: run only tasks that were due at this time, in milliseconds since 1970; None for now.
        """
        futures: list[Future[None]] = []
        self._begin_due(stop, futures, due_by)
        while wait(futures, _SLOT_SECONDS).not_done and not stop.is_set():
            continue
        return len(futures)

    def stop(self) -> None:
        """Cancel all runs, wait for their end for at most `CLOSING_SECONDS`, and give back their leases."""
        with self._guard:
            self._is_stopping = True
            running = list(self._running.values())
        for one in running:
            one.call.cancel()
        self._threads.shutdown(wait=False, cancel_futures=False)
        deadline = threading.Event()
        timer = threading.Timer(CLOSING_SECONDS, deadline.set)
        timer.daemon = True
        timer.start()
        while self._running and not deadline.wait(0.02):
            continue
        timer.cancel()
        self._stopped.set()
        for session in self._sessions.values():
            if session is not self._session:
                session.close()

    def _begin_due(
        self, stop: threading.Event, futures: list[Future[None]] | None = None, due_by: int | None = None
    ) -> bool:
        """Claim at most one task of each catalog, and begin to run it. Return whether a task was claimed.

        Args:
            futures: a list to which the runs are added.
            due_by: claim only tasks that were due at this time, in milliseconds since 1970; None for now.
        """
        self._session.serving.require()
        references, found = self._session.catalog.references, False
        live = {one.name for one in references.listed() if one.registration.state == "live"}
        rows = list_catalogs(references)
        self._close_without({row.entity_id for row in rows})
        for row in rows:
            if queue_reference(row) not in live and policies_reference(row) not in live:
                continue
            while not self._slots.acquire(timeout=_SLOT_SECONDS):
                if stop.is_set():
                    return False
            future = None
            try:
                future = None if stop.is_set() else self._begin(row, due_by)
            finally:
                if future is None:
                    self._slots.release()
            if future is not None:
                found = True
                if futures is not None:
                    futures.append(future)
        return found

    def _begin(self, row: CatalogRow, due_by: int | None) -> Future[None] | None:
        """Claim a task of a catalog, and begin to run it. The caller has acquired a slot."""
        try:
            session = self._of(row, MAIN)
            self._follow_policies(session)
            task = self._claimed(session, new_version(), due_by)
        except Exception as error:  # the other catalogs get their turn
            self._skip(row.name, error)
            return None
        if task is None or task.lease is None:
            return None
        running = _Running(session, task, task.lease, Call(session))
        with self._guard:
            self._running[task.lease.run] = running
        return self._threads.submit(self._execute, running)

    def _follow_policies(self, session: Session) -> None:
        """Update the tasks in a catalog's queue that its policies require, if these tasks may have changed: by a commit
        of the policies, or because a namespace of a policy was dropped or restored."""
        catalog = session.catalog
        state, queue = policies_state(catalog), read_queue(catalog)
        commit = 0 if state is None else state.base.head.commit
        done = 0 if queue is None else followed(queue)
        id, wanted = catalog.row.entity_id, tasks_of_policies(catalog, state)
        if commit != done or (commit and wanted != self._wanted.get(id)):
            commit_queue(catalog, FollowPolicies(self._clock, _operation(session), wanted, commit))
            self._wanted[id] = wanted

    def _claimed(self, session: Session, run: bytes, due_by: int | None) -> QueuedTask | None:
        change = Claim(
            self._clock,
            _operation(session),
            self._holder,
            run,
            lease_ms=self._lease_ms,
            keep_ms=kept_ms(session.catalog),
            due_by=due_by,
        )
        found: QueuedTask | None = _commit(session, change)
        return found

    def _execute(self, running: _Running) -> None:
        try:
            self._work(running)
        except Exception:  # the worker goes on
            log.exception("the run of %s has failed unexpectedly", running.task.procedure)
        finally:
            with self._guard:
                self._running.pop(running.lease.run, None)
            self._slots.release()

    def _work(self, running: _Running) -> None:
        from polaris_spark.jobs.registry import find

        task, arguments = running.task, dict[str, Any]()
        try:
            procedure = find(task.procedure)
            call = running.call
            call.session = self._session_of(running)
            call.over_http = self._is_restricted(task)
            call.is_recorded = True
            if call.over_http and not procedure.over_http:
                raise ForbiddenError(
                    f"procedure {task.procedure} cannot be called over HTTP, so this worker does not run it"
                )
            arguments = from_json(procedure, task.arguments)
            rows = procedure.rows(call, arguments)
        except RealmStateError as error:  # nothing may be written to the realm; the lease runs out
            log.warning("the run of %s has ended: %s", task.procedure, error)
        except TaskRunningError as error:
            log.info("%s waits: %s", task.procedure, error)
            self._end(running, None, "", wait=True)
        except (Exception, SystemExit) as error:  # a procedure must not end the worker
            if self._is_stopping and isinstance(error, TryAgainError):
                self._end(running, None, "")
                return
            is_ended = running.call.is_cancelled and isinstance(error, TryAgainError)
            message = error_text(error, arguments)
            log.warning("%s of catalog %r failed: %s", task.procedure, running.session.catalog.name, message)
            self._end(running, "cancelled" if is_ended else "failed", message)
        else:
            self._end(running, "succeeded", "", statistics_of(procedure.columns, rows))

    def _end(
        self,
        running: _Running,
        outcome: Outcome | None,
        error: str,
        statistics: dict[str, int] | None = None,
        *,
        wait: bool = False,
    ) -> None:
        """Record the end of a run; or give the lease back, if `outcome` is None."""
        session, task, lease = running.session, running.task, running.lease
        clock, operation = self._clock, _operation(session)
        change: QueueChange[Any]
        if outcome is None:
            change = GiveBack(clock, operation, task.id, lease.run, wait=wait)
        else:
            record = ended(task, lease, clock.now_ms(), outcome, error, statistics or {})
            if not task.principal:
                record = _by(record, session.principal)
            change = Finish(clock, operation, task.id, record, keep_ms=kept_ms(session.catalog))
        try:
            _commit(session, change)
        except PolarisError as failed:  # another worker takes the task over after the end of the lease
            log.warning("the end of the run of %s could not be recorded: %s", task.procedure, failed)
        with self._guard:
            self._running.pop(lease.run, None)

    def _session_of(self, running: _Running) -> Session:
        """Return a session of the principal of a task, in the task's branch.

        Raises:
            NotAuthorizedError: the principal is no longer active.
            ForbiddenError: the realm has access control, and the task was added before.
        """
        task, row = running.task, running.session.catalog.row
        session = self._of(row, task.branch)
        if task.origin != "policy":
            roles = None if task.roles is None else frozenset(task.roles)
            is_verified = (self._by_operator or session.is_verified) and task.is_verified
            session = session.derive(
                task.principal or session.principal,
                session.catalog.owning() if is_verified else None,
                roles=roles,
                is_verified=is_verified,
            )
            if session.access.is_on and not task.is_verified:
                raise ForbiddenError(
                    f"the {task.origin} was added before the realm had access control; add it again"
                )
        if self._is_restricted(task):
            session = self._restrict(session)
        if self._by_operator and task.origin == "policy":
            session.is_operator = True  # this session is only for this run: `restrict` has made it
        return session

    def _is_restricted(self, task: QueuedTask) -> bool:
        """Whether a task may do only what HTTP clients may do."""
        return task.caller == "http" or self._by_operator

    def _of(self, row: CatalogRow, branch: str) -> Session:
        """Return the worker's session of a branch of a catalog, which is opened at the first call.

        Raises:
            NotFoundError: the catalog or the branch does not exist.
        """
        from polaris_spark.rest.opening import open_session

        with self._opening:
            found = self._sessions.get((row.entity_id, branch))
            if found is None:
                own = self._session
                properties = dataclasses.replace(
                    own.properties, catalog=row.name, branch=branch, warehouse=None, create=False, as_of=None
                )
                found = open_session(
                    properties, own.connection.clock, own.router, logs_in=not self._by_operator
                )
                if found.catalog.row.entity_id != row.entity_id:
                    found.close()
                    raise NotFoundError(f"catalog {row.name!r} has just been renamed or dropped")
                self._sessions[row.entity_id, branch] = found
        if found.catalog.name != row.name:
            return found.derive(catalog=found.catalog.renamed(row))
        return found

    def _close_without(self, catalogs: set[int]) -> None:
        """Close the sessions of catalogs that do not exist any more and have no runs in progress."""
        with self._guard:
            used = {one.session.catalog.row.entity_id for one in self._running.values()}
        with self._opening:
            for key in [key for key in self._sessions if key[0] not in catalogs | used]:
                self._sessions.pop(key).close()

    def _keep(self) -> None:
        """Renew all leases until the worker is stopped. Cancel runs that have lost theirs."""
        while not self._stopped.wait(self._lease_ms / RENEWALS / 1_000):
            with self._guard:
                running = list(self._running.values())
            catalogs = {one.session.catalog.row.entity_id: one.session for one in running}
            for id, session in catalogs.items():
                own = [one for one in running if one.session.catalog.row.entity_id == id]
                runs = {one.lease.run: one.task.id for one in own}
                try:
                    held = _commit(session, Renew(self._clock, _operation(session), runs, self._lease_ms))
                except PolarisError as error:
                    log.warning("leases of tasks could not be renewed: %s", error)
                    continue
                except Exception:  # the next renewal may succeed
                    log.exception("leases of tasks could not be renewed, because of an unexpected error")
                    continue
                for one in own:
                    if one.lease.run not in held:
                        one.call.cancel()


def _log_skipped(catalog: str, error: Exception) -> None:
    unexpected = None if isinstance(error, PolarisError) else error
    log.warning("the worker skips catalog %r: %s", catalog, error, exc_info=unexpected)


def require_worker(session: Session) -> None:
    """Refuse a worker whose principal may not run jobs in the whole realm.

    Raises:
        ForbiddenError: the realm has access control, and the principal lacks the privilege.
    """
    from polaris_spark.access.needs import Need, On
    from polaris_spark.rest.permissions import NOTHING_ASKED, check

    permissions = session.permissions()
    if permissions is not None:
        check(permissions, (Need("CATALOG_MAINTAIN", On.REALM),), NOTHING_ASKED)


def _commit(session: Session, change: QueueChange[Any]) -> Any:
    """Commit a change of a queue. If its outcome is unknown, repeat it: it does not change anything twice."""
    name = queue_reference(session.catalog.row)
    try:
        return session.catalog.references.commit(name, change)
    except OutcomeUnknownError:
        return session.catalog.references.commit(name, change)


def _operation(session: Session) -> Operation:
    return Operation(b"", session.principal)


def _by(record: Any, principal: str) -> Any:
    import msgspec

    return msgspec.structs.replace(record, principal=principal)


def _restricted(session: Session) -> Session:
    return session.derive(catalog=session.catalog.restricted((), follow_links=False))
