"""`PolarisCatalog`: pyiceberg's `Catalog` interface, in this process and without a server.

pyiceberg's own `RestCatalog` is a client of the protocol that `polaris_spark.rest` implements. `PolarisCatalog` is a
`RestCatalog` that calls functions of this process instead of sending HTTP requests. So neither the rules of the catalog
nor pyiceberg's client is implemented twice.

    from pyiceberg.catalog import load_catalog

    catalog = load_catalog(
        "polaris",
        **{
            "py-catalog-impl": "polaris_spark.pyiceberg.PolarisCatalog",
            "store": "sqlite:///path/catalog.db",
            "warehouse": "/path/warehouse",
        },
    )
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote

from cachetools import LRUCache
from pyiceberg.catalog import PY_CATALOG_IMPL, URI, WAREHOUSE_LOCATION
from pyiceberg.catalog.rest import (
    SNAPSHOT_LOADING_MODE,
    Endpoints,
    IdentifierKind,
    RestCatalog,
    TableResponse,
)
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceNotEmptyError,
    NoSuchIdentifierError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
)
from pyiceberg.io import FileIO
from pyiceberg.table import Table, TableIdentifier
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Identifier
from requests import HTTPError

from polaris_spark.catalog.entities.entities import SEPARATOR
from polaris_spark.commits.change import new_operation_id
from polaris_spark.errors import InputError
from polaris_spark.rest.messages import ErrorResponse, decode, encode
from polaris_spark.rest.opening import connect
from polaris_spark.rest.session import Session, TransactionSession

KEPT_TEXT_BYTES = 8 * 2**20
"""Maximum size of the cache of parsed table metadata, as the total length of the JSON texts that were parsed."""


class PolarisCatalog(RestCatalog):
    """A catalog for pyiceberg. Thread-safe. Close it, or use it as a context manager, to release its store.

    A catalog can be pickled, alone or as part of a `Table`. The process that unpickles it opens the same catalog. The
    pickle contains the properties, so give a password as `env:NAME`.

    Args:
        name: the catalog's name in pyiceberg. It is also the name in the realm, unless the property `catalog` is given.
        properties: properties of `polaris_spark.connect` and of pyiceberg's FileIO. Names can have underscores instead
            of dashes.
    Raises:
        InputError: a property cannot be used.
        StateError: the store, realm or catalog cannot be used in its present state.
    """

    def __init__(self, name: str, **properties: Any) -> None:
        self._given = {key: value for key, value in properties.items() if value is not None}
        self._opened = connect(**{"store": "", "catalog": name, **self._given})
        self._kept: LRUCache[str, _Kept] = LRUCache(KEPT_TEXT_BYTES, getsizeof=lambda kept: kept.bytes)
        self._keeping = threading.Lock()
        try:
            super().__init__(name, **{**self._shown(), URI: ""})
        except BaseException:
            self._opened.close()
            raise
        del self.properties[URI]  # needed only by the constructor of `RestCatalog`

    def _shown(self) -> dict[str, Any]:
        """Return the properties for the FileIO of tables. They include neither the store and its password, nor other
        properties that polaris_spark defines, except the warehouse."""
        others = self._opened.properties.other.keys() - {PY_CATALOG_IMPL}
        shown = {key: value for key, value in self._given.items() if {key, key.replace("_", "-")} & others}
        return {**shown, WAREHOUSE_LOCATION: self._opened.catalog.context.warehouse}

    @contextmanager
    def transaction(self, *, isolation: str = "serializable") -> Iterator[TransactionCatalog]:
        """Carry out a transaction: yield a catalog that sees one state and its own changes, and that has savepoints.
        When the block ends, all its changes take effect in one commit. If the block raises an error, nothing changes.

        Args:
            isolation: `serializable` or `snapshot` (`catalog.merges.transactions`).
        Raises:
            MergeConflictError: at the end of the block, other sessions have changed something that the transaction
                changed or read.
        """
        with self._opened.transaction(isolation=isolation) as session:
            yield TransactionCatalog(self, session)

    def _create_session(self) -> Any:
        return self._create_session_of(self._opened)

    @staticmethod
    def _create_session_of(session: Session) -> Any:
        return _InProcess(session)

    def _refresh_token(self) -> None:
        """Do nothing, because requests in this process need no token."""

    def url(self, endpoint: str, prefixed: bool = True, **kwargs: Any) -> str:  # noqa: FBT001, FBT002  # as inherited
        """Return the path of an endpoint. The names in `kwargs` are passed unescaped; this method escapes them.

        Raises:
            NoSuchNamespaceError, NoSuchIdentifierError: a name is empty, so that the path would be the path of another
                endpoint.
        """
        for kind, name in kwargs.items():
            if not name:
                missing = NoSuchNamespaceError if kind == "namespace" else NoSuchIdentifierError
                raise missing(f"the name of the {kind} is empty")
        return "v1/" + endpoint.format(**{key: quote(value, safe="") for key, value in kwargs.items()})

    def _encode_namespace_path(self, namespace: Identifier) -> str:
        for level in namespace:
            if SEPARATOR in level:
                raise BadRequestError(
                    f"a level of the namespace {namespace!r} contains the character 0x1F, which separates levels in "
                    "requests"
                )
        return SEPARATOR.join(namespace)

    def _split_identifier_for_path(
        self, identifier: str | Identifier | TableIdentifier, kind: IdentifierKind = IdentifierKind.TABLE
    ) -> dict[str, Any]:
        if isinstance(identifier, TableIdentifier):
            names = (*identifier.namespace.root, identifier.name)
        else:
            names = self._identifier_to_validated_tuple(identifier)
        return {"namespace": self._encode_namespace_path(names[:-1]), kind.value: names[-1]}

    def load_table(self, identifier: str | Identifier) -> Table:
        """Load a table. If the cache contains the current metadata of the table, the metadata is not parsed again.

        Raises:
            NoSuchTableError: the table does not exist.
        """
        names = self._identifier_to_validated_tuple(identifier)
        path = self.url(Endpoints.load_table, **self._split_identifier_for_path(names))
        with self._keeping:
            kept = self._kept.get(path)
        mode = self.properties.get(SNAPSHOT_LOADING_MODE)
        answer: Any = self._session.get(
            path,
            params={"snapshots": mode} if mode else None,
            headers={"If-None-Match": kept.etag} if kept else None,
        )
        if kept is None or answer.status_code != 304:
            answer.raise_for_status()
            kept = self._keep(path, answer)
        return Table(names, _own(kept.metadata), kept.metadata_location, kept.io, self)

    def _keep(self, path: str, answer: _Answer) -> _Kept:
        response = TableResponse.model_validate_json(answer.text)
        location = response.metadata_location
        assert location is not None  # it is None for staged tables only
        io = self._load_file_io(response.metadata.properties, location)
        kept = _Kept(answer.headers["ETag"], len(answer.text), response.metadata, location, io)
        with self._keeping:
            if kept.bytes <= KEPT_TEXT_BYTES:
                self._kept[path] = kept
        return kept

    def __reduce__(self) -> tuple[Any, ...]:
        if self._opened.properties.store.address == "name":
            raise InputError(
                "a catalog in a memory: store, or one of its tables, cannot be pickled, because another process cannot "
                "open the store"
            )
        return _reopen, (self.name, self._given)


class TransactionCatalog(PolarisCatalog):
    """The catalog of a transaction: it sees one state, and its own changes. It cannot be pickled."""

    _opened: TransactionSession

    def __init__(self, outer: PolarisCatalog, session: TransactionSession) -> None:
        self.__dict__.update(outer.__dict__)
        self._opened = session
        self._session = self._create_session_of(session)
        self._kept = LRUCache(KEPT_TEXT_BYTES, getsizeof=lambda kept: kept.bytes)

    def savepoint(self, name: str) -> None:
        """Set a savepoint. It hides an earlier savepoint of the same name.

        Raises:
            NotFoundError: the transaction has ended.
        """
        self._opened.savepoint(name)

    def rollback_to(self, name: str) -> None:
        """Undo all changes since a savepoint. The transaction stays open. Tables that were loaded since then must be
        loaded again.

        Raises:
            NotFoundError: the transaction has no such savepoint, or has ended.
        """
        self._opened.rollback_to(name)

    def __reduce__(self) -> tuple[Any, ...]:
        raise InputError(
            "the catalog of a transaction cannot be pickled, and neither can its tables, because the transaction "
            "exists only in this process: commit it, then pickle a table of the catalog itself"
        )


def _reopen(name: str, properties: dict[str, Any]) -> PolarisCatalog:
    return PolarisCatalog(name, **properties)


class _Kept(NamedTuple):
    """A cached version of a table, with its parsed metadata."""

    etag: str
    bytes: int
    metadata: TableMetadata
    metadata_location: str
    io: FileIO


def _own(metadata: TableMetadata) -> TableMetadata:
    """Return a copy of metadata, so that the caller can change its lists and dictionaries. Their elements are
    immutable."""
    copied = {
        name: value.copy() for name, value in metadata.__dict__.items() if isinstance(value, (dict, list))
    }
    return metadata.model_copy(update=copied)


class _Answer(NamedTuple):
    """The part of `requests.Response` that `RestCatalog` uses."""

    status_code: int
    headers: Mapping[str, str]
    text: str

    def raise_for_status(self) -> None:
        """If the response is an error, raise pyiceberg's exception for the error type in its body. The status alone
        does not distinguish a missing table from a missing namespace.

        Raises:
            HTTPError: pyiceberg has no exception for the error type. `RestCatalog` then chooses an exception by the
                status.
        """
        if self.status_code < 400:
            return
        error = decode(self.text, ErrorResponse).error if self.text else None
        if error is not None and error.type in _ERRORS:
            raise _ERRORS[error.type](f"{error.type}: {error.message}")
        raise HTTPError(response=self)


_ERRORS: dict[str, type[Exception]] = {
    "NoSuchNamespaceException": NoSuchNamespaceError,
    "NoSuchTableException": NoSuchTableError,
    "NoSuchViewException": NoSuchViewError,
    "NamespaceNotEmptyException": NamespaceNotEmptyError,
    "CommitFailedException": CommitFailedException,
    "CommitStateUnknownException": CommitStateUnknownException,
    "UnprocessableEntityException": ValueError,  # properties both set and removed
}


class _InProcess:
    """The part of `requests.Session` that `RestCatalog` uses. Each of its methods calls the catalog in this process."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.headers: dict[str, str] = {}

    def get(self, url: str, params: Any = None, headers: Any = None) -> _Answer:
        return _Answer(*self._session.request("GET", url, params, headers=headers))

    def head(self, url: str) -> _Answer:
        return _Answer(*self._session.request("HEAD", url))

    def post(self, url: str, data: bytes | None = None, json: Any = None, headers: Any = None) -> _Answer:
        if data is not None:
            return self._change("POST", url, None, data.decode())
        try:
            body = encode(json)
        except TypeError as error:  # such as a property whose name is None
            raise BadRequestError(f"an argument cannot be written as JSON: {error}") from error
        return self._change("POST", url, None, body)

    def delete(self, url: str, params: Any = None) -> _Answer:
        return self._change("DELETE", url, {k: str(v).lower() for k, v in (params or {}).items()}, None)

    def _change(self, method: str, url: str, query: Any, body: str | None) -> _Answer:
        """Send a request that changes something. If its outcome is unknown (status 504), repeat it once with the same
        idempotency key."""
        id = new_operation_id(self._session.connection.clock.now_ms())
        headers = {"Idempotency-Key": str(uuid.UUID(bytes=id))}
        answer = _Answer(*self._session.request(method, url, query, body, headers))
        if answer.status_code == 504:
            answer = _Answer(*self._session.request(method, url, query, body, headers))
        return answer

    def close(self) -> None:
        self._session.close()

    def __enter__(self) -> _InProcess:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing, so that the store stays open. `RestCatalog` uses a session as a context manager to read the
        configuration, and continues to use the catalog after that."""
