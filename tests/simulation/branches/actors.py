"""Clients of the simulated catalog: they write to branches, merge them, carry out transactions and expire snapshots."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection
from random import Random

from polaris_spark.catalog.branches import branches
from polaris_spark.catalog.branches.states import catalog_at
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.drops.undrop import undrop
from polaris_spark.catalog.engine import LocalEngine, Reach
from polaris_spark.catalog.entities.entities import TableName, table_key
from polaris_spark.catalog.merges import merges, staging
from polaris_spark.catalog.merges.merges import Options
from polaris_spark.catalog.rows import NAMES
from polaris_spark.commits.change import Operation
from polaris_spark.errors import ClockError, CorruptionError, MergeConflictError, PolarisError
from polaris_spark.jobs import expire
from polaris_spark.jobs.export_metadata import select
from polaris_spark.jobs.procedure import Call
from polaris_spark.maintenance.expiry.run import ExpiryRun, Limits
from polaris_spark.names import MAIN
from polaris_spark.rest.session import Session
from tests.rest.appends import Append, attempt, write_manifests
from tests.rest.client import Answer, Client, Json, set_properties, table, tables
from tests.rest.materialized import SCHEMA
from tests.simulation.branches.lake import ALL, DROPPABLE, EXPIRING, TABLES, TOKEN, properties_of
from tests.simulation.branches.rules import BranchObserver
from tests.simulation.clients import operation_id
from tests.simulation.refreshes.requests import key_of
from tests.simulation.world import Process, World

NAMED = ("b1", "b2")
TAGS = ("v1", "v2")
AREA = "night"
PROPERTIES = {"polaris.append-rebase": "true"}

_TRIES = 3
_FAILURES = frozenset(
    {"ClockError", "OutcomeUnknownError", "TryAgainError", "UnwritableFileError", "Unknown", "corrupt"}
)
"""Refusals for which the faults of the database, the storage and the clocks are the reason."""
_GONE = frozenset({"NotFoundError", "ReferenceGoneError"})
"""Refusals because the branch or table is not there."""
_MERGE = _GONE | {"HistoryTrimmedError", "MergeConflictError"}
"""Refusals of what is merged; `BranchActor` checks that conflicts are possible."""

REFUSALS: dict[str, Collection[str]] = {
    "write": _GONE | {"CommitFailedException"},
    "append": _GONE | {"CommitFailedException"},
    "drop_table": _GONE | {"CommitFailedException"},
    "undrop_table": _MERGE | {"AlreadyExistsError"},
    "create_table": _GONE | {"CommitFailedException", "AlreadyExistsException"},
    "merge": _MERGE,
    "transact": _MERGE | {"CommitFailedException", "rolled back"},
    "stage": _GONE | {"CommitFailedException"},
    "commit_staged": _MERGE,
    "create": _GONE | {"AlreadyExistsError"},
    "drop": _GONE,
    "undrop": _GONE | {"AlreadyExistsError"},
    "tag": _GONE | {"AlreadyExistsError"},
    "drop_tag": _GONE,
    "pick": _MERGE,
    "read": (),
    "expire": _GONE,
}
"""For each action, the errors that are expected besides `_FAILURES`."""


class Unknown(Exception):  # noqa: N818  # a signal within this module
    """The outcome of a request is not known."""


class Refused(Exception):  # noqa: N818  # a signal within this module
    """A request was refused, or the client has given up."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class BranchActor:
    """The actions of one thread."""

    def __init__(
        self,
        world: World,
        process: Process,
        session: Session,
        rng: Random,
        told: Counter[str],
        acknowledged: dict[str, str],
        *,
        expires: bool,
    ) -> None:
        """
        Args:
            told: number of outcomes of each action.
            acknowledged: tokens that clients were told are written, with the name of their branch.
            expires: whether snapshots expire.
        """
        assert isinstance(world.observer, BranchObserver)
        self._world = world
        self._process = process
        self._session = session
        self._catalog = session.catalog
        self._rng = rng
        self._told = told
        self._acknowledged = acknowledged
        self._expires = expires
        self._observer = world.observer
        self._actions: tuple[tuple[int, Callable[[], object]], ...] = (
            (20, self._write),
            (20, self._append),
            (2, self._drop_table),
            (3, self._undrop_table),
            (1, self._create_table),
            (14, self._merge),
            (10, self._transact),
            (6, self._stage),
            (5, self._commit_staged),
            (7, self._create),
            (2, self._drop),
            (2, self._undrop),
            (3, self._tag),
            (1, self._drop_tag),
            (3, self._pick),
            (6, self._read),
            (3 if expires else 0, self._expire),
        )

    def act(self) -> None:
        """Do one action. An error of the product ends the action early."""
        others = dict(self._world.plan.weights)
        weights = [others.get(action.__name__.strip("_"), usual) for usual, action in self._actions]
        [(_, action)] = self._rng.choices(self._actions, weights)
        began, outcome, said = self._world.tick(), "done", ""
        try:
            action()
        except CorruptionError as error:
            outcome = "corrupt"
            gone = self._observer.gone
            if not any(str(id) in str(error) for id, when in gone.items() if when > began):
                self._observer.blame(f"{self._process.name} found the store corrupt: {error}")
        except (PolarisError, Unknown, Refused) as error:
            outcome, said = error.kind if isinstance(error, Refused) else type(error).__name__, str(error)
            is_append = action == self._append
            if "of this clock" in said or (is_append and "Invalid update timestamp" in said):
                outcome = "ClockError"  # the key of the operation, or the loaded table, is from another clock
            if isinstance(error, MergeConflictError):
                self._check_conflict(action.__name__, str(error))
            if isinstance(error, ClockError):
                self._process.refused(error)
            self._world.note(self._process.name, "gave up", action.__name__, outcome, said)
        name = action.__name__.strip("_")
        self._told[f"{name} {outcome}"] += 1
        if outcome != "done" and outcome not in _FAILURES and outcome not in REFUSALS[name]:
            self._observer.blame(f"{name} by {self._process.name} was refused by {outcome}: {said}")

    def _check_conflict(self, action: str, message: str) -> None:
        """Record a violation if a merge conflicts in a table that is never dropped and whose snapshots do not
        expire."""
        names = set(re.findall(r"table db\.(\w+):", message))
        possible = {*(DROPPABLE if self._observer.drops_asked else ()), *(EXPIRING if self._expires else ())}
        if action in ("_merge", "_commit_staged") and not (names and names <= possible):
            self._observer.blame(f"{action} by {self._process.name} has conflicts: {message}")

    def _operation(self) -> Operation:
        id = operation_id(self._process, self._rng)
        self._observer.operations[id] = len(self._observer.operations) + 1
        return Operation(id, "me")

    def _branch(self) -> str:
        return self._rng.choice((MAIN, MAIN, *NAMED))

    def _on(self, branch: str) -> Catalog:
        return catalog_at(self._catalog, branch)

    # Writes

    def _write(self) -> None:
        branch = self._branch()
        self._put(self._session.derive(catalog=self._on(branch)), branch)

    def _put(self, session: Session, branch: str, token: str = "") -> None:
        """Add a property to a table."""
        token = token or self._token()
        body = {"requirements": [], "updates": [set_properties(**{token: "1"})]}
        self._send(session, "POST", table(self._observer.asked[token]), body)
        if branch:
            self._acknowledge(token, branch)

    def _append(self) -> None:
        """Append a data file to a table, as Iceberg's clients do."""
        branch, name = self._branch(), self._rng.choice(ALL)
        self._append_to(self._session.derive(catalog=self._on(branch)), branch, name)

    def _append_to(self, session: Session, branch: str, name: str) -> None:
        append = Append(self._rng.getrandbits(62) + 1, (1,))
        files = self._observer.storage
        for attempts in range(_TRIES):
            loaded = self._send(session, "GET", table(name)).body["metadata"]
            now = max(self._process.clock.now_ms(), loaded["last-updated-ms"])
            try:
                made = attempt(loaded, append, files=files, now_ms=now)
            except PolarisError as error:  # expired since the table was loaded
                raise Refused("CommitFailedException", str(error)) from error
            write_manifests(made, files)
            token = f"{loaded['location']}/metadata/{append.snapshot_id}-m0.avro.0.parquet"
            self._observer.asked[token] = name
            body = {"requirements": made.requirements, "updates": made.updates}
            try:
                self._send(session, "POST", table(name), body)
            except Refused as refused:
                if refused.kind != "CommitFailedException" or attempts + 1 == _TRIES:
                    raise
                continue
            if branch:
                self._acknowledge(token, branch)
            return

    def _send(self, session: Session, method: str, where: str, body: Json | None = None) -> Answer:
        """Send a request. It is sometimes repeated with the same key while its outcome is unknown."""
        key = key_of(self._process, self._rng) if method == "POST" and self._rng.random() < 0.5 else None
        doubt = False
        for _ in range(_TRIES):
            answer = Client(session).send(method, where, body, key=key)
            self._process.clock.check()
            self._world.note(self._process.name, method, where, answer.status)
            if answer.status < 300:
                return answer
            message = answer.error["message"]
            if "missing from the store" in message:
                raise CorruptionError(message)
            doubt = doubt or answer.status in (500, 504)
            if answer.status < 500 or key is None:
                break
        if doubt:
            raise Unknown(str(answer))
        raise Refused(
            {503: "TryAgainError", 404: "NotFoundError"}.get(answer.status, answer.error["type"]), str(answer)
        )

    def _acknowledge(self, token: str, branch: str) -> None:
        self._acknowledged[token] = branch
        self._observer.acknowledged(token, branch, self._process.name)

    def _token(self) -> str:
        token = f"{TOKEN}{self._rng.getrandbits(48):x}"
        self._observer.asked[token] = self._rng.choice((*TABLES, *ALL))
        return token

    def _transact(self) -> None:
        """Write to two tables in a transaction; sometimes roll it back."""
        branch = self._branch()
        pair = self._token(), self._token()
        self._observer.partner.update({pair[0]: pair[1], pair[1]: pair[0]})
        parent = self._session.derive(catalog=self._on(branch))
        isolation = self._rng.choice(("snapshot", "serializable"))
        others = [one for one in (*TABLES, *EXPIRING) if one not in map(self._observer.asked.get, pair)]
        read = self._rng.choice(others)
        with parent.transaction(isolation=isolation) as session:
            if isolation == "serializable":
                self._read_in(session, read, pair)
            for token in pair:
                if isolation == "serializable" and self._rng.random() < 0.5:
                    list(properties_of(session.catalog.view()))
                self._put(session, "", token)
                if self._rng.random() < 0.3:
                    self._append_to(session, "", self._rng.choice([one for one in ALL if one != read]))
                self._process.clock.sleep_ms(self._rng.choice((0.0, 10.0, 10_000.0)) * self._rng.random())
            if self._rng.random() < 0.2:
                raise Refused("rolled back", "the client rolled it back")
        self._process.clock.check()
        for token in pair:
            self._acknowledge(token, branch)

    def _read_in(self, session: Session, name: str, tokens: Collection[str]) -> None:
        """Load a table in a serializable transaction that writes these tokens."""
        self._send(session, "GET", table(name))
        key = table_key(TableName(("db",), name))
        entry = session.catalog.view().lookup(NAMES, key)
        assert entry is not None
        self._observer.reads.update(dict.fromkeys(tokens, (key, entry.pointer)))

    def _read(self) -> None:
        """Read the properties of main, and check that it has those that were acknowledged before."""
        before = frozenset(one for one, branch in self._acknowledged.items() if branch == MAIN)
        found = set(properties_of(self._catalog.view()))
        self._process.clock.check()
        wanted = {one for one in self._observer.lasting(before) if one.startswith(TOKEN)}
        if lost := wanted - found:
            self._observer.blame(f"{self._process.name} does not find {sorted(lost)} in main")

    # Tables

    def _drop_table(self) -> None:
        self._observer.drops_asked += 1
        session = self._session.derive(catalog=self._on(self._branch()))
        self._send(session, "DELETE", table(self._rng.choice(DROPPABLE)))

    def _undrop_table(self) -> None:
        name = TableName(("db",), self._rng.choice(DROPPABLE))
        undrop(self._on(self._branch()), name, Operation(b"", "me"))

    def _create_table(self) -> None:
        session = self._session.derive(catalog=self._on(self._branch()))
        body = {"name": self._rng.choice(DROPPABLE), "schema": SCHEMA, "properties": PROPERTIES}
        self._send(session, "POST", tables("db"), body)

    def _expire(self) -> None:
        """Remove all snapshots of a table but the newest, then delete the files that no branch or tag needs."""
        observer, branch, name = self._observer, self._branch(), self._rng.choice(EXPIRING)
        catalog = self._on(branch)
        head = catalog.head()
        chosen = select(head, catalog.name, table=f"db.{name}", namespace=None)
        run = ExpiryRun(
            catalog,
            "me",
            LocalEngine(Reach(catalog.references.store, catalog.files, self._process.clock)),
            expire._asked(
                Call(self._session.derive(catalog=catalog)), {"older_than": "0 s", "retain_last": 1}
            ),
            limits=Limits(),
            grace_ms=0,
            keep_records_ms=0,
        )
        run._remove(run._decide(chosen))
        run._fence_other_branches()
        self._process.clock.check()
        before = [one.files for one in observer.tables(head.head.commit).values() if one.name == name]
        unneeded = frozenset[str]().union(*before) - observer.needed_files()
        for location in sorted(unneeded):
            self._process.clock.sleep_ms(self._rng.choice((0.0, 1.0, 100.0)) * self._rng.random())
            observer.delete_file(location)

    # Branches

    def _merge(self) -> None:
        source, target = self._rng.sample((MAIN, *NAMED), 2)
        catalog, brought = self._on(target), self._stored(source, target)
        merges.merge_branch(catalog, source, Operation(b"", "me"), Options())
        self._require_brought(brought)

    def _pick(self) -> None:
        source, target = self._rng.sample((MAIN, *NAMED), 2)
        newest = branches.branch_of(self._catalog, source).head.number
        number = max(1, newest - self._rng.randrange(4))
        merges.cherry_pick(self._on(target), f"{source}#{number}", Operation(b"", "me"), Options())

    def _create(self) -> None:
        source = self._rng.choice((MAIN, MAIN, *NAMED, *TAGS))
        branches.create(self._catalog, "branch", self._rng.choice(NAMED), self._operation(), source=source)

    def _drop(self) -> None:
        branches.drop_branch(self._catalog, self._rng.choice(NAMED), self._operation())

    def _undrop(self) -> None:
        branches.undrop(self._catalog, "branch", self._rng.choice(NAMED), self._operation())

    def _tag(self) -> None:
        made = branches.create(
            self._catalog,
            "tag",
            self._rng.choice(TAGS),
            self._operation(),
            source=self._rng.choice((MAIN, *NAMED)),
        )
        self._process.clock.check()
        tokens = self._observer.tokens(made.head.commit)
        self._observer.kept[f"{made.registration.generation}"] = tokens

    def _drop_tag(self) -> None:
        branches.drop_tag(self._catalog, self._rng.choice(TAGS), self._operation())

    # Staging

    def _stage(self) -> None:
        staged, _ = staging.stage(self._catalog, AREA, self._operation())
        session = self._session.derive(catalog=staged)
        if self._rng.random() < 0.5:
            self._put(session, f"+{AREA}")
        else:
            self._append_to(session, f"+{AREA}", self._rng.choice(ALL))

    def _commit_staged(self) -> None:
        brought = self._stored(f"+{AREA}", MAIN)
        staging.commit_staged(self._catalog, AREA, Operation(b"", "me"), Options())
        self._require_brought(brought)

    def _stored(self, source: str, target: str) -> Brought:
        """Return what a merge must bring: the tokens that are stored now, in tables that are never dropped."""
        rows = tuple(self._observer.row_of(one) for one in (source, target))
        head = None if rows[0] is None else rows[0].head.commit
        tokens = self._observer.tokens(head) if head else frozenset[str]()
        return Brought(source, target, rows, self._observer.lasting(tokens))

    def _require_brought(self, brought: Brought) -> None:
        """Check that an acknowledged merge has brought all tokens that were stored when it began, unless a branch was
        dropped meanwhile."""
        self._process.clock.check()
        now = self._stored(brought.target, brought.source)
        if None in brought.rows:  # a branch was dropped when the merge began, and perhaps restored later
            return
        if now.rows[::-1] == brought.rows and (lost := brought.tokens - now.tokens):
            self._observer.blame(f"a merge by {self._process.name} has not brought {sorted(lost)}")


class Brought:
    """The tokens that a merge of two branches must bring."""

    def __init__(self, source: str, target: str, rows: tuple[object, ...], tokens: frozenset[str]) -> None:
        self.source, self.target, self.rows, self.tokens = source, target, rows, tokens
