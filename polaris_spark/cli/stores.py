"""Stores that commands open. Opening a store writes no rows: it creates nothing, and does not complete operations that
another process left unfinished. A command takes a lease only if it changes data."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from polaris_spark.backends.base import Backend
from polaris_spark.catalog.branches.archived_log import Archive, ArchivedLog
from polaris_spark.catalog.branches.change_log import BranchLog
from polaris_spark.catalog.catalogs.references import CATALOGS, catalogs_in, head_name, heads_prefix
from polaris_spark.catalog.rows import CatalogRow
from polaris_spark.cli.options import CREDENTIAL_VARIABLE, PASSWORD_VARIABLE
from polaris_spark.commits.head_reader import refuse_moved
from polaris_spark.commits.rows import Head
from polaris_spark.commits.settings import CommitSettings
from polaris_spark.commits.state import CommitReader
from polaris_spark.config import Properties
from polaris_spark.errors import InputError, NotFoundError, RealmStateError
from polaris_spark.secret_options import REFERENCE, is_secret
from polaris_spark.spark.options import refuse_memory
from polaris_spark.store.objects import ObjectStore
from polaris_spark.store_uris import Secret, StoreURI
from polaris_spark.system.connections import StoreConnection, connect_store
from polaris_spark.system.realms import RealmRecord, RealmState
from polaris_spark.system.reference_reader import ReferenceReader
from polaris_spark.system.registrations import registered_by
from polaris_spark.system.registry import REFERENCES, ROOT, References, Registered, listed_in
from polaris_spark.system.stores import StoreRecord, check_store


class OpenRealm:
    """A realm of an open store. It can only be read."""

    def __init__(self, connection: StoreConnection, record: RealmRecord) -> None:
        self.record = record
        self.objects: ObjectStore = connection.store(record)
        self._references = ReferenceReader(self.objects)

    def references(self) -> list[Registered]:
        """Return the references that the registry of the realm lists, live and dropped, sorted by name.

        Raises:
            RealmStateError: the registry's row is missing.
        """
        return listed_in(self._registry().index(REFERENCES))

    def _registry(self) -> CommitReader:
        head = self._references.head(ROOT)
        if head is None:
            raise RealmStateError(
                f"the registry of references of realm {self.record.name!r} is missing (state of the realm: "
                f"{self.record.state.value}): either the realm is still being created, or the row was lost (then run "
                "recover)"
            )
        refuse_moved(head)
        return self._references.open(head)

    def head(self, name: str) -> CommitReader:
        """Return the newest commit of a live or dropped reference.

        Raises:
            NotFoundError: the registry does not list the reference.
        """
        registry = self._registry()
        if name == ROOT:
            return registry
        listed = listed_in(registry.index(REFERENCES))
        for registered in listed:
            if registered.name == name:
                return self.head_of(registered)
        known = ", ".join([ROOT, *(registered.name for registered in listed)])
        raise NotFoundError(f"realm {self.record.name!r} has no reference {name!r}; it has: {known}")

    def head_of(self, registered: Registered) -> CommitReader:
        """Return the newest commit of a reference that the registry lists. If the reference's row was never written,
        return its first commit."""
        return self._references.open(self._references.head_of(registered))

    def archived_log(self, name: str, head: Head) -> ArchivedLog:
        """Return the archived log of a reference whose newest commit is `head`."""
        registry = self._registry()
        entry = registry.index(REFERENCES).get(name.encode())
        row_name = name if entry is None else registered_by(name, entry).row_name
        return Archive(self._references, registry).of(head, name, row_name)

    def catalogs(self) -> list[CatalogRow]:
        """Return the realm's catalogs, sorted by name."""
        return catalogs_in(self.head(CATALOGS))

    def catalog(self, name: str | None) -> CatalogRow:
        """Return the catalog with the name `name`, or the realm's only catalog if `name` is None.

        Raises:
            InputError: no name was given, and the realm has several catalogs.
            NotFoundError: the realm has no catalog of that name, or no catalog at all.
        """
        listed = self.catalogs()
        known = ", ".join(repr(row.name) for row in listed) or "none"
        if name is None and len(listed) > 1:
            raise InputError(
                f"realm {self.record.name!r} has several catalogs; choose one with --catalog: {known}"
            )
        for row in listed:
            if name in (None, row.name):
                return row
        if name is None:
            raise NotFoundError(f"realm {self.record.name!r} has no catalogs")
        raise NotFoundError(f"realm {self.record.name!r} has no catalog {name!r}; it has: {known}")

    def catalog_head(self, row: CatalogRow, branch: str) -> CommitReader:
        """Return the newest commit of a catalog's branch.

        Raises:
            NotFoundError: the catalog has no branch of that name.
        """
        name, prefix = head_name(row, branch), heads_prefix(row)
        names = [one.name for one in self.references()]
        if name not in names:
            known = [repr(one.removeprefix(prefix)) for one in names if one.startswith(prefix)]
            raise NotFoundError(
                f"catalog {row.name!r} has no branch {branch!r}; it has: {', '.join(known) or 'none'}"
            )
        return self.head(name)

    def branch_log(self, row: CatalogRow, branch: str) -> BranchLog:
        """Return the log of a catalog's branch.

        Raises:
            NotFoundError: the catalog has no branch of that name.
        """
        head = self.catalog_head(row, branch).head
        return BranchLog(self.objects, head, self.archived_log(head_name(row, branch), head))


class OpenStore:
    """An open store, from which realms can be read. Only `writable_realm` allows changes."""

    def __init__(self, connection: StoreConnection, record: StoreRecord) -> None:
        self.record = record
        self.uri = connection.uri
        self.backend: Backend = connection.backend
        self.ids = connection.ids
        self._connection = connection

    def realms(self) -> list[OpenRealm]:
        """Return the realms in any state except GONE, sorted by name."""
        return [OpenRealm(self._connection, record) for record in self._connection.realms.all()]

    def realm_names(self) -> list[str]:
        """Return the names of all realms, sorted, including those that are GONE or cannot be read."""
        return self._connection.realms.names()

    def state(self, name: str) -> RealmState:
        """Return the state of a realm.

        Raises:
            CorruptionError: the record of the realm cannot be read.
            NewerFormatError: a newer release made the realm.
        """
        record = self._connection.realms.find(name)
        return RealmState.GONE if record is None else record.state

    def realm(self, name: str) -> OpenRealm:
        """Return a realm whose rows can be read.

        Raises:
            RealmStateError: the store has no realm of that name, or the realm is neither ACTIVE nor INACTIVE.
        """
        record = self._connection.realms.find(name)
        if record is None:
            known = ", ".join(repr(realm.record.name) for realm in self.realms()) or "none"
            raise RealmStateError(f"there is no realm {name!r} in this store; it has: {known}")
        if record.state not in (RealmState.ACTIVE, RealmState.INACTIVE):
            raise RealmStateError(
                f"realm {name!r} is {record.state.value}; only a realm that is ACTIVE or INACTIVE can be read"
            )
        return OpenRealm(self._connection, record)

    def active_realm(self, name: str) -> OpenRealm:
        """Return an ACTIVE realm. Unlike `realm`, this reads no other realm, not even for the text of an error.

        Raises:
            RealmStateError: the realm does not exist or is not ACTIVE.
            InputError: the name is not a valid realm name.
        """
        return OpenRealm(self._connection, self._connection.realms.active(name))

    def writable_realm(self, name: str) -> References:
        """Return the references of an active realm, in order to change them.

        Raises:
            RealmStateError: the store has no realm of that name, or the realm is not ACTIVE.
        """
        self.realm(name)
        return self._connection.references(
            self._connection.realms.active(name), CommitSettings({}), None, "changing"
        )


@contextmanager
def open_store(
    uri: str, password: str | None = None, options: Mapping[str, str | Secret] | None = None
) -> Iterator[OpenStore]:
    """Open an existing store for the duration of a `with` block.

    Args:
        uri: URI of the store.
        password: `env:NAME`, where NAME is the environment variable that contains the store's password.
        options: options of the store. If given, `password` is ignored. If None, the store's password comes from
            `password`, or else from the environment variable POLARIS_SPARK_STORE_PASSWORD.
    Raises:
        InputError: the URI or the password cannot be used.
        NoStoreError: the database contains no store.
        NewerFormatError: a newer release created the store.
    """
    parsed = StoreURI.parse(uri)
    refuse_memory(parsed)
    if options is None:
        options = store_options(parsed, password)
    connection = connect_store(parsed, options, create=False)
    try:
        yield OpenStore(connection, check_store(connection.backend))
    finally:
        connection.close()


def store_options(uri: StoreURI, password: str | None) -> dict[str, str | Secret]:
    """Return the options of a store that the command line and the environment give: the password, if there is one.

    Args:
        password: the option `--password`; None if it was not given.
    Raises:
        InputError: `password` is not `env:NAME`, or that variable is not set.
    """
    if password is not None:
        if not password.startswith("env:"):
            raise InputError(
                "--password takes env:NAME, the name of an environment variable: "
                "a password on the command line is visible to all users of this machine"
            )
        secret = Secret(password)
        secret.reveal()
        return {"password": secret}
    if PASSWORD_VARIABLE in os.environ and uri.password is None and uri.address == "host":
        return {"password": Secret(f"env:{PASSWORD_VARIABLE}")}
    return {}


def properties_of(given: Mapping[str, str], named: Sequence[str] | None, password: str | None) -> Properties:
    """Return the catalog properties from options of the command line and from texts `NAME=VALUE`.

    Options take precedence over texts. The credentials for a realm with access control come from a text, or else from
    the environment variable POLARIS_SPARK_CREDENTIAL. The store's password comes from `password`, or else from a text,
    or else from the environment variable POLARIS_SPARK_STORE_PASSWORD.

    Args:
        given: properties from options, by name.
        named: texts `NAME=VALUE`.
        password: `env:NAME`, where NAME is the environment variable that contains the store's password.
    Raises:
        InputError: a property is malformed, or an environment variable that it names is not set.
    """
    parsed = Properties.parse({**named_properties(named or ()), **given})
    further = store_options(parsed.store, password)
    both = {**further, **parsed.store_options} if password is None else {**parsed.store_options, **further}
    credential = parsed.credential
    if credential is None and parsed.token is None and os.environ.get(CREDENTIAL_VARIABLE):
        credential = Secret(REFERENCE + CREDENTIAL_VARIABLE)
    return dataclasses.replace(parsed, store_options=both, credential=credential)


def named_properties(given: Sequence[str]) -> dict[str, str]:
    """Return catalog properties from texts such as `s3.region=eu-west-1`.

    A value `env:NAME` is replaced by the value of that environment variable.

    Raises:
        InputError: a text has no name or no `=`, a variable is not set, or a text contains a secret in plain text.
    """
    texts = named_texts(given)
    return {
        name: os.environ[text.removeprefix(REFERENCE)] if text.startswith(REFERENCE) else text
        for name, text in texts.items()
    }


def named_texts(given: Sequence[str]) -> dict[str, str]:
    """Return values by name from texts such as `s3.region=eu-west-1`. A value `env:NAME` is returned unchanged.

    Raises:
        InputError: a text has no name or no `=`, a variable is not set, or a text contains a secret in plain text.
    """
    texts = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(f"write NAME=VALUE, not {name!r}")
        if value.startswith(REFERENCE):
            variable = value.removeprefix(REFERENCE)
            if variable not in os.environ:
                raise InputError(f"the environment variable {variable!r}, named by {name}, is not set")
        elif is_secret(name, value):
            raise InputError(
                f"{name} may be a secret, and values on the command line are visible to all users of this "
                f"machine; write {name}=env:NAME"
            )
        texts[name] = value
    return texts
