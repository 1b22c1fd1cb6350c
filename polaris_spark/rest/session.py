"""Opening a catalog. The result is a `Session`, which answers requests of the REST protocol."""

from __future__ import annotations

import getpass
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from polaris_spark.access.control import AccessControl
from polaris_spark.access.needs import Need, On
from polaris_spark.backends import open_backend
from polaris_spark.catalog.catalog import Catalog
from polaris_spark.catalog.catalogs import current_row, initialize, require_branch
from polaris_spark.catalog.change_log import POLL_SECONDS
from polaris_spark.catalog.entities import Context, hash_of
from polaris_spark.catalog.files import Files, absolute
from polaris_spark.catalog.manifest_files import process_manifest_files
from polaris_spark.catalog.other_catalogs import OtherCatalogs
from polaris_spark.catalog.permits import is_around
from polaris_spark.catalog.properties import SHARED_LOCATIONS, WAREHOUSE, Binding, given_by
from polaris_spark.catalog.property_changes import complete_copy, set_properties
from polaris_spark.catalog.protection import complete_protection
from polaris_spark.catalog.realm_catalogs import RealmCatalogs
from polaris_spark.catalog.references import head_name
from polaris_spark.catalog.rows import PROPERTIES, ROW, CatalogRow
from polaris_spark.catalog.snapshot_expiry import EXPIRED
from polaris_spark.catalog.states import STATE, catalog_as_of, catalog_at
from polaris_spark.catalog.transactions import Transaction, Transactions, isolation_of
from polaris_spark.clock import Clock, SystemClock
from polaris_spark.commit_notes import Notes, checked
from polaris_spark.commits.change import Operation
from polaris_spark.commits.settings import CommitSettings
from polaris_spark.config import Properties, StoreURI, texts_of
from polaris_spark.errors import (
    InputError,
    NotAuthorizedError,
    NotFoundError,
    OutcomeUnknownError,
    StateError,
    StoreURIError,
)
from polaris_spark.names import problem_of
from polaris_spark.rest.access import Caller, Role
from polaris_spark.rest.catalog_rules import realm_catalogs
from polaris_spark.rest.handler import ROUTER, STATE_HEADER, Unmodified, handle
from polaris_spark.rest.permissions import NOTHING_ASKED, Permissions, check, require_again
from polaris_spark.rest.request import PendingResponse, Response
from polaris_spark.rest.router import Router
from polaris_spark.storage.access import StorageAccess
from polaris_spark.store.cache import process_cache
from polaris_spark.system.connections import StoreConnection, connect_store
from polaris_spark.system.realms import RealmRecord
from polaris_spark.system.registry import References

log = logging.getLogger("polaris_spark")

QUOTAS = {
    "names": 2_048,
    "ids": 512,
    "locations": 512,
    "operations": 1_024,
    EXPIRED: 512,
    "references": 4_096,
    "reports": 2_048,
}
"""Maximum size of the part of each index that a commit's own row contains, in bytes, by index name. The values are
small, so that a commit to one table is small."""

MAX_PRINCIPAL_BYTES = 512
"""Maximum length of a principal's name, in UTF-8 bytes."""


class Resource(Protocol):
    """An object that belongs to a session and is closed when the session is closed."""

    def close(self) -> None:
        """Stop this object from using the session's store."""


A = TypeVar("A", bound=Resource)


def _names_state(path: str, headers: Mapping[str, str]) -> bool:
    """Whether a request may mean another state than that of the session (`rest.handler`)."""
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
        self.secret: int | None = None
        """As `Caller.secret`."""
        self.connection = connection
        self.catalog = catalog
        self.serving = connection.serving(properties.realm, catalog.references.store.realm)
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
        """Wait in this thread until a request gets another response than a pending one, or its time is over.

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
        """Return an object. A different object than before means that the permissions of the session's principal may
        have changed.

        Raises:
            RealmStateError: the realm no longer serves.
        """
        self.serving.require()
        rules = self.access.rules()
        if rules is None:
            return None
        if not self.is_verified:
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
            roles: names of the principal roles that the new session uses; None for those of this session if the
                principal is the same, else for all.
            is_verified: whether the principal has logged in; None if it has in this session and stays the same.
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
        """Use the resources of another session, and be closed with it."""
        self._resources, self._closed, self._closing = other._resources, other._closed, other._closing
        self._shares = True

    @contextmanager
    def transaction(self, *, isolation: str = "serializable") -> Iterator[TransactionSession]:
        """Carry out a transaction: yield a session that sees one state of the catalog and its own changes, and that has
        savepoints. When the block ends, all its changes take effect in one commit. If the block raises an error,
        nothing changes. If the outcome of the commit is unknown, it is repeated once; the changes take effect once.

        Args:
            isolation: `serializable` or `snapshot` (`catalog.transactions`).
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
        if rules is None:
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
            NotAuthorizedError: it has not.
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
            check(found, (Need(privilege, On.CATALOG),), NOTHING_ASKED, lambda _: [])

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
        """Set a savepoint. An earlier one of the same name is hidden.

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


def connect(
    *,
    store: str,
    warehouse: str | None = None,
    clock: Clock | None = None,
    router: Router = ROUTER,
    **properties: Any,
) -> Session:
    """Open a catalog, and return its session. `polaris_spark.connect` calls this with a router that has all routes.

    Args:
        store: URI of the database.
        warehouse: location below which tables are created if their creator gives no location.
        clock: clock to use; for tests.
        router: routes that requests can use.
        properties: catalog properties; names can have underscores instead of dashes.
    Raises:
        InputError: a property cannot be used.
        NoStoreError: the store does not exist, and `create` is false.
        StateError: the realm or catalog cannot be used in its present state, or a newer release made the store.
    """
    given = {"store": store, **properties}
    if warehouse is not None:
        given[WAREHOUSE] = warehouse
    return open_session(Properties.parse(texts_of(given)), clock or SystemClock(), router)


def open_session(properties: Properties, clock: Clock, router: Router = ROUTER) -> Session:
    """Open a catalog, and return its session.

    Args:
        properties: parsed properties, which name the store and the catalog.
        router: routes that requests can use.
    """
    process_cache().provide(properties.cache_bytes)
    principal, sharing = principal_of(properties), _sharing(properties)
    given_by(properties)
    checked(properties.commit_notes)  # refuse invalid values before anything is opened
    create = properties.create and properties.warehouse is not None
    _refuse_cluster(properties)
    try:
        connection = connect_store(properties.store, properties.store_options, clock=clock, create=create)
        try:
            return _open(properties, connection, principal, sharing, router)
        except BaseException:
            connection.close()
            raise
    except (StateError, NotFoundError, StoreURIError) as error:
        if properties.create and not create and not properties.as_of:
            raise InputError(
                f"the catalog cannot be opened: {error}; and it cannot be created, because the property 'warehouse' is "
                "missing"
            ) from error
        raise


def _open(
    properties: Properties, connection: StoreConnection, principal: str, sharing: str | None, router: Router
) -> Session:
    create = properties.create and properties.warehouse is not None
    realm = connection.realm(
        properties.realm,
        create=create,
        initialize=lambda references: initialize(references, Operation(b"", principal)),
    )
    files = Files(dict(properties.other))
    references = _references(properties, connection, realm, files)
    access = access_of(connection, realm, references, properties.access_refresh)
    login = logged_in(properties, access, principal)
    operation = Operation(b"", login.principal)
    context = Context.of_realm(connection.clock, properties)._replace(trusts=connection.store_clock.trusts)
    catalogs = realm_catalogs(references, context, operation, access, login.roles, rotating=True)
    wanted = _wanted(properties, sharing) if create else None
    row, is_new = catalogs.open(properties.catalog or "polaris", wanted)
    _require_sharing(row, sharing)
    catalog = _bound(properties, references, row, files, context, operation, has_owners=login.is_verified)
    if is_new:
        _warn_of_nesting(connection.uri, catalog.context.warehouse, row.name)
    if properties.as_of:
        catalog = catalog_as_of(catalog, properties.as_of)
        catalog.bound = True
    session = Session(
        properties,
        connection,
        catalog,
        login.principal,
        router,
        access=access,
        roles=login.roles,
        is_verified=login.is_verified,
    )
    session.secret = login.secret
    return session


def _references(
    properties: Properties, connection: StoreConnection, realm: RealmRecord, files: Files
) -> References:
    """Return the references of a realm. Sessions with the same settings share them."""
    settings = CommitSettings(
        QUOTAS,
        operation_lifetime_ms=properties.idempotency_key_lifetime,
        deadline_ms=properties.commit_timeout,
    )
    file_options = tuple(sorted(properties.other.items()))
    sharing_key = (settings.operation_lifetime_ms, settings.deadline_ms, file_options)
    return connection.references(realm, settings, files, sharing_key)


def _bound(
    properties: Properties,
    references: References,
    row: CatalogRow,
    files: Files,
    context: Context,
    operation: Operation,
    *,
    has_owners: bool,
) -> Catalog:
    """Return the catalog of a row, on the branch and with the properties of a session."""
    require_branch(references, row, properties.branch)
    name = head_name(row, properties.branch)
    head = references.read(name)
    complete_protection(references, context, operation, row, head, name)
    row = complete_copy(references, context, operation, row, head, name)
    others = OtherCatalogs(references, row, context.clock)
    binding = Binding(properties, row.properties, head.index(PROPERTIES).get(ROW))
    context = _context(properties, row, context)._replace(
        refused_elsewhere=others.refusal, binding=binding, has_owners=has_owners
    )
    context = context._replace(settings=_settings(properties, row, context))
    return Catalog(references, row, context, files, branch=properties.branch)


def _require_sharing(row: CatalogRow, sharing: str | None) -> None:
    kept = row.properties.get(SHARED_LOCATIONS, "refuse")
    if sharing not in (None, kept):
        raise InputError(
            f"{SHARED_LOCATIONS} is {sharing!r}, but catalog {row.name!r} was created with {kept!r}, which cannot be "
            "changed here; leave the property out"
        )


def access_of(
    connection: StoreConnection, realm: RealmRecord, references: References, refresh_ms: int
) -> AccessControl:
    """Return the access control of a realm. All sessions of this process with the same store and refresh period share
    one object."""
    return connection.shared(
        (AccessControl, realm.instance, refresh_ms), lambda: AccessControl(references, refresh_ms)
    )


class Login(NamedTuple):
    """The principal of a session."""

    principal: str
    roles: frozenset[str] | None
    """Names of the principal roles to which the session is limited; None for all."""
    is_verified: bool
    """Whether the principal has logged in, because the realm has access control."""
    secret: int | None = None
    """As `Caller.secret`."""


def logged_in(properties: Properties, access: AccessControl, claimed: str) -> Login:
    """Return the principal of a session. If the realm has access control, it is the one of the credentials or token;
    otherwise, the one that the configuration names.

    Raises:
        NotAuthorizedError: the realm has access control, and there are neither credentials nor a token, or they are
            wrong.
        InputError: the property `principal` names another principal, or there are both credentials and a token.
    """
    access.refresh()
    if not access.is_on:
        return Login(claimed, None, is_verified=False)
    roles = None
    if properties.credential is not None and properties.token is not None:
        raise InputError("the properties 'credential' and 'token' are both set; set only one of them")
    if properties.token is not None:
        from polaris_spark.access.tokens import log_in_by_token  # needs libraries that are optional

        token = log_in_by_token(access, properties.realm, properties.token)
        found, roles, secret = token.principal.name, token.roles, token.secret
    elif properties.credential is None:
        raise NotAuthorizedError(
            "this realm has access control: set the property 'credential' to client_id:client_secret, or to env:NAME, "
            "where NAME is an environment variable that contains it; or set 'token'"
        )
    else:
        principal, own = access.log_in(properties.credential)
        found, secret = principal.name, own.created
    if properties.principal is not None and properties.principal != found:
        raise InputError(
            f"the property 'principal' is {properties.principal!r}, but the credentials are those of {found!r}; leave "
            "'principal' out"
        )
    return Login(found, roles, is_verified=True, secret=secret)


_RULES = 2
"""Number of the rules by which updates change a table. Raise it if an update can have another outcome than in earlier
releases, so that processes of different releases do not apply each other's requests."""


def _settings(properties: Properties, row: CatalogRow, context: Context) -> bytes:
    """Return the hash of everything in this process that decides what a change of the catalog does."""
    return hash_of(
        _RULES,
        row.name,
        row.entity_id,
        sorted(row.properties.items()),
        context.warehouse,
        context.shared_locations,
        context.operation_lifetime_ms,
        sorted(given_by(properties).items()),
        properties.branch,
        properties.metadata_files,
        properties.history_retention,
        properties.log_retention,
        properties.grace,
        properties.append_rebase,
        properties.schema_merge,
    )


def _wanted(properties: Properties, sharing: str | None) -> dict[str, str]:
    """Return the properties to store with a catalog that is created now.

    Raises:
        InputError: the value of a property cannot be used.
    """
    fixed = {WAREHOUSE: properties.warehouse, SHARED_LOCATIONS: sharing}
    return given_by(properties) | {name: text for name, text in fixed.items() if text}


def _warn_of_nesting(store: StoreURI, warehouse: str, catalog: str) -> None:
    if is_around(store, warehouse):
        log.warning(
            "store %s and warehouse %s of catalog %r overlap: no job of a catalog deletes files of "
            "the store, but other programs that clean the warehouse might; put the store elsewhere",
            store,
            warehouse,
            catalog,
        )


def principal_of(properties: Properties) -> str:
    """Return the principal that the log records for changes: the property `principal`, or else the user of this
    process."""
    return check_principal(properties.principal or os_user())


def check_principal(principal: str) -> str:
    """Return the principal unchanged, after checking that the log can contain it.

    Raises:
        InputError: the principal is empty, is not printable (`polaris_spark.names`), or is too long for index keys.
    """
    problem = problem_of(principal)
    if problem is not None:
        raise InputError(f"the principal {principal[:200]!a} {problem}")
    size = len(principal.encode())
    if size > MAX_PRINCIPAL_BYTES:
        raise InputError(f"the principal has {size} bytes; the maximum is {MAX_PRINCIPAL_BYTES}")
    return principal


def os_user() -> str:
    """Return the name of the operating system's user who runs this process; `uid-N` if the user has no name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user that is not in the password file
        return f"uid-{os.getuid()}"


def _sharing(properties: Properties) -> str | None:
    sharing = properties.other.get(SHARED_LOCATIONS)
    if sharing not in (None, "allow", "refuse"):
        raise InputError(f"{SHARED_LOCATIONS} is {sharing!r}; it must be 'allow' or 'refuse'")
    return sharing


def _context(properties: Properties, row: CatalogRow, context: Context) -> Context:
    warehouse = properties.warehouse or row.properties.get(WAREHOUSE)
    if not warehouse:
        raise InputError(
            f"the property 'warehouse' is missing, and catalog {row.name!r} has no stored warehouse: set 'warehouse' "
            "to the location below which tables are created"
        )
    return context._replace(
        warehouse=absolute(warehouse),
        shared_locations=row.properties.get(SHARED_LOCATIONS) == "allow",
        manifest_files=process_manifest_files(dict(properties.other)),
    )


def _refuse_cluster(properties: Properties) -> None:
    """Refuse a store that the executors of a Spark cluster could not read. This is checked before the store is created.

    Raises:
        InputError: Spark runs on a cluster, and the store serves only one process or one machine.
    """
    master = properties.other.get("spark.master", "local")
    if master.startswith("local"):
        return
    backend = open_backend(properties.store, properties.store_options)
    scope = backend.scope
    backend.close()
    if scope != "cluster":
        raise InputError(
            f"a {properties.store.scheme}: store serves {'one process' if scope == 'process' else 'one machine'} "
            f"only, but Spark's master is {master!r}, so the executors could not read the store; use a store on a "
            "database server"
        )
