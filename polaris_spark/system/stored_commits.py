"""Search for commits that are no longer reachable from any reference, by reading the whole realm once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from polaris_spark.backends.base import Backend
from polaris_spark.commits.completeness import BATCH, Completeness
from polaris_spark.commits.lineage import Known, ancestors
from polaris_spark.commits.rows import Commit
from polaris_spark.errors import CorruptionError
from polaris_spark.objects import decode_header, type_name
from polaris_spark.system.registrations import REFERENCES


class _Stored(NamedTuple):
    known: Known
    ancestors: tuple[int, ...]
    near: int
    """Number of parents, which are the first of the `ancestors`."""
    registry: bool
    """Whether the commit has the index of registrations, which only commits of the registry have."""
    empty: bool


class StoredCommits:
    """Every commit that is stored in a realm, reachable or not."""

    def __init__(
        self,
        backend: Backend,
        realm: str,
        objects: Completeness,
        on_read: Callable[[int], None] = lambda _: None,
    ) -> None:
        """
        Args:
            objects: reader of the commits.
            on_read: called after each read, with the number of rows that were read.
        """
        self._stored: dict[int, _Stored] = {}
        for ids in _commit_ids(backend, realm, on_read):
            for id, commit in objects.values(ids, Commit).items():
                known = Known(commit.number, id, commit.time, commit.entries)
                named = tuple(ancestor for _, ancestor in ancestors(commit))
                self._stored[id] = _Stored(
                    known,
                    named,
                    len(commit.parents),
                    REFERENCES in commit.index_names,
                    not commit.index_names,
                )

    def after(
        self, base: Known, besides: Collection[int], forks: Collection[int] | None = None
    ) -> list[Known]:
        """Return the commits that descend from the commit `base`, newest first. `base` itself may be lost.

        A commit is found if it lists `base`, or a commit that was found before it, among its ancestors.

        Args:
            besides: ids of commits that belong to other references. They are left out. A descendant of such a commit
                is still found if it also lists `base` or a found commit.
            forks: ids of commits where references fork. If given, descendants of a fork at or after `base` are left
                out, because they may belong to any of the references that fork there. Only the 20 nearest ancestors of
                a commit count, so commits that follow 20 or more consecutive lost commits are not found. If None, forks
                do not matter, and skip pointers count, too, so that commits behind longer gaps can be found.
        """
        found = {base.id}
        later = frozenset() if forks is None else {id for id in forks if not self._is_before(id, base)}
        for id in self._oldest_first():
            stored = self._stored[id]
            named = stored.ancestors if forks is None else stored.ancestors[: stored.near]
            if id not in besides and not found.isdisjoint(named) and later.isdisjoint(named):
                found.add(id)
        found.discard(base.id)
        return _newest_first(self._stored[id].known for id in found)

    def _oldest_first(self) -> list[int]:
        """Return the ids of all commits, each after all its ancestors.

        The commits are sorted by number and not by id, because a process whose clock is far ahead makes ids that are
        higher than the ids of later commits.
        """
        return sorted(self._stored, key=lambda id: (self._stored[id].known.number, id))

    def _is_before(self, id: int, base: Known) -> bool:
        stored = self._stored.get(id)
        return id < base.id if stored is None else stored.known.number < base.number

    def of_missing(self, base: int, *, others: Collection[int], above: int) -> list[Known]:
        """Return the commits that descend from the commit `base`, newest first. The commits in `others` are left out,
        and so are their descendants.

        Args:
            others: ids of commits that were made to other references after `base`.
            above: only commits with ids higher than this id are returned.
        """
        found = {base}
        for id in self._oldest_first():
            named = self._stored[id].ancestors  # the nearest first; lost ones are skipped below
            nearest = next((one for one in named if one in found or one in others), None)
            if id > above and id not in others and nearest in found:
                found.add(id)
        found.discard(base)
        return _newest_first(self._stored[id].known for id in found)

    def of_registry(self) -> list[Known]:
        """Return the commits of the registry (the reference that lists all others), newest first.

        If the realm's oldest commit is empty, it is the last in the list, because the registry begins with an empty
        commit.
        """
        found = {id: stored.known for id, stored in self._stored.items() if stored.registry}
        first = next(iter(self._oldest_first()), 0)
        if first and self._stored[first].empty:
            found[first] = self._stored[first].known
        return _newest_first(iter(found.values()))


def _newest_first(commits: Iterator[Known]) -> list[Known]:
    return sorted(commits, key=lambda known: (-known.number, -known.id))


def _commit_ids(backend: Backend, realm: str, on_read: Callable[[int], None]) -> Iterator[list[int]]:
    wanted = type_name(Commit)
    found: list[int] = []
    for split in backend.splits("objects", [realm], 1):
        for batch in backend.scan(split):
            on_read(batch.num_rows)
            columns = (batch.column(name).to_pylist() for name in ("id", "part", "value"))
            for id, part, value in zip(*columns, strict=True):
                if part == 0 and _type(value, f"{realm}/{id}") == wanted:
                    found.append(id)
            while len(found) >= BATCH:
                yield found[:BATCH]
                del found[:BATCH]
    yield found


def _type(value: bytes, key: str) -> str:
    try:
        return decode_header(value, key).type
    except CorruptionError:
        return ""
