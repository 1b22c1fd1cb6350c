"""Routes of the REST protocol for tables."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from itertools import count
from typing import Literal, TypeVar

import msgspec

from polaris_spark.access.needs import REFERENCED_BY, Asked, Need, Needs, On, When
from polaris_spark.access.privileges import SEES_TABLE
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.catalogs.property_changes import bind_branch
from polaris_spark.catalog.drops.purge import purge
from polaris_spark.catalog.entities.entities import (
    TableName,
    find,
    namespace_in,
    require,
    require_namespace,
    table_key,
)
from polaris_spark.catalog.entities.listing import list_names
from polaris_spark.catalog.entities.materialized_views import storage_name
from polaris_spark.catalog.files.locations import Holdings
from polaris_spark.catalog.metadata.metadata_paths import metadata_directory
from polaris_spark.catalog.metadata.renderer import render
from polaris_spark.catalog.metadata.rows import ObjectReader, Table, View
from polaris_spark.catalog.rows import NAMES, TABLE, Unloaded
from polaris_spark.catalog.tables.contents import (
    C,
    DropContent,
    Rename,
    StoredContent,
    holdings_of,
    metadata_file,
    occupy,
)
from polaris_spark.catalog.tables.registration import RegisterTable
from polaris_spark.catalog.tables.table_changes import CommitTable, CreateTable, TableCommit
from polaris_spark.commits.change import Change, Operation
from polaris_spark.commits.state import State
from polaris_spark.errors import (
    BadRequestError,
    CommitFailedError,
    NoSuchTableError,
    OutcomeUnknownError,
    PolarisError,
    StorageFullError,
    TryAgainError,
)
from polaris_spark.index.keys import children
from polaris_spark.rest import messages
from polaris_spark.rest.credential_routes import (
    NO_STORE,
    Delegation,
    Loaded,
    delegation,
    delegation_of_created,
    delegation_of_staged,
    wanted,
)
from polaris_spark.rest.namespace_routes import PAGES, page
from polaris_spark.rest.request import NO_CONTENT, NotModified, Request, Response, json_response
from polaris_spark.rest.router import Route
from polaris_spark.rest.shared_tables import require_removable_snapshots
from polaris_spark.rest.snapshots import pin

log = logging.getLogger("polaris_spark")

P = TypeVar("P")
R = TypeVar("R")

Snapshots = Literal["all", "refs"]


def name_of(request: Request) -> TableName:
    """Return the name of the table that the path of a request contains."""
    return TableName(namespace_in(request.params["namespace"]), request.params["table"])


def identifier_name(identifier: messages.Identifier) -> TableName:
    """Return the name of a table or view from an identifier in the body of a request."""
    return TableName(tuple(identifier.namespace), identifier.name)


def etag(content: int, snapshots: Snapshots) -> str:
    """Return the entity tag (ETag) of one version of a table.

    Args:
        content: object id of the version. The index `names` contains this id, so the version itself need not be read.
        snapshots: which snapshots the response contains. The tag depends on this, because different bodies need
            different tags.
    """
    return f'"{content:x}-{snapshots}"'


def answer(
    reader: ObjectReader,
    stored: StoredContent[Table],
    snapshots: Snapshots,
    delegation: Delegation | None = None,
) -> Response:
    """Return the response that contains a table (`LoadTableResult`). If snapshots are left out, add the header that a
    client needs to request them.

    Args:
        delegation: what the response says about access to the table's files. Such a response has no entity tag, because
            credentials expire while the table stays the same.
    """
    location = msgspec.json.encode(stored.value.metadata_location)
    metadata = render(stored.value, reader, snapshots=snapshots)
    more = b'"config":{}' if delegation is None else delegation.fields()
    body = (b'{"metadata-location":%b,"metadata":%b,%b}' % (location, metadata, more)).decode()
    kept = {"ETag": etag(stored.content, snapshots)} if delegation is None else NO_STORE
    headers = {"Content-Type": "application/json", **kept}
    if snapshots == "refs":
        headers.update(pin(stored))
    return Response(200, headers, body)


def _mode(request: Request) -> Snapshots:
    """Return the request's parameter `snapshots`, which says which snapshots the response must contain.

    In the specification, only the request that loads a table has this parameter. In this catalog, every request whose
    response contains a table has the parameter.
    """
    mode = request.query.get("snapshots") or "all"
    if mode not in ("all", "refs"):
        raise BadRequestError(f"snapshots is {mode!r}; it must be 'all' or 'refs'")
    return "refs" if mode == "refs" else "all"


def list_tables(catalog: Catalog, request: Request) -> Response:
    """Answer `GET namespaces/{namespace}/tables`: list the tables in a namespace."""
    return list_kind(catalog, request, TABLE)


def list_kind(catalog: Catalog, request: Request, kind: bytes) -> Response:
    """Return the response that lists the tables or views in a namespace.

    Args:
        kind: `TABLE` or `VIEW`.
    """
    token, size = page(request)
    namespace = namespace_in(request.params["namespace"])
    view = catalog.view()
    if token is None:
        require_namespace(view, namespace)
    if catalog.records_reads:
        view.scan(NAMES, *children(namespace, kind))
    listed = list_names(
        view.base, catalog.reference, namespace, kind, token=token, size=size, keep=request.keep
    )
    above = list(namespace)
    identifiers = [messages.Identifier(above, name) for name in listed.names]
    return json_response(messages.encode(messages.ListTablesResponse(identifiers, listed.next)))


def create_table(catalog: Catalog, request: Request) -> Response:
    """Answer `POST namespaces/{namespace}/tables`: create a table, or stage its creation."""
    mode = _mode(request)
    body = messages.decode(request.body, messages.CreateTableRequest)
    name = TableName(namespace_in(request.params["namespace"]), body.name)
    change = CreateTable(catalog.context, request.operation(), name, msgspec.to_builtins(body))
    if body.stage_create:
        return _stage(catalog, change, request, name)
    stored = catalog.commit(change)
    given = delegation_of_created(catalog, request, name, stored.value)
    return response_after_commit(lambda: answer(catalog.reader, stored, mode, given))


def _stage(catalog: Catalog, change: CreateTable, request: Request, name: TableName) -> Response:
    """Return the response to a staged create, which contains the metadata that the table would have. Nothing is stored
    and no file is written.

    The table's location is checked now, before the client writes data to the location.
    """
    head = catalog.head()
    scratch = State(head, count(head.head.commit + 1).__next__)
    prepared = change.prepare(scratch)
    table, objects = change.draft(scratch, prepared, catalog.context.binding.of(head)).freeze(
        scratch.new_id, metadata_location=""
    )
    held = holdings_of(table)
    catalog.context.require_allowed(held.owned)
    occupy(catalog.context, scratch, 0, Holdings(), held)
    scratch.add_all(objects)
    _make_metadata_folder(catalog, table)
    metadata = render(table, scratch, snapshots="all").decode()
    given = delegation_of_staged(catalog, request, name, table)
    more = '"config":{}' if given is None else given.fields().decode()
    return json_response(f'{{"metadata":{metadata},{more}}}')


def _make_metadata_folder(catalog: Catalog, table: Table) -> None:
    """Create the local folder of a staged table's metadata.

    Some engines, such as DuckDB, write manifests into the folder but do not create it. A failure is ignored, because
    other engines create the folder themselves, perhaps on a machine where that is possible.
    """
    with contextlib.suppress(OSError, ValueError, PolarisError):
        catalog.files.make_folder(metadata_directory(table))


def load_table(catalog: Catalog, request: Request) -> Response:
    """Answer `GET namespaces/{namespace}/tables/{table}`: return a table, or status 304 if the client already has the
    current version."""
    mode, name, known = _mode(request), name_of(request), request.headers.get("if-none-match")

    def load() -> Response:
        view = catalog.view()
        found = require(view, name, TABLE)
        tag, given = etag(found.content, mode), None
        if wanted(request):
            given = delegation(catalog, request, Loaded.of(view, name, view.get(found.content, Table)))
        if given is None and _matches(known, tag):
            return NotModified.of(tag, view.base)
        return answer(view, StoredContent(found.content, view.get(found.content, Table)), mode, given)

    return catalog.loading(load, request.principal)


def _matches(known: str | None, tag: str) -> bool:
    """Whether a tag matches the header `If-None-Match`, whose value is `known`. The value is a list of strong or weak
    tags, or `*` (RFC 9110, 13.1.2)."""
    if not known or known == tag:
        return known == tag
    tags = [one.strip().removeprefix("W/") for one in known.split(",")]
    return tag in tags or tags == ["*"]


def table_exists(catalog: Catalog, request: Request) -> Response:
    """Answer `HEAD namespaces/{namespace}/tables/{table}`: check that a table exists."""
    name = name_of(request)
    if find(catalog.view(), table_key(name)) is None:
        raise NoSuchTableError(f"Table does not exist: {name}")
    return NO_CONTENT


def commit_updates(catalog: Catalog, change: Change[P, R]) -> R:
    """Commit updates of a table or view, and return the result of the change.

    Raises:
        CommitFailedError: nothing was changed. This replaces `TryAgainError`, whose causes are: other commits came
            first until the deadline, the database or the storage failed, too many changes wait, or the realm is being
            moved. Iceberg's clients refresh and retry after this error, while status 503 would leave them in doubt
            about the outcome.
        StorageFullError: nothing was changed, and a retry is useless, because the storage has no space left.
    """
    try:
        return catalog.commit(change)
    except StorageFullError:
        raise  # a retry is useless, and after status 507 clients know that nothing was changed
    except TryAgainError as error:
        raise CommitFailedError(str(error)) from error


def response_after_commit(build: Callable[[], Response]) -> Response:
    """Return the response to a change that was committed. `build` makes the response.

    Raises:
        OutcomeUnknownError: the change was committed, but the data for the response cannot be read now. `TryAgainError`
            is not passed on, because it would tell the client that nothing was changed. A client that repeats the
            request with the same idempotency key gets the response.
    """
    try:
        return build()
    except TryAgainError as error:
        raise OutcomeUnknownError(
            f"the change was made, but the data for the response cannot be read now: {error}"
        ) from error


def commit_table(catalog: Catalog, request: Request) -> Response:
    """Answer `POST namespaces/{namespace}/tables/{table}`: commit updates of a table."""
    mode = _mode(request)
    body = messages.decode(request.body, messages.CommitTableRequest)
    name = name_of(request)
    if body.identifier is not None and identifier_name(body.identifier) != name:
        raise BadRequestError(
            f"the request's path is for {name}, but its body is for {identifier_name(body.identifier)}"
        )
    commit = TableCommit(name, body.requirements or [], body.updates or [])
    require_removable_snapshots(catalog, [commit])
    stored = commit_updates(catalog, CommitTable(catalog.context, request.operation(), commit))
    return response_after_commit(lambda: answer(catalog.reader, stored, mode))


def drop_table(catalog: Catalog, request: Request) -> Response:
    """Answer `DELETE namespaces/{namespace}/tables/{table}`: drop a table and, if requested, delete its files."""
    wants_purge = request.query.get("purgeRequested", "false").lower() == "true"
    drop(
        catalog, DropContent(catalog.context, request.operation(), name_of(request), Table, purge=wants_purge)
    )
    return NO_CONTENT


def drop(catalog: Catalog, change: DropContent[C]) -> None:
    """Drop a table or view. If the change has `purge`, then delete its files, and those of the storage table of a
    materialized view; within a transaction, a later job deletes them. Without `purge`, write its metadata file if
    commits do not write metadata files. Failures to delete or write files are only logged."""
    if not change.purge:
        _write_metadata_of_dropped(catalog, change.name, catalog.commit(change))
        return
    catalog.require_present()
    operation = Operation(b"", change.operation.principal)
    bind_branch(catalog.references, catalog.context, operation, catalog.row, catalog.reference)
    dropped = catalog.commit(change)
    if change.storage is not None:
        _purge(catalog, storage_name(change.name), change.storage)
    if not isinstance(dropped, Unloaded):
        _purge(catalog, change.name, dropped)


def _write_metadata_of_dropped(catalog: Catalog, name: TableName, dropped: Table | View | Unloaded) -> None:
    """Write the metadata file of a table or view that was dropped without purge. Do nothing if commits write metadata
    files, because the file then exists already.

    With this file, the table or view can be registered again, in this or in another catalog. An error is only logged
    and not raised, because the drop has already succeeded.
    """
    if isinstance(dropped, Unloaded):
        return
    try:
        if catalog.effective_properties().metadata_files:
            return
        catalog.files.write_all([metadata_file(dropped, catalog.reader)])
    except Exception as error:  # any error of a file system or database; the rows are still in the history
        log.warning("%s was dropped, but its metadata file was not written: %s", name, error, exc_info=error)


def _purge(catalog: Catalog, name: TableName, dropped: Table | View) -> None:
    """Delete the files of a dropped table or view. An error is only logged and not raised, because the drop has already
    succeeded."""
    if (
        catalog.in_transaction
    ):  # it may be rolled back; the job purge_dropped finds the table after the commit
        return
    try:
        kept = purge(catalog, dropped)
    except Exception as error:  # any error of a file system or database: the log entry records what to delete
        log.warning("purge of %s is left to maintenance: %s", name, error, exc_info=error)
        return
    if kept.because:
        log.warning("purge of %s is left to maintenance, and no file was deleted: %s", name, kept.because)
    elif kept.files:
        log.warning(
            "purge of %s left %d files to maintenance, such as %s", name, len(kept.files), kept.files[0]
        )


def rename_table(catalog: Catalog, request: Request) -> Response:
    """Answer `POST tables/rename`: rename a table."""
    return rename_kind(catalog, request, TABLE)


def rename_kind(catalog: Catalog, request: Request, kind: bytes) -> Response:
    """Rename a table or view, and return the response.

    Args:
        kind: `TABLE` or `VIEW`.
    """
    body = messages.decode(request.body, messages.RenameRequest)
    source, target = identifier_name(body.source), identifier_name(body.destination)
    catalog.commit(Rename(catalog.context, request.operation(), source, target, kind))
    return NO_CONTENT


def register_table(catalog: Catalog, request: Request) -> Response:
    """Answer `POST namespaces/{namespace}/register`: register a table by its metadata file."""
    mode = _mode(request)
    body = messages.decode(request.body, messages.RegisterTableRequest)
    name = TableName(namespace_in(request.params["namespace"]), body.name)
    change = RegisterTable(
        catalog.context,
        request.operation(),
        name,
        body.metadata_location,
        catalog.files,
        overwrite=bool(body.overwrite),
    )
    stored = catalog.commit(change)
    given = delegation_of_created(catalog, request, name, stored.value)
    return response_after_commit(lambda: answer(catalog.reader, stored, mode, given))


def _creates(asked: Asked) -> bool:
    return any(one.get("type") == "assert-create" for one in asked.body.requirements or ())


def _writes_data(asked: Asked) -> bool:
    return any(one.get("action") in _OF_DATA for one in asked.body.updates or ())


_OF_DATA = frozenset(
    {
        "add-snapshot",
        "set-snapshot-ref",
        "remove-snapshot-ref",
        "remove-snapshots",
        "set-statistics",
        "remove-statistics",
        "set-partition-statistics",
        "remove-partition-statistics",
    }
)
"""Actions of updates that change what a table contains. All others change its metadata."""

_CREATES = When("if the change creates the table", _creates)
_CHANGES = When("if the change does not create the table", lambda asked: not _creates(asked))
_WRITES = When(
    "if it adds or removes snapshots, their references or statistics",
    lambda asked: _writes_data(asked) and not _creates(asked),
)
_PURGES = When("if files are deleted", lambda asked: asked.query.get("purgeRequested", "").lower() == "true")
_OVERWRITES = When("if a table may be replaced", lambda asked: bool(asked.body.overwrite))


def commit_needs(table: On, namespace: On) -> Needs:
    """Return the privileges that changes of tables need.

    Args:
        table: how the request names a table.
        namespace: how it names the namespace of this table.
    """
    return (
        Need("TABLE_CREATE", namespace, _CREATES),
        Need("TABLE_WRITE_PROPERTIES", table, _CHANGES),
        Need("TABLE_WRITE_DATA", table, _WRITES),
    )


READS_FILE: Needs = (Need("TABLE_READ_DATA", On.CATALOG), Need("VIEW_READ_PROPERTIES", On.CATALOG))
"""The needs of a registration, because the file that the request names may describe any table or view, also one that
was dropped."""

ROUTES = [
    Route(
        "GET",
        "namespaces/{namespace}/tables",
        list_tables,
        query=PAGES,
        needs=(Need("TABLE_LIST", On.LISTED_TABLES),),
    ),
    Route(
        "POST",
        "namespaces/{namespace}/tables",
        create_table,
        body=messages.CreateTableRequest,
        needs=(Need("TABLE_CREATE", On.NAMESPACE),),
    ),
    Route(
        "POST",
        "namespaces/{namespace}/register",
        register_table,
        body=messages.RegisterTableRequest,
        needs=(
            Need("TABLE_CREATE", On.NAMESPACE),
            *READS_FILE,
            Need("TABLE_DROP", On.NAMESPACE, _OVERWRITES),
            Need("TABLE_WRITE_DATA", On.NAMESPACE, _OVERWRITES),
        ),
    ),
    Route(
        "POST",
        "tables/rename",
        rename_table,
        body=messages.RenameRequest,
        needs=(Need("TABLE_DROP", On.NAMED_TABLE), Need("TABLE_CREATE", On.DESTINATION)),
    ),
    Route(
        "GET",
        "namespaces/{namespace}/tables/{table}",
        load_table,
        query=("snapshots", REFERENCED_BY),
        needs=(Need("TABLE_READ_PROPERTIES", On.TABLE, through_views=True),),
    ),
    Route(
        "POST",
        "namespaces/{namespace}/tables/{table}",
        commit_table,
        body=messages.CommitTableRequest,
        needs=commit_needs(On.TABLE, On.NAMESPACE),
    ),
    Route(
        "DELETE",
        "namespaces/{namespace}/tables/{table}",
        drop_table,
        query=("purgeRequested",),
        needs=(Need("TABLE_DROP", On.TABLE), Need("TABLE_WRITE_DATA", On.TABLE, _PURGES)),
    ),
    Route(
        "HEAD",
        "namespaces/{namespace}/tables/{table}",
        table_exists,
        needs=(Need(SEES_TABLE, On.TABLE),),
    ),
]
