"""Selection of the commit of each catalog that a read uses: the newest commit, or the commit at a point in history."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from polaris_spark.catalog.rows import CatalogRow
from polaris_spark.commits.as_of import AsOf, find_commit, pinned, pinned_in_realm
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import BeforeHistoryError, InputError, NotFoundError
from polaris_spark.spark.realm_reader import RealmReader
from polaris_spark.spark.views.view import ScanRequest
from polaris_spark.store.objects import ObjectStore


class Pin(NamedTuple):
    """A catalog, and the commit of its branch that a read uses."""

    realm: str
    """Instance id of the realm that contains the catalog."""
    catalog: str
    head: Head

    def reader(self, store: ObjectStore) -> CommitReader:
        """Read the commit, and return an object that reads the commit's indexes."""
        return CommitReader(store, b"", self.head, store.get(self.head.commit, Commit))


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
        return [Pin(realm.store.realm, catalog.name, _head(realm, catalog, options.branch, as_of))]
    heads = _heads(realm, [c for c in realm.catalogs() if wanted.allows(c.name)], options.branch)
    if as_of is not None:
        _check_belongs(realm, [head for _, head in heads], as_of)
    found = []
    for catalog, head in heads:
        with contextlib.suppress(BeforeHistoryError):  # the branch did not exist yet
            at = pinned_in_realm(realm.store, head, as_of)
            found.append(Pin(realm.store.realm, catalog.name, at))
    return found


def _head(realm: RealmReader, catalog: CatalogRow, branch: str, as_of: AsOf | None) -> Head:
    """Return the head of a catalog's branch at the point `as_of`. If this is no commit of the branch, return the head
    of the branch or tag of this name, which may look like the id or number of a commit, such as `beef`."""
    if as_of is not None and as_of.name:
        return realm.branch_or_tag(catalog, as_of)
    head = realm.branch(catalog, branch)
    try:
        return pinned(realm.store, head, as_of)
    except InputError:
        assert as_of is not None
        with contextlib.suppress(NotFoundError):
            return realm.branch_or_tag(catalog, as_of._replace(name=as_of.text))
        raise


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
