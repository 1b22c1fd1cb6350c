"""Rules that hold in every commit of the simulated catalog's branches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from polaris_spark.catalog.rows import NAMES, TABLE
from polaris_spark.commits.rows import Commit, Head, LogEntry
from polaris_spark.commits.state import CommitReader, State, reading_state
from polaris_spark.index.keys import decode_key
from polaris_spark.store.cache import ObjectCache
from polaris_spark.store.objects import ObjectStore
from tests.simulation.branches.lake import DROPPABLE, Contents, Storage
from tests.simulation.branches.lake import Content as Version
from tests.simulation.observer import REALM, Content, Observer, RowHistory, Watched

Tables = dict[str, Version]
"""The tables of a commit, by their UUIDs."""


class BranchObserver(Observer):
    """Checks each commit of a catalog's branches."""

    def __init__(self, tick: Callable[[], int]) -> None:
        super().__init__(tick)
        self.prefix = ""
        """Beginning of the row names of the catalog's branches."""
        self.catalog = ""
        """Beginning of the row names of the catalog's branches and tags."""
        self.asked: dict[str, str] = {}
        """Tokens that any client has asked to write, with the names of their tables."""
        self.partner: dict[str, str] = {}
        """For each token of a transaction, the other token of the same transaction."""
        self.reads: dict[str, tuple[bytes, int]] = {}
        """For each token of a serializable transaction, a table that the transaction read and does not change: its key
        in the index `names`, and the object id of its content."""
        self.kept: dict[str, frozenset[str]] = {}
        """Tokens in the commit of each tag, when a client was told that it was made."""
        self.origins: dict[str, RowHistory] = {}
        """The row of the branch to which each token was written."""
        self._dropped_at_once: set[str] = set()
        """Tokens that may have been written and dropped by the same commit."""
        self.drops_asked = 0
        """How often a client has asked to drop a table."""
        self.storage = Storage(self.files)
        self._versions = Contents(self.storage)
        self._tables: dict[int, Tables] = {}
        self._dropped: dict[int, Tables] = {}
        """The tables that each commit has dropped, as they were then. It may have changed them before."""
        self._picked_tables = frozenset[str]()
        """Tokens of tables that a cherry-pick added. It adds a restored table with all that it has."""
        self._ancestors: dict[int, frozenset[int]] = {}

    def watch(self, backend: Watched) -> None:
        super().watch(backend)
        self.store = ObjectStore(backend, REALM, ObjectCache(2**26), store_key="model of branches")

    def tables(self, id: int) -> Tables:
        """Return the tables in a commit."""
        if id not in self._tables:
            self._tables[id] = self._versions.tables(self._state(id))
        return self._tables[id]

    def _state(self, id: int) -> State:
        commit = self.object(id, Commit)
        return reading_state(CommitReader(self.store, b"", Head(id, commit.number, 0), commit))

    def tokens(self, id: int) -> frozenset[str]:
        """Return the tokens in a commit."""
        return frozenset().union(*(one.tokens for one in self.tables(id).values()))

    def lasting(self, tokens: frozenset[str]) -> frozenset[str]:
        """Return the tokens, among these, whose tables are never dropped."""
        return frozenset(one for one in tokens if self.asked.get(one) not in DROPPABLE)

    def row_of(self, branch: str) -> RowHistory | None:
        """Return the row of a branch; None if the branch is not there."""
        name = f"{self.prefix}{branch}"
        found = self.registry.names.get(name)
        return None if found is None or not found.live else self.rows.get(f"{name}@{found.generation:x}")

    def acknowledged(self, token: str, branch: str, who: str) -> None:
        """Check that a branch has a token, after a client was told that the token was written there."""
        row = self.origins.get(token)
        if token in self._dropped_at_once:
            return
        if row is None:
            self.blame(f"{who} was told that {token} was written to {branch}, and no commit has written it")
        elif row.name.partition("@")[0] != f"{self.prefix}{branch}":
            self.blame(f"{who} was told that {token} was written to {branch}; it was written to {row.name}")
        elif not row.head.given_up and self.lasting(frozenset((token,))) - self.tokens(row.head.commit):
            self.blame(f"{who} was told that {token} was written to {branch}, and it is not there")

    def needed_files(self) -> frozenset[str]:
        """Return the manifest lists and manifests that the newest commits of all branches and tags need. This includes
        dropped ones that can be restored."""
        names = (f"{one}@{found.generation:x}" for one, found in self.registry.names.items())
        heads = [self.rows[one].head for one in names if one.startswith(self.catalog) and one in self.rows]
        tables = [one for head in heads if not head.given_up for one in self.tables(head.commit).values()]
        return frozenset().union(*(one.files for one in tables))

    def delete_file(self, location: str) -> None:
        """Delete a file. Record a violation if the file is needed."""
        if location in self.needed_files():
            self.blame(f"{location} is deleted by expiry, and a branch or tag needs it")
        self.files.pop(location, None)

    def _inserted(self, name: str, head: Head, row: RowHistory | None) -> None:
        super()._inserted(name, head, row)
        if self.prefix and name.startswith(self.prefix):
            self.tables(head.commit)
            self._ancestors_of(head.commit)

    def _ancestors_of(self, id: int) -> frozenset[int]:
        """Return a commit and all commits that it contains, as far back as the observer has seen."""
        if id not in self._ancestors:
            found = frozenset((id,))
            if (id, 0) in self._rows():
                commit = self.object(id, Commit)
                found = found.union(*map(self._ancestors_of, (*commit.parents, *commit.merged)))
            self._ancestors[id] = found
        return self._ancestors[id]

    def _replayed(
        self, row: RowHistory, content: Content, entries: Sequence[LogEntry], commit: int, name: str
    ) -> Content:
        done = self.done_once(content, entries, commit, name)
        if self.prefix and row.name.startswith(self.prefix):
            self._ancestors_of(commit)  # now, because a sweep may delete commits
            self._check(row, self.object(commit, Commit), entries, commit, name)
        return content._replace(done=done)

    def _check(self, row: RowHistory, made: Commit, entries: Sequence[LogEntry], id: int, name: str) -> None:
        before, after = self.tables(made.parents[0]), self.tables(id)
        merged = [self.tables(one) for one in made.merged if (one, 0) in self._rows() or one in self._tables]
        said = {entry.summary.get("from", "").partition(" ")[0] for entry in entries}
        drops = {
            decode_key(entry.key).name: "from" in entry.summary
            for entry in entries
            if entry.before and not entry.after
        }
        self._dropped[id] = dict(
            self._versions.version(self._state(id), entry.before)
            for entry in entries
            if entry.before and not entry.after and decode_key(entry.key).kind == TABLE
        )
        undropped = {
            decode_key(entry.key).name
            for entry in entries
            if entry.summary.get("from", "").partition(" ")[0] == "undrop"
        }
        self._dropped_at_once.update(
            one for one, table in self.asked.items() if table in drops and one not in self.origins
        )
        written: set[str] = set()
        for uuid in before.keys() | after.keys() | {one for tables in merged for one in tables}:
            sides = [tables[uuid] for tables in (before, *merged) if uuid in tables]
            table = after.get(uuid)
            if table is None:
                self._check_gone(uuid, made, sides[0].name, drops, name)
                continue
            if uuid not in before and table.name in undropped:  # a merge in the same commit may have it, too
                sides = [*sides, *self._last(uuid, made.parents[0])]
            if not sides and "cherry-pick" in said:
                self._picked_tables |= table.tokens
            known = frozenset[str]().union(*(one.tokens for one in sides))
            lost = known - table.tokens
            if lost and table.name in DROPPABLE:
                lost -= self._set_back(uuid, made, lost)
            if lost:
                self.blame(f"{name}: {table.name} lost {sorted(lost)}")
            if table.doubled or table.wrong:
                self.blame(f"{name}: {table.name} has {sorted(table.doubled)} twice {table.wrong}")
            if absent := table.files - self.files.keys():
                self.blame(f"{name}: {table.name} needs files that are deleted: {sorted(absent)}")
            written |= table.tokens - known
        self._check_reads(made, entries, written, id, name)
        self._check_written(row, written, name, picks="cherry-pick" in said)
        found = self.tokens(id)
        alone = [
            one
            for one in found - self._picked_tables
            if one in self.partner and self.partner[one] not in found
        ]
        if alone := [one for one in alone if self.partner[one] in self.lasting(frozenset(self.asked))]:
            self.blame(f"{name}: has {sorted(alone)} without the rest of their transactions")

    def _check_gone(self, uuid: str, made: Commit, table: str, drops: Mapping[str, bool], name: str) -> None:
        """Check a table that a commit lacks, and that its parent or a merged commit has.

        A drop on one side may take effect only if the other side has the table as a common ancestor has it. A commit
        may contain a merge and a client's own drop, which needs no such check.

        Args:
            drops: the tables that the commit dropped, and whether a merge dropped the table.
        """
        parent = made.parents[0]
        if table not in DROPPABLE:
            self.blame(f"{name}: lost table {table}")
        for one in made.merged if drops.get(table, True) else ():
            ours, theirs = self.tables(parent).get(uuid), self._tables.get(one, {}).get(uuid)
            left = ours or theirs
            if left is None or (ours is not None and theirs is not None):
                continue
            common = self._ancestors_of(parent) & self._ancestors_of(one)
            versions = (self._tables[each].get(uuid) for each in common if each in self._tables)
            if not any(each is not None and each.tokens == left.tokens for each in versions):
                self.blame(f"{name}: a merge dropped {table}, which the other branch has changed")
        if uuid in self.tables(parent) and table not in drops:
            self.blame(f"{name}: {table} is gone, and the log has no drop of it")

    def _set_back(self, uuid: str, made: Commit, lost: frozenset[str]) -> frozenset[str]:
        """Return those tokens of a table that one side of a merge has removed since the newest common ancestors. A side
        removes tokens if it drops the table and gets an older version of it, from its own past or from another branch.
        Also return those that one side has dropped with the table, before it had an older version of it."""
        parent, found = made.parents[0], frozenset[str]()
        for one in made.merged:
            common = self._ancestors_of(parent) & self._ancestors_of(one)
            newest = common.difference(*(self._ancestors_of(each) - {each} for each in common))
            versions = [self._tables[each][uuid] for each in newest if uuid in self._tables.get(each, {})]
            for each in (parent, one):
                side = self._tables.get(each, {}).get(uuid)
                if side is None:
                    continue
                found = found.union(*(lost & version.tokens - side.tokens for version in versions))
        return found

    def _last(self, uuid: str, id: int) -> list[Version]:
        """Return the version of a dropped table that was dropped last in the history that ends with a commit."""
        while uuid not in self._tables.get(id, {}):
            if uuid in self._dropped.get(id, {}):
                return [self._dropped[id][uuid]]
            commit = self.object(id, Commit) if (id, 0) in self._rows() else None
            if commit is None or not commit.parents:
                return []
            id = commit.parents[0]
        return [self._tables[id][uuid]]

    def _check_written(self, row: RowHistory, written: set[str], name: str, *, picks: bool) -> None:
        """Check tokens that neither the parent nor a merged commit has."""
        if strange := written - self.asked.keys():
            self.blame(f"{name}: nobody asked for {sorted(strange)}")
        for token in sorted(written):
            if token not in self.origins:
                self.origins[token] = row
            elif not picks:
                self.blame(f"{name}: {token} was written a second time, first in {self.origins[token].name}")

    def _check_reads(
        self, made: Commit, entries: Sequence[LogEntry], written: set[str], id: int, name: str
    ) -> None:
        """Check that what serializable transactions read is unchanged when they take effect. Other changes of the same
        commit may come before or after a transaction, in the order of the log."""
        for token in sorted(written & self.reads.keys() - self.origins.keys()):
            key, content = self.reads[token]
            found = self._state(made.parents[0]).lookup(NAMES, key)
            now = None if found is None else found.pointer
            for entry in entries:
                is_table = bool(entry.after) and decode_key(entry.key).kind == TABLE
                if is_table and token in self._versions.version(self._state(id), entry.after)[1].tokens:
                    break
                now = entry.after if entry.key == key else now
            if now != content:
                self.blame(
                    f"{name}: {decode_key(key).name} was changed after the transaction of {token} read it"
                )

    def _rows(self) -> dict[tuple[int, int], bytes]:
        assert self._backend is not None
        return self._backend.rows(REALM)
