"""Operations on whole states of a catalog: compare two states, merge a branch, revert commits, and cherry-pick a
commit."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from polaris_spark.catalog.branches.archived_log import log_from
from polaris_spark.catalog.branches.branches import branch_of, has_tag
from polaris_spark.catalog.branches.change_log import entity_name
from polaris_spark.catalog.branches.merge_base import (
    MERGES,
    Ancestry,
    ancestry_of,
    merge_base,
    own_branch,
    reader_of,
    unmerged,
)
from polaris_spark.catalog.branches.states import POINT, catalog_at
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.catalog.merges.checked_merge import (
    Evaluator,
    ReadDifference,
    WithoutSpark,
    check_outcomes,
    merge_checked,
    unevaluated,
)
from polaris_spark.catalog.merges.differences import (
    EntityChange,
    Version,
    changed_entities,
    namespaces_by_name,
)
from polaris_spark.catalog.merges.merge_steps import KINDS, Difference, Merged, Strategy, same_snapshots
from polaris_spark.catalog.merges.state_merge import MERGED, MergeStates, new_difference
from polaris_spark.catalog.rows import IDS, NAMES, TABLE, id_bytes
from polaris_spark.commits.as_of import AsOf, pinned
from polaris_spark.commits.change import Operation, PrepareAgain
from polaris_spark.commits.log import commits
from polaris_spark.commits.rows import Commit, Entries, Head, LogEntry
from polaris_spark.commits.state import CommitReader, State
from polaris_spark.errors import BadRequestError, HistoryTrimmedError, InputError, NotFoundError
from polaris_spark.index.keys import decode_key
from polaris_spark.names import AREA, MAIN
from polaris_spark.store.objects import ObjectStore

MOST_KEPT = 10_000
"""Maximum number of log entries that a merge adds to the log of a branch for changes of the merged commits."""

_MERGED_KINDS = frozenset(KINDS.values())


class Options(NamedTuple):
    """Options of a merge, revert or cherry-pick."""

    strategy: Strategy = Strategy.FAIL
    strategies: Mapping[str, Strategy] = {}
    """Strategies for single entities, by name."""
    dry_run: bool = False
    """Whether to change nothing, and return conflicts and the outcomes of checks as rows."""
    evaluator: Evaluator = WithoutSpark()
    """Evaluates the checks if the branch is protected."""
    keep_log: bool = False
    """Whether a merge adds the log entries of the merged commits to the log of the branch."""


def compare(catalog: Catalog, before: CommitReader, after: CommitReader) -> list[EntityChange]:
    """Return the entities that differ between two states, sorted by name."""
    changes = changed_entities(catalog.reader.read_shards, before.commit, after.commit)
    return list(namespaces_by_name(changes, catalog.view(after)).values())


def merge_branch(
    catalog: Catalog, source: str, operation: Operation, options: Options, *, staged: bool = False
) -> list[Merged]:
    """Merge a branch into the branch of this catalog.

    Args:
        staged: whether `source` must be a staging area of the branch. No commit is made then if the area has new
            commits, but these changed no namespace, table or view.
    Raises:
        BadRequestError: `source` is the branch of this catalog.
        CheckFailedError: the branch of this catalog is protected, and a check does not hold.
        HistoryTrimmedError: the common ancestor of the branches is no longer stored; or `options.keep_log` is true, but
            the log of the other branch is no longer complete.
        MergeConflictError: both branches changed the same thing.
        NotFoundError: the branch does not exist, or is a staging area of another branch.
    """
    if source == catalog.branch:
        raise BadRequestError(f"branch {source!r} cannot be merged into itself")

    def difference(view: State) -> Difference:
        view.scan(MERGES, b"", None)  # recorded: the base depends on it
        theirs = _branch_to_merge(catalog, source)
        _require_as_new(view.base, theirs)
        base = merge_base(theirs.store, view.base, theirs)
        changes = changed_entities(
            catalog.reader.read_shards, theirs.store.get(base.commit, Commit), theirs.commit
        )
        changes = namespaces_by_name(changes, view)
        if staged and changes:
            _require_area_of(catalog, source, view.base, theirs)
        ancestry = ancestry_of(theirs) if changes or not staged else None
        log: tuple[LogEntry, ...] = ()
        if options.keep_log and ancestry:
            try:
                log = _merged_log(catalog, source, view.base, theirs)
            except HistoryTrimmedError as error:
                raise HistoryTrimmedError(
                    f"the log of the merged commits cannot be kept: {error}; leave out 'keep_log'"
                ) from error
        return new_difference(catalog, changes, theirs)._replace(ancestry=ancestry, log=log)

    return _run(catalog, operation, options, f"merge {source}", difference)


def _branch_to_merge(catalog: Catalog, source: str) -> CommitReader:
    try:
        return branch_of(catalog, source)
    except NotFoundError as error:
        if not has_tag(catalog, source):
            raise
        raise NotFoundError(
            f"{error}; {source!r} is a tag: create a branch from it, and merge the branch"
        ) from error


def _require_area_of(catalog: Catalog, area: str, base: CommitReader, theirs: CommitReader) -> None:
    """Check that a staging area collects changes for the branch of `base`, and not for another branch that had the name
    before, or for the branch before it was moved.

    Raises:
        NotFoundError: the area is not for this branch.
    """
    if own_branch(base)[0] not in ancestry_of(theirs).newest:
        raise NotFoundError(
            f"the staging area {area.removeprefix(AREA)!r} is not for the present branch {catalog.branch!r}, but for "
            f"the one before it was dropped, renamed or moved; merge {area!r} into a branch, or drop it"
        )


def _require_as_new(base: CommitReader, theirs: CommitReader) -> None:
    """Check that `base`, the commit of the target branch that was read, is new enough. It must not be older than the
    newest commit of the target branch that `theirs` contains. Otherwise the base of the merge would be wrong.

    Raises:
        PrepareAgain: `base` is older than that commit.
    """
    contained = ancestry_of(theirs).newest.get(ancestry_of(base).own)
    if contained is not None and contained.number > base.head.number:
        raise PrepareAgain


def _merged_log(
    catalog: Catalog, source: str, base: CommitReader, theirs: CommitReader
) -> tuple[LogEntry, ...]:
    """Return the log entries of the commits that branch `source` contains, but the target branch (at the commit `base`)
    does not contain yet. They are made into entries for the log of the target branch. Only entries of namespaces,
    tables and views are returned, because nothing else is merged.

    The action of each entry is `MERGED`; its own action, branch and commit are in the summary. The entries point to no
    contents, so jobs that look for changes in the log of a branch ignore them.

    Raises:
        BadRequestError: there are too many entries for one commit.
        HistoryTrimmedError: the log of one of these commits is no longer stored.
    """
    mine = ancestry_of(base)
    runs = unmerged(theirs, mine)
    found: list[LogEntry] = []
    for commit in log_from(theirs.store, theirs.head, head_name(catalog.row, source), runs[-1].first):
        own = next(run.own for run in runs if commit.number >= run.first)
        place = {
            "branch": source,
            "commit": str(commit.id),
            "branch-id": f"{own:x}",
            "number": str(commit.number),
        }
        for entry in commit.entries:
            if entity_name(entry.key)[0] not in _MERGED_KINDS or _is_contained(entry, mine):
                continue
            summary = entry.summary
            if entry.action != MERGED:
                told = {"action": entry.action, **place}
                summary = {**told, **summary, **told}  # also if a client wrote fields of these names
            found.append(
                msgspec.structs.replace(
                    entry, operation=b"", action=MERGED, before=0, after=0, summary=summary, result=b""
                )
            )
        if len(found) > MOST_KEPT:
            raise BadRequestError(
                f"the log of branch {source!r} has more than {MOST_KEPT:,} entries to merge, the maximum for one "
                f"commit; leave out 'keep_log': the entries then stay only in the log of {source!r}"
            )
    return tuple(found)


def _is_contained(entry: LogEntry, mine: Ancestry) -> bool:
    """Whether a log entry was copied by an earlier merge from a commit that the target branch already contains."""
    if entry.action != MERGED:
        return False
    known = mine.newest.get(int(entry.summary["branch-id"], 16))
    return known is not None and int(entry.summary["number"]) <= known.number


def revert(catalog: Catalog, first: str, last: str, operation: Operation, options: Options) -> list[Merged]:
    """Undo commits of this catalog's branch, by a new commit.

    Args:
        first: the first commit to revert, by number, id or time.
        last: the last commit to revert; may be the same as `first`.
    Raises:
        BadRequestError: the first commit comes after the last one, or has no parent.
        CheckFailedError: the branch is protected, and a check does not hold.
        HistoryTrimmedError: a commit, or the parent of the first one, is no longer stored.
        MergeConflictError: later commits changed the same things, or what was removed cannot be restored.
    """

    def difference(view: State) -> Difference:
        store = view.base.store
        begin, end = (
            pinned(store, view.base.head, AsOf.parse(text, name))
            for text, name in ((first, "commit"), (last, "to"))
        )
        if begin.number > end.number:
            raise BadRequestError(
                f"commit {begin.number} comes after commit {end.number}; give the older one first"
            )
        after, before = reader_of(store, end), _parent(store, view.base.head, begin)
        view.require_kept(begin.number - 1)
        changes = changed_entities(catalog.reader.read_shards, after.commit, before.commit)
        found = new_difference(catalog, changes, before)
        gone = _unrestorable(view, store, found.changes, begin.number)
        return found._replace(gone=gone, restores=True)

    label = f"revert {first}" if first == last else f"revert {first} to {last}"
    return _run(catalog, operation, options, label, difference)


def cherry_pick(catalog: Catalog, commit: str, operation: Operation, options: Options) -> list[Merged]:
    """Apply the changes of one commit of another branch to the branch of this catalog.

    Args:
        commit: `<branch>#<commit or time>`, or a commit or time of the history of this branch. The name of a branch or
            tag alone is refused: the next call could pick another commit, and the branch of a tag's commit is unknown.
    Raises:
        CheckFailedError: the branch of this catalog is protected, and a check does not hold.
        InputError: `commit` is only the name of a branch or tag.
        NotFoundError: there is no such commit.
        HistoryTrimmedError: the commit or its parent is no longer stored.
        MergeConflictError: the branch changed the same things, or files of the commit may already have been deleted.
    """

    def difference(view: State) -> Difference:
        at = catalog_at(catalog, commit)
        if at.tagged or not at.is_fixed:
            kind = "tag" if at.tagged else "branch"
            raise InputError(
                f"commit is {commit[:80]!r}, the name of a {kind}; it must name a commit of a branch, as in "
                f"'{MAIN}{POINT}17': <branch>{POINT}<commit or time>"
            )
        picked, newest = at.head(), branch_of(catalog, at.branch)
        before = _parent(picked.store, newest.head, picked.head)
        changes = changed_entities(catalog.reader.read_shards, before.commit, picked.commit)
        gone = {
            id
            for id, change in changes.items()
            if change.after is not None and not _still_there(view, newest, id, change.after)
        }
        return new_difference(catalog, changes, picked)._replace(gone=frozenset(gone))

    return _run(catalog, operation, options, f"cherry-pick {commit}", difference)


def _run(
    catalog: Catalog,
    operation: Operation,
    options: Options,
    label: str,
    difference: ReadDifference,
) -> list[Merged]:
    def made(read: ReadDifference, *, dry_run: bool = False) -> MergeStates:
        change = MergeStates(
            catalog.context,
            operation,
            read,
            label=label,
            strategy=options.strategy,
            strategies=options.strategies,
            dry_run=dry_run,
        )
        change.onto_protected = True
        return change

    if not options.dry_run:
        return merge_checked(catalog, made, difference, label, options.evaluator)

    def tried() -> list[Merged]:
        while True:
            change = made(difference, dry_run=True)
            state = State(catalog.head(), catalog.references.ids.next_id)
            with contextlib.suppress(PrepareAgain):
                return change.apply(state, change.prepare(state))

    merged = catalog.loading(tried, operation.principal)
    if any(one.action == "conflict" for one in merged):
        return merged + unevaluated(catalog, options.evaluator, "there are conflicts")
    return merged + check_outcomes(catalog, made, difference, label, options.evaluator)


def _parent(store: ObjectStore, newest: Head, head: Head) -> CommitReader:
    """Return the state before a commit of a history.

    Raises:
        BadRequestError: the commit has no parent.
        HistoryTrimmedError: the parent is no longer stored.
    """
    if head.number == 0:
        raise BadRequestError("commit 0 is the empty beginning of the history; name a later commit")
    return reader_of(store, pinned(store, newest, AsOf(str(head.number - 1), number=head.number - 1)))


def _unrestorable(
    view: State, store: ObjectStore, changes: dict[int, EntityChange], first: int
) -> frozenset[int]:
    """Return the ids of the entities that a revert would have to restore, but that cannot be restored.

    An entity cannot be restored if it was dropped with PURGE. Nor can a table whose snapshots had changed before it was
    dropped, because the files of its earlier snapshots may be gone. Drops after the reverted commits count too, because
    an entity may have been restored and dropped again.
    """
    present = view.lookup_many(IDS, [id_bytes(id) for id in changes])
    restored = {
        id: one.after
        for (id, one), key in zip(changes.items(), present, strict=True)
        if one.after is not None and (one.before is None or key is None)
    }
    gone: set[int] = set()
    if not restored:
        return frozenset()
    view.require_unlogged(restored)
    for _, commit in commits(store, msgspec.structs.replace(view.base.head, floor_number=first)):
        listed = store.get(commit.entries, Entries).entries if commit.entries else ()
        for entry in listed:
            version = restored.get(entry.entity)
            if version is not None and entry.before and not entry.after:
                is_table = decode_key(version.key).kind == TABLE
                purged = entry.summary.get("purge") == "true"
                if purged or (is_table and not same_snapshots(view, version.content, entry.before)):
                    gone.add(entry.entity)
    return frozenset(gone)


def _still_there(view: State, newest: CommitReader, id: int, version: Version) -> bool:
    """Whether the files of a version of an entity still exist. The files of a table exist if the newest state of its
    branch still has all snapshots of the version."""
    if decode_key(version.key).kind != TABLE:
        return True
    key = newest.index(IDS).get(id_bytes(id))
    entry = None if key is None else newest.index(NAMES).get(key.value)
    return entry is not None and same_snapshots(view, version.content, entry.pointer)
