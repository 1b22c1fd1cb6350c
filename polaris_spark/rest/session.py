"""An open catalog, which answers requests of the REST protocol. `opening` opens one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Protocol, TypeVar, cast

from polaris_spark.access.control import AccessControl
from polaris_spark.access.needs import Need, On
from polaris_spark.catalog.branches.change_log import POLL_SECONDS
from polaris_spark.catalog.branches.states import STATE, catalog_at
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.catalogs.catalogs import current_row
from polaris_spark.catalog.catalogs.property_changes import set_properties
from polaris_spark.catalog.catalogs.realm_catalogs import RealmCatalogs
from polaris_spark.catalog.merges.transactions import Transaction, Transactions, isolation_of
from polaris_spark.commit_notes import Notes, checked
from polaris_spark.commits.change import Operation
from polaris_spark.config import Properties
from polaris_spark.errors import InputError, NotAuthorizedError, OutcomeUnknownError
from polaris_spark.rest.access import Caller, Role
from polaris_spark.rest.catalog_rules import realm_catalogs
from polaris_spark.rest.handler import ROUTER, STATE_HEADER, Unmodified, handle
from polaris_spark.rest.permissions import NOTHING_ASKED, Permissions, check, require_again
from polaris_spark.rest.request import PendingResponse, Response
from polaris_spark.rest.router import Router
from polaris_spark.storage.access import StorageAccess
from polaris_spark.system.connections import StoreConnection


class Resource(Protocol):
    """An object that belongs to a session and is closed when the session is closed."""

    def close(self) -> None:
        """Stop this object from using the session's store."""

    def is_busy(self) -> bool:
        """Whether closing this object now would abort something that a client has begun."""


A = TypeVar("A", bound=Resource)


def _names_state(path: str, headers: Mapping[str, str]) -> bool:
    """Whether a request may refer to another state of the catalog than the session's (see `rest.handler`)."""
    # `handle` refuses values that are not text.
    return (
        STATE in str(path) or "%40" in str(path) or any(str(name).lower() == STATE_HEADER for name in headers)
    )


class Session:
    """An open catalog. Thread-safe. Close it to release its connection to the store."""

    def __init__(
        self,
        properties: Properties,
        connection: StoreConnection,
        catalog: Catalog,
        principal: str,
        router: Router = ROUTER,
        notes: Notes | None = None,
        *,
        access: AccessControl,
        roles: frozenset[str] | None = None,
        is_verified: bool = False,
    ) -> None:
        """
        Args:
            access: access control of the catalog's realm.
            roles: names of the principal roles that the session uses; None for all that the principal has.
            is_verified: whether the principal has logged in.
        """
        self.properties = properties
        self.access = access
        self.roles = roles
        self.is_verified = is_verified
        self.is_operator = False
        """Whether the session acts by the rights of the operator of the store, which access control does not limit. Set
        only by a worker, for jobs that policies require."""
        self.secret: int | None = None
        """As `Caller.secret`."""
        self.connection = connection
        self.catalog = catalog
        self.serving = connection.serving(
            properties.realm, catalog.references.store.realm, properties.commit_timeout
        )
        """Check whether the realm can still be used. The handler and jobs call it."""
        self.principal = principal
        self.router = router
        """The routes that requests can use."""
        self.notes = checked(properties.commit_notes) if notes is None else notes
        """Notes on the changes of this session, such as a message, unless a request gives others."""
        caller = Caller(principal, Role.LOCAL, self.notes, roles, is_verified)
        self._handle = partial(handle, caller=caller, router=router, session=self)
        self._unmodified = Unmodified(self._handle, self._stamp)
        self.storage: StorageAccess | None = None
        """Access to the storage of tables that clients get; None if they get none."""
        self._resources: dict[type, Resource] = {}
        self._closed = threading.Event()
        self._closing = threading.Lock()
        self._shares = False
        """Whether another session closes the resources of this one."""

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, dict[str, str], str]:
        """Answer one request of the Iceberg REST protocol, or of the extension.

        Args:
            method: `GET`, `HEAD`, `POST` or `DELETE`.
            path: path in the form of the specification: `v1/namespaces/a%1Fb/tables`; a prefix is optional. Paths of
                the extension begin with `polaris-spark/v1/`.
            query: decoded parameters.
            body: JSON text.
            headers: headers such as `Idempotency-Key`, `If-None-Match` and `X-Polaris-Commit-Message`.
        Returns:
            (status, headers, body), where the body is JSON text or empty. If the request fails, the response describes
            the error.
        Raises:
            InputError: this session was closed.
        """
        self._require_open()
        if method == "GET" and headers and not body and not _names_state(path, headers):
            answer = self._unmodified.handle(self.catalog, path, query=query, headers=headers)
        else:
            answer = self._handle(self.catalog, method, path, query=query, body=body, headers=headers)
        if not isinstance(answer, PendingResponse):
            return answer
        return self._wait(
            answer,
            lambda query: self._handle(self.catalog, method, path, query=query, body=body, headers=headers),
        )

    def _wait(self, answer: Response, repeat: Callable[[Mapping[str, str]], Response]) -> Response:
        """Wait in this thread. Repeat a request after each commit until its response is not pending, and return this
        response. If the wait time ends first, return the last pending response.

        Raises:
            InputError: this session was closed.
        """
        until = None
        while isinstance(answer, PendingResponse):
            until = time.monotonic() + answer.wait_seconds if until is None else until
            left = until - time.monotonic()
            if left <= 0:
                return answer
            if self._closed.wait(min(left, POLL_SECONDS)):
                self._require_open()
            if answer.has_changed():
                answer = repeat(answer.query)
        return answer

    def _stamp(self) -> object:
        """Return an object that is the same as long as the permissions of the session's principal cannot have changed.

        Raises:
            RealmStateError: the realm can no longer be used.
        """
        self.serving.require()
        rules = self.access.rules()
        if rules is None:
            return None
        if not self.is_verified or rules.authorizer is not None:
            return object()
        principal = rules.principals.get(self.principal)
        is_active = principal is not None and principal.is_active(self.connection.clock.now_ms())
        return rules if is_active else object()

    def operation(self) -> Operation:
        """Return the identity of a change by this session, with its principal and notes, and without an id."""
        return Operation(b"", self.principal, notes=self.notes)

    def derive(
        self,
        principal: str | None = None,
        catalog: Catalog | None = None,
        notes: Notes | None = None,
        roles: frozenset[str] | None = None,
        *,
        is_verified: bool | None = None,
    ) -> Session:
        """Return a session with another principal, with other notes, or with another form of this session's catalog,
        such as a restricted catalog. The new session shares the store of this session.

        Args:
            roles: names of the principal roles that the new session uses. None: the roles of this session if the
                principal is the same, otherwise all roles of the principal.
            is_verified: whether the principal has logged in. None: the same as in this session if the principal is the
                same, otherwise False.
        The returned session is closed when this session is closed, and only then.
        """
        found = Session(
            self.properties,
            self.connection,
            self.catalog if catalog is None else catalog,
            self.principal if principal is None else principal,
            self.router,
            self.notes if notes is None else notes,
            access=self.access,
            roles=self.roles if roles is None and principal in (None, self.principal) else roles,
            is_verified=(
                self.is_verified and principal in (None, self.principal)
                if is_verified is None
                else is_verified
            ),
        )
        found._share(self)
        found.storage = self.storage
        if found.principal == self.principal:
            found.secret = self.secret
        return found

    def _share(self, other: Session) -> None:
        """Use the resources of another session. This session is closed together with that session."""
        self._resources, self._closed, self._closing = other._resources, other._closed, other._closing
        self._shares = True

    @contextmanager
    def transaction(self, *, isolation: str = "serializable") -> Iterator[TransactionSession]:
        """Carry out a transaction: yield a session that sees one state of the catalog and its own changes, and that has
        savepoints. When the block ends, all its changes take effect in one commit. If the block raises an error,
        nothing changes. If the outcome of the commit is unknown, it is repeated once; the changes take effect once.

        Args:
            isolation: `serializable` or `snapshot` (`catalog.merges.transactions`).
        Raises:
            InputError: the isolation is none of these.
            MergeConflictError: at the end of the block, other sessions have changed something that the transaction
                changed or read.
            OutcomeUnknownError: at the end of the block, the outcome of the commit is still unknown.
        """
        self.serving.require()
        transactions, operation = self.resource(Transactions), self.operation()
        begun = transactions.begin(self.catalog, isolation_of(isolation))
        try:
            yield TransactionSession(self, begun)
            self.serving.require()
            self.require_again(begun)
            try:
                transactions.commit(begun, operation)
            except OutcomeUnknownError:
                transactions.commit(begun, operation)  # find out
        except BaseException:
            transactions.roll_back(begun)
            raise

    def resource(self, cls: type[A]) -> A:
        """Return this session's only object of class `cls`. It is created at the first call and closed with the
        session."""
        with self._closing:
            self._require_open()
            if cls not in self._resources:
                self._resources[cls] = cls()
            return cast("A", self._resources[cls])

    def is_busy(self) -> bool:
        """Whether closing the session now would end something that a client has begun, such as a run or a
        transaction."""
        return any(one.is_busy() for one in list(self._resources.values()))

    def catalog_properties(self) -> dict[str, str]:
        """Return the properties that are now stored with the catalog. They apply to all sessions."""
        self._require_open()
        self.serving.require()
        self.require("CATALOG_READ_PROPERTIES")
        row = current_row(self.catalog.references, self.catalog.row)
        return dict((row or self.catalog.row).properties)

    @property
    def catalogs(self) -> RealmCatalogs:
        """The catalogs of the realm, which this session's principal can create, rename, drop and restore."""
        self._require_open()
        self.serving.require()
        if self.access.is_on:
            self.require_verified()
        references, context = self.catalog.references, self.catalog.context
        return realm_catalogs(references, context, self.operation(), self.access, self.roles)

    def set_catalog_properties(
        self, updates: Mapping[str, str] | None = None, *, removals: Collection[str] = ()
    ) -> dict[str, str]:
        """Set and remove properties of the catalog. When this method returns, the changes apply to all sessions.

        Args:
            updates: values by name, such as `{"gc.enabled": "false"}`.
            removals: names of properties to remove.
        Returns:
            the new properties of the catalog.
        Raises:
            InputError: a property cannot be set, or its value cannot be used.
            NewerFormatError: a newer release wrote the catalog's row.
        """
        self._require_open()
        self.serving.require()
        self.catalog.require_present()
        self.require("CATALOG_WRITE_PROPERTIES")
        catalog, operation = self.catalog, self.operation()
        row = set_properties(
            catalog.references, catalog.context, operation, catalog.row, updates or {}, removals
        )
        return dict(row.properties)

    def permissions(self, *, rotating: bool = False) -> Permissions | None:
        """Return what the session's principal may do in the session's state of the catalog; None if the realm has no
        access control.

        Args:
            rotating: whether the principal rotates its own credentials, which it may do if it must.
        Raises:
            NotAuthorizedError: the principal is not active.
        """
        rules = self.access.rules()
        if rules is None or self.is_operator:
            return None
        self.require_verified()
        now = self.connection.clock.now_ms()
        subject = rules.subject(self.principal, now, self.roles, rotating=rotating)
        head = self.catalog.head()
        return Permissions(rules, subject, self.catalog, head, self.catalog.newest(head))

    def require_again(self, transaction: Transaction) -> None:
        """Check again, before the commit of a transaction, what its requests needed.

        Raises:
            ForbiddenError: the session's principal has lost a privilege since then.
            NotAuthorizedError: the principal is no longer active.
        """
        found = self.derive(catalog=transaction.parent).permissions()
        if found is not None:
            require_again(found, transaction)

    def require_verified(self) -> None:
        """Refuse a session that has not logged in.

        Raises:
            NotAuthorizedError: the session has not logged in.
        """
        if not self.is_verified:
            raise NotAuthorizedError(
                "this realm has access control, and this session has not logged in: open the catalog again with the "
                "property 'credential'"
            )

    def require(self, privilege: str) -> None:
        """Raise an error if the session's principal lacks a privilege on the whole catalog.

        Raises:
            ForbiddenError: the principal lacks the privilege on the catalog.
        """
        found = self.permissions()
        if found is not None:
            check(found, (Need(privilege, On.CATALOG),), NOTHING_ASKED)

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise InputError("this catalog was closed; open it again")

    def close(self) -> None:
        """Close the session's resources and release its store. Later requests raise `InputError`. A second call does
        nothing. A call on a session that `derive` or `transaction` returned does nothing either: such a session is
        closed with its original session."""
        if self._shares:
            return
        with self._closing:
            was_closed = self._closed.is_set()
            self._closed.set()
        if not was_closed:
            for one in self._resources.values():
                one.close()
            self.catalog.metrics.flush()
            self.connection.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TransactionSession(Session):
    """The session of a transaction: its requests see one state of the catalog, and their own changes."""

    def __init__(self, parent: Session, begun: Transaction) -> None:
        super().__init__(
            parent.properties,
            parent.connection,
            catalog_at(parent.catalog, begun.state),
            parent.principal,
            parent.router,
            parent.notes,
            access=parent.access,
            roles=parent.roles,
            is_verified=parent.is_verified,
        )
        self._share(parent)
        self._begun = begun

    def savepoint(self, name: str) -> None:
        """Set a savepoint. It hides an earlier savepoint of the same name.

        Raises:
            NotFoundError: the transaction has ended.
        """
        self.resource(Transactions).save(self._begun, name)

    def rollback_to(self, name: str) -> None:
        """Undo all changes since a savepoint. The transaction stays open.

        Raises:
            BadRequestError: it is not known whether the transaction was committed.
            NotFoundError: the transaction has no such savepoint, or has ended.
        """
        self.resource(Transactions).return_to(self._begun, name)
        self.catalog = catalog_at(self._begun.parent, self._begun.state)
