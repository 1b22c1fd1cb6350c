"""Selection of the commit of each catalog that a read uses: the newest commit, or the commit at a point in history."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from polaris_spark.access.scopes import Scope, Sight
from polaris_spark.catalog.rows import CatalogRow
from polaris_spark.commits.as_of import AsOf, find_commit, pinned, pinned_in_realm
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import BeforeHistoryError, InputError, NotFoundError
from polaris_spark.names import is_transaction
from polaris_spark.spark.realm_reader import ReadStore, RealmReader
from polaris_spark.spark.views.view import ScanRequest
from polaris_spark.store.objects import ObjectStore


class Pin(NamedTuple):
    """A catalog, and the commit of its branch that a read uses."""

    realm: str
    """Instance id of the realm that contains the catalog."""
    catalog: str
    head: Head
    catalog_id: int
    branch: str | None
    """Branch to which the commit belongs; None if the commit is the head of a tag."""
    newest: Head
    """The newest commit of the branch."""

    def reader(self, store: ObjectStore) -> CommitReader:
        """Read the commit, and return an object that reads the commit's indexes."""
        return reader_of(store, self.head)

    def sight(self, store: ReadStore) -> Sight | None:
        """Return what the reading principal may see in this commit; None if it may see everything."""
        if store.scope is None:
            return None
        found = sight_of(store, store.scope, self.realm, self.catalog_id, self.branch, self.head, self.newest)
        return None if found.sees_all else found


def sight_of(
    store: ReadStore, scope: Scope, realm: str, catalog: int, branch: str | None, head: Head, newest: Head
) -> Sight:
    """Return what the reading principal may see in one state of a catalog. The result is cached in `store`.

    Args:
        realm: instance id of the realm.
        catalog: entity id of the catalog.
        head: the head of the state; its commit id is 0 if the state is not stored.
        newest: the newest commit of the branch.
    """
    key = (catalog, branch, head.commit, newest.commit)
    found = store.sights.get(key)
    if found is None:
        if len(store.sights) >= _SIGHTS:
            store.sights.clear()
        objects = store.objects(realm)
        now = reader_of(objects, newest) if newest.commit else None
        then = reader_of(objects, head) if head.commit else None
        found = store.sights[key] = Sight(scope, catalog, branch, then, now)
    return found


_SIGHTS = 64
"""Maximum number of states that a read remembers."""


def reader_of(store: ObjectStore, head: Head) -> CommitReader:
    """Read the commit of a head, and return an object that reads the commit's indexes."""
    return CommitReader(store, b"", head, store.get(head.commit, Commit))


def pins(realm: RealmReader, request: ScanRequest) -> list[Pin]:
    """Return each requested catalog with the commit to read: the newest commit, or the commit at the option `as-of`.

    If `as-of` is a commit, it belongs to one catalog. The commits of the other catalogs are chosen by its time.

    Raises:
        NotFoundError: the requested catalog, its branch, or the branch or tag at the option `as-of` does not exist.
        HistoryTrimmedError: the point is older than the oldest commit that is still stored.
        BeforeHistoryError: the point is a time before the first commit of the requested catalog.
        InputError: the point is not a commit of a requested catalog's branch.
    """
    options, as_of = request.options, request.options.as_of
    wanted = request.condition("catalog")
    if options.catalog is not None:
        catalog = realm.catalog(options.catalog)
        return [_pin(realm, catalog, options.branch, as_of)]
    heads = _heads(realm, [c for c in realm.catalogs() if wanted.allows(c.name)], options.branch)
    if as_of is not None:
        _check_belongs(realm, [head for _, head in heads], as_of)
    found = []
    for catalog, head in heads:
        with contextlib.suppress(BeforeHistoryError):  # the branch did not exist yet
            at = pinned_in_realm(realm.store, head, as_of)
            branch = _branch_of(options.branch) if _is_branch(realm, catalog, options.branch) else None
            found.append(Pin(realm.store.realm, catalog.name, at, catalog.entity_id, branch, head))
    return found


def _pin(realm: RealmReader, catalog: CatalogRow, branch: str, as_of: AsOf | None) -> Pin:
    """Return a catalog with the head of its branch at the point `as_of`. If `as_of` is not a commit of the branch, it
    is interpreted as the name of another branch or tag, whose head is returned. Such a name can look like the id or
    number of a commit, for example `beef`."""

    def pin(name: str, at: Head, newest: Head) -> Pin:
        is_branch = _is_branch(realm, catalog, name)
        of = _branch_of(name) if is_branch else None
        return Pin(realm.store.realm, catalog.name, at, catalog.entity_id, of, newest)

    if as_of is not None and as_of.name:
        found = realm.branch_or_tag(catalog, as_of)
        return pin(as_of.name, found, found)
    head = realm.branch(catalog, branch)
    try:
        return pin(branch, pinned(realm.store, head, as_of), head)
    except InputError:
        assert as_of is not None
        with contextlib.suppress(NotFoundError):
            found = realm.branch_or_tag(catalog, as_of._replace(name=as_of.text))
            return pin(as_of.text, found, found)
        raise


def _branch_of(name: str) -> str:
    """Return the branch on which the transaction `name` of this process began. If `name` is not a transaction, return
    it unchanged."""
    if not is_transaction(name):
        return name
    from polaris_spark.catalog.merges.transactions import branch_of_transaction  # importing it takes long

    return branch_of_transaction(name) or name


def _is_branch(realm: RealmReader, catalog: CatalogRow, name: str) -> bool:
    """Whether a name belongs to a branch or transaction, and not to a tag. The result is always true for a read without
    a scope, which does not need to know this."""
    return realm.scope is None or is_transaction(name) or realm.has_branch(catalog, name)


def _heads(realm: RealmReader, catalogs: list[CatalogRow], branch: str) -> list[tuple[CatalogRow, Head]]:
    """Return the catalogs that have the branch, each with the current head of the branch.

    A catalog may lack even its main branch for a moment, while it is being created.
    """
    found = []
    for catalog in catalogs:
        with contextlib.suppress(NotFoundError):
            found.append((catalog, realm.branch(catalog, branch)))
    return found


def _check_belongs(realm: RealmReader, heads: list[Head], as_of: AsOf) -> None:
    """Raise an error if a point is a commit that is in the history of none of the heads."""
    if as_of.time is not None:
        return
    for head in heads:
        with contextlib.suppress(InputError):
            pinned(realm.store, head, as_of)
            return
    known = [id for id in as_of.commits if find_commit(realm.store, id) is not None]
    what = "is not a commit of a requested catalog's branch" if known else "is not the id of a commit"
    raise InputError(f"as-of {as_of.text!r} {what} in realm {realm.record.name!r}")
