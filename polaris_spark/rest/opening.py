"""Opening a catalog: open the store, log in, find the catalog and its branch, and return a `Session`."""

from __future__ import annotations

import getpass
import logging
import os
from typing import Any, NamedTuple

from polaris_spark.access.control import AccessControl
from polaris_spark.backends import open_backend
from polaris_spark.catalog.branches.protection import complete_protection
from polaris_spark.catalog.branches.states import catalog_as_of
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.catalogs.catalogs import initialize, require_branch
from polaris_spark.catalog.catalogs.other_catalogs import OtherCatalogs
from polaris_spark.catalog.catalogs.property_changes import complete_copy
from polaris_spark.catalog.catalogs.realm_catalogs import RealmCatalogs
from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.catalog.entities.entities import Context, hash_of
from polaris_spark.catalog.entities.properties import SHARED_LOCATIONS, WAREHOUSE, Binding, given_by
from polaris_spark.catalog.files.files import Files, absolute
from polaris_spark.catalog.files.permits import is_around
from polaris_spark.catalog.manifests.manifest_files import process_manifest_files
from polaris_spark.catalog.rows import PROPERTIES, ROW, CatalogRow
from polaris_spark.catalog.tables.snapshot_expiry import EXPIRED
from polaris_spark.clock import Clock, SystemClock
from polaris_spark.commit_notes import checked
from polaris_spark.commits.change import Operation
from polaris_spark.commits.settings import CommitSettings
from polaris_spark.config import Properties, texts_of
from polaris_spark.errors import InputError, NotAuthorizedError, NotFoundError, StateError, StoreURIError
from polaris_spark.names import problem_of
from polaris_spark.rest.catalog_rules import realm_catalogs
from polaris_spark.rest.handler import ROUTER
from polaris_spark.rest.router import Router
from polaris_spark.rest.session import Session
from polaris_spark.store.cache import process_cache
from polaris_spark.store_uris import StoreURI
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


def open_session(
    properties: Properties, clock: Clock, router: Router = ROUTER, *, logs_in: bool = True
) -> Session:
    """Open a catalog, and return its session.

    Args:
        properties: parsed properties, which name the store and the catalog.
        router: routes that requests can use.
        logs_in: False for a server of many realms, which has credentials for none of them. In a realm with access
            control, the session itself then may do nothing. It can only answer requests of callers who have logged in.
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
            return _open(properties, connection, principal, sharing, router, logs_in=logs_in)
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
    properties: Properties,
    connection: StoreConnection,
    principal: str,
    sharing: str | None,
    router: Router,
    *,
    logs_in: bool,
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
    login = (
        logged_in(properties, access, principal)
        if logs_in
        else SessionPrincipal(principal, None, is_verified=False)
    )
    operation = Operation(b"", login.name)
    context = Context.of_realm(connection.clock, properties)._replace(trusts=connection.store_clock.trusts)
    if logs_in:
        catalogs = realm_catalogs(references, context, operation, access, login.roles, rotating=True)
    else:
        catalogs = RealmCatalogs(references, context, operation)
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
        login.name,
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
        (AccessControl, realm.instance, refresh_ms),
        lambda: AccessControl(references, refresh_ms, realm=realm.name),
    )


class SessionPrincipal(NamedTuple):
    """The principal of a session."""

    name: str
    roles: frozenset[str] | None
    """Names of the principal roles to which the session is limited; None for all."""
    is_verified: bool
    """Whether the principal has logged in, because the realm has access control."""
    secret: int | None = None
    """As `Caller.secret`."""


def logged_in(properties: Properties, access: AccessControl, claimed: str) -> SessionPrincipal:
    """Return the principal of a session: the principal of the credentials or token if the realm has access control;
    otherwise, the principal that the configuration names.

    Raises:
        NotAuthorizedError: the realm has access control, and there are neither credentials nor a token, or they are
            wrong.
        InputError: the property `principal` names another principal, or there are both credentials and a token.
    """
    access.refresh()
    if not access.is_on:
        return SessionPrincipal(claimed, None, is_verified=False)
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
    return SessionPrincipal(found, roles, is_verified=True, secret=secret)


_RULES = 2
"""Number of the rules by which updates change a table. Raise it if an update can have another outcome than in earlier
releases, so that processes of different releases do not apply each other's requests."""


def _settings(properties: Properties, row: CatalogRow, context: Context) -> bytes:
    """Return a hash of all settings of this process that determine the result of a change of the catalog."""
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
