"""The scenario of branches: its beginning, its actors, and the checks of every commit and at its end.

Every write adds a *token* to a table: a property with a new name. Tokens are never removed, and those of different
writes do not conflict. So the tokens of a branch are a set that only grows, and a merge is the union of two sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

from polaris_spark.catalog import branches
from polaris_spark.catalog.catalog import Catalog
from polaris_spark.catalog.catalogs import heads_prefix, initialize, open_catalog
from polaris_spark.catalog.merges import Options, cherry_pick, merge_branch
from polaris_spark.catalog.metadata.rows import Table
from polaris_spark.catalog.rows import NAMES, TABLE
from polaris_spark.catalog.staging import commit_staged, stage
from polaris_spark.catalog.states import catalog_at
from polaris_spark.commits.change import Operation
from polaris_spark.commits.rows import Commit, LogEntry
from polaris_spark.commits.state import CommitReader, State, reading_state
from polaris_spark.config import Properties
from polaris_spark.errors import (
    ClockError,
    CorruptionError,
    MergeConflictError,
    PolarisError,
    RequestError,
)
from polaris_spark.index.keys import decode_key
from polaris_spark.names import MAIN
from polaris_spark.rest.session import Session
from polaris_spark.store.cache import ObjectCache
from polaris_spark.store.objects import ObjectStore
from tests.rest.client import Client, path, set_properties, table
from tests.rest.materialized import SCHEMA
from tests.simulation.clients import operation_id
from tests.simulation.last import sweep_everything
from tests.simulation.observer import REALM, Content, Observer, RowHistory, Watched
from tests.simulation.plan import HOUR, draw
from tests.simulation.refreshes.requests import context_of, session_of
from tests.simulation.run import Verdict, simulate_plan
from tests.simulation.world import Process, World

TABLES = ("t0", "t1", "t2")
NAMED = ("b1", "b2")
TAGS = ("v1", "v2")
AREA = "night"
_TOKEN = "token."
_DAY = 24 * HOUR


class Unknown(Exception):  # noqa: N818  # a signal within this module
    """The outcome of a request is not known."""


class BranchObserver(Observer):
    """Checks each commit of a catalog's branches."""

    def __init__(self, tick: Callable[[], int]) -> None:
        super().__init__(tick)
        self.prefix = ""
        """Beginning of the row names of the catalog's branches."""
        self.asked: set[str] = set()
        """Tokens that any client has asked to write."""
        self.partner: dict[str, str] = {}
        """For each token of a transaction, the other token of the same transaction."""
        self.kept: dict[str, set[str]] = {}
        """Tokens in the commit of each tag, when a client was told that it was made."""
        self._tokens: dict[int, frozenset[str]] = {}
        self._contents: dict[int, frozenset[str]] = {}

    def watch(self, backend: Watched) -> None:
        super().watch(backend)
        self.store = ObjectStore(backend, REALM, ObjectCache(2**26), store_key="model of branches")

    def tokens(self, id: int) -> frozenset[str]:
        """Return the tokens in a commit."""
        if id not in self._tokens:
            commit = self.object(id, Commit)
            index = CommitReader(self.store, b"", None, commit).index(NAMES)  # type: ignore[arg-type]  # no head
            contents = [entry.pointer for key, entry in index.range() if decode_key(key).kind == TABLE]
            self._tokens[id] = frozenset().union(*map(self._in_table, contents))
        return self._tokens[id]

    def _in_table(self, content: int) -> frozenset[str]:
        if content not in self._contents:
            names = _properties(reading_state_of(self.store), content)
            self._contents[content] = frozenset(name for name in names if name.startswith(_TOKEN))
        return self._contents[content]

    def _replayed(
        self, row: RowHistory, content: Content, entries: Sequence[LogEntry], commit: int, name: str
    ) -> Content:
        done = self.done_once(content, entries, commit, name)
        if self.prefix and row.name.startswith(self.prefix):
            self._check(self.object(commit, Commit), commit, name)
        return content._replace(done=done)

    def _check(self, made: Commit, id: int, name: str) -> None:
        before = self.tokens(made.parents[0])
        merged = [self.tokens(one) for one in made.merged if (one, 0) in self._rows()]
        expected, found = before.union(*merged), self.tokens(id)
        if lost := expected - found:
            self.blame(f"{name}: lost {sorted(lost)}")
        if strange := found - expected - self.asked:
            self.blame(f"{name}: nobody asked for {sorted(strange)}")
        if alone := [one for one in found if one in self.partner and self.partner[one] not in found]:
            self.blame(f"{name}: has {sorted(alone)} without the rest of their transactions")

    def _rows(self) -> dict[tuple[int, int], bytes]:
        assert self._backend is not None
        return self._backend.rows(REALM)


class Branches:
    """Clients write to branches, merge them, and carry out transactions."""

    def __init__(self, seed: int) -> None:
        rng = Random(f"{seed} branches")
        files = rng.choice(("every-commit", "never"))
        self.properties = Properties.parse({"store": "memory:simulated", "metadata-files": files})
        self.told: dict[str, int] = {}
        self.acknowledged: set[str] = set()
        """Tokens that were acknowledged on `main`."""
        self._sessions: dict[str, Session] = {}

    def observer(self, tick: Callable[[], int]) -> BranchObserver:
        self._observer = BranchObserver(tick)
        return self._observer

    def found(self, world: World, process: Process) -> None:
        """Create the catalog, a namespace and tables."""
        first, second = (operation_id(process, process.rng) for _ in range(2))
        self._observer.operations.update({first: 0, second: -1})
        context = context_of(process, self.properties, {})
        initialize(process.references, Operation(first, "founder"))
        self._row = open_catalog(
            process.references, "polaris", context, Operation(second, "founder"), create=True
        )
        self._observer.prefix = heads_prefix(self._row)
        client = Client(self._session(process))
        client.namespace("db")
        for name in TABLES:
            client.ok("POST", f"{path('db')}/tables", {"name": name, "schema": SCHEMA})

    def actor(self, world: World, process: Process, rng: Random) -> BranchActor:
        return BranchActor(world, process, self._session(process), rng, self)

    def _session(self, process: Process) -> Session:
        found = self._sessions.get(process.name)
        if found is None:
            found = self._sessions[process.name] = session_of(process, self._row, self.properties)
        return found

    def finish(self, world: World, process: Process) -> None:
        """Check what is stored in the end, and delete everything that is not needed."""
        observer, catalog = self._observer, self._session(process).catalog
        process.clock.sleep_ms(_DAY)  # until no dead process has a lease
        Client(self._session(process)).namespace("end")  # also carries out what others published
        found = observer.tokens(catalog.head().head.commit)
        if lost := self.acknowledged - found:
            observer.blame(f"at the end, main lacks {sorted(lost)}, which was acknowledged")
        sweep_everything(world, process)
        for tag in branches.tags(catalog):
            wanted = observer.kept.get(f"{tag.registration.generation}")
            have = set(tokens_of(catalog.at(branches.tag_of(catalog, tag.name), tag.name)))
            if wanted is not None and have != wanted:
                observer.blame(f"at the end, tag {tag.name} has {sorted(have)} instead of {sorted(wanted)}")
        process.ids.release()

    def judge(self, world: World) -> None:
        self._observer.nodes.check()


class BranchActor:
    """The actions of one thread."""

    def __init__(
        self, world: World, process: Process, session: Session, rng: Random, scenario: Branches
    ) -> None:
        assert isinstance(world.observer, BranchObserver)
        self._world = world
        self._process = process
        self._session = session
        self._catalog = session.catalog
        self._rng = rng
        self._scenario = scenario
        self._observer = world.observer
        self._actions: tuple[tuple[int, Callable[[], object]], ...] = (
            (30, self._write),
            (12, self._merge),
            (10, self._transact),
            (6, self._stage),
            (5, self._commit_staged),
            (5, self._create),
            (2, self._drop),
            (2, self._undrop),
            (3, self._tag),
            (1, self._drop_tag),
            (3, self._pick),
            (6, self._read),
        )

    def act(self) -> None:
        """Do one action. An error of the product ends the action early."""
        [(_, action)] = self._rng.choices(self._actions, [weight for weight, _ in self._actions])
        began, outcome = self._world.tick(), "done"
        try:
            action()
        except CorruptionError as error:
            outcome = "corrupt"
            gone = self._observer.gone
            if not any(str(id) in str(error) for id, when in gone.items() if when > began):
                self._observer.blame(f"{self._process.name} found the store corrupt: {error}")
        except (PolarisError, Unknown) as error:
            outcome = type(error).__name__
            if isinstance(error, MergeConflictError) and action in (self._merge, self._commit_staged):
                self._observer.blame(f"{action.__name__} by {self._process.name} has conflicts: {error}")
            if isinstance(error, ClockError):
                self._process.refused(error)
            self._world.note(self._process.name, "gave up", action.__name__, outcome, str(error))
        name = f"{action.__name__.strip('_')} {outcome}"
        self._scenario.told[name] = self._scenario.told.get(name, 0) + 1

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
        """Add a token to a table."""
        token = token or self._token()
        where, body = (
            table(self._rng.choice(TABLES)),
            {"requirements": [], "updates": [set_properties(**{token: "1"})]},
        )
        answer = Client(session).send("POST", where, body)
        self._process.clock.check()
        if answer.status == 500 or answer.status == 504:
            self._may_be_corrupt(answer.error["message"])
            raise Unknown(str(answer))
        if answer.status >= 300:
            raise RequestError(str(answer))
        if branch == MAIN:
            self._scenario.acknowledged.add(token)

    def _may_be_corrupt(self, message: str) -> None:
        if "missing from the store" in message:
            raise CorruptionError(message)

    def _token(self) -> str:
        token = f"{_TOKEN}{self._rng.getrandbits(48):x}"
        self._observer.asked.add(token)
        return token

    def _transact(self) -> None:
        """Write two tokens in a transaction; sometimes roll it back."""
        branch = self._branch()
        pair = self._token(), self._token()
        self._observer.partner.update({pair[0]: pair[1], pair[1]: pair[0]})
        parent = self._session.derive(catalog=self._on(branch))
        isolation = self._rng.choice(("snapshot", "serializable"))
        with parent.transaction(isolation=isolation) as session:
            for token in pair:
                if isolation == "serializable" and self._rng.random() < 0.5:
                    tokens_of(session.catalog)
                self._put(session, "", token)
                self._process.clock.sleep_ms(self._rng.choice((0.0, 10.0, 10_000.0)) * self._rng.random())
            if self._rng.random() < 0.2:
                raise RequestError("the client rolled it back")
        if branch == MAIN:
            self._scenario.acknowledged.update(pair)

    def _read(self) -> None:
        """Read all tokens of main, and check that it has those that were acknowledged before."""
        before = set(self._scenario.acknowledged)
        found = set(tokens_of(self._catalog))
        self._process.clock.check()
        if lost := before - found:
            self._observer.blame(f"{self._process.name} does not find {sorted(lost)} in main")

    # Branches

    def _merge(self) -> None:
        source, target = self._rng.sample((MAIN, *NAMED), 2)
        catalog, brought = self._on(target), self._stored(source)
        merge_branch(catalog, source, Operation(b"", "me"), Options())
        self._require_brought(source, target, brought)

    def _pick(self) -> None:
        source, target = self._rng.sample((MAIN, *NAMED), 2)
        newest = branches.branch_of(self._catalog, source).head.number
        number = max(1, newest - self._rng.randrange(4))
        cherry_pick(self._on(target), f"{source}#{number}", Operation(b"", "me"), Options())

    def _create(self) -> None:
        source = self._rng.choice((MAIN, *NAMED, *TAGS))
        branches.create_branch(self._catalog, self._rng.choice(NAMED), self._operation(), source=source)

    def _drop(self) -> None:
        branches.drop_branch(self._catalog, self._rng.choice(NAMED), self._operation())

    def _undrop(self) -> None:
        branches.undrop_branch(self._catalog, self._rng.choice(NAMED), self._operation())

    def _tag(self) -> None:
        made = branches.create_tag(
            self._catalog, self._rng.choice(TAGS), self._operation(), source=self._rng.choice((MAIN, *NAMED))
        )
        self._process.clock.check()
        tokens = set(self._observer.tokens(made.head.commit))
        self._observer.kept[f"{made.registration.generation}"] = tokens

    def _drop_tag(self) -> None:
        branches.drop_tag(self._catalog, self._rng.choice(TAGS), self._operation())

    # Staging

    def _stage(self) -> None:
        staged = stage(self._catalog, AREA, self._operation())
        self._put(self._session.derive(catalog=staged), "")

    def _commit_staged(self) -> None:
        brought = self._stored(f"+{AREA}")
        commit_staged(self._catalog, AREA, Operation(b"", "me"), Options())
        self._require_brought(f"+{AREA}", MAIN, brought)

    def _stored(self, branch: str) -> frozenset[str]:
        """Return the tokens of a branch that are stored now; none if it was dropped and created again before."""
        prefix = f"{self._observer.prefix}{branch}@"
        [row, *others] = [one for name, one in self._observer.rows.items() if name.startswith(prefix)] or [
            None
        ]
        return frozenset() if row is None or others else self._observer.tokens(row.head.commit)

    def _require_brought(self, source: str, target: str, brought: frozenset[str]) -> None:
        """Check that a merge that was acknowledged has brought what was stored when it began."""
        self._process.clock.check()
        was_replaced = not self._stored(source)  # dropped and created again meanwhile
        if target == MAIN and not was_replaced and (lost := brought - self._stored(MAIN)):
            self._observer.blame(f"a merge by {self._process.name} has not brought {sorted(lost)}")


def reading_state_of(store: ObjectStore) -> State:
    """Return a state that reads objects of a store."""
    return reading_state(CommitReader(store, b"", None, Commit(0, 0, 0)))  # type: ignore[arg-type]  # no head


def tokens_of(catalog: Catalog) -> Iterator[str]:
    """Yield the tokens of all tables of a catalog."""
    state = catalog.view()
    for key, entry in state.scan(NAMES, b"", None):
        if decode_key(key).kind == TABLE:
            yield from (name for name in _properties(state, entry.pointer) if name.startswith(_TOKEN))


def _properties(state: State, content: int) -> dict[str, str]:
    from polaris_spark.catalog.metadata.draft import TableDraft

    return dict(TableDraft(state.get(content, Table), state, now_ms=0).properties)


def simulate_branches(seed: int, *, traced: bool = False, **changes: object) -> Verdict:
    """Run the simulation of a seed.

    Args:
        traced: whether the trace contains every operation of every process.
        changes: fields of the plan to replace.
    """
    scenario, plan = Branches(seed), draw(seed)
    plan = plan._replace(
        actions=2 * plan.actions,
        gaps=plan.gaps[:3],
        skews=plan.skews if Random(seed).random() < 0.2 else (0.0, 0.0, 5.0, -5.0),
    )
    verdict = simulate_plan(plan._replace(**changes), traced=traced, scenario=scenario)  # type: ignore[arg-type]
    return verdict._replace(requests=scenario.told)
