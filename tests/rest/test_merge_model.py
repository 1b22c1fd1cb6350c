"""Random histories of branches beside a model: merging gives what the rules say, and loses and doubles nothing.

The model knows tables as dicts of properties and lists of rows, and merges them by the rules that the guide states. It
keeps all states, so that it finds the common ancestor by itself, from the graph of the commits.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import polaris_spark
from polaris_spark.errors import MergeConflictError
from polaris_spark.jobs.registry import call
from tests.rest.appends import appendable, attempt, new_append, send, write_manifests
from tests.rest.client import Client, table

BRANCHES = 8
TABLES = 4
STEPS = 40


class Content(NamedTuple):
    """A table in the model: its identity, its name, its properties and the ids of its snapshots, oldest first."""

    name: str
    properties: tuple[tuple[str, str], ...] = ()
    snapshots: tuple[int, ...] = ()


State = dict[int, Content]
"""The tables of a state by identity."""


Tables = dict[str, tuple[tuple[tuple[str, str], ...], frozenset[int]]]
"""The properties and snapshots of each table of a branch in the catalog, by name."""

Row = tuple[Any, ...]
"""A row of the result of a procedure."""


class Node(NamedTuple):
    """A commit of the model: its state, and the commits that it contains."""

    id: int
    state: State
    ancestors: frozenset[int]


class ConflictError(Exception):
    """In the model, the two states cannot be merged."""


class Model:
    """All branches, and all commits that were made."""

    def __init__(self) -> None:
        self.ids = count()
        self.nodes: dict[int, Node] = {}
        self.branches: dict[str, int] = {}
        self.dropped: dict[str, State] = {}
        """The tables that were dropped in the history of each branch, as they were then."""

    def fork(self, branch: str, source: str) -> None:
        self.branches[branch] = self.branches[source]
        self.dropped[branch] = dict(self.dropped[source])
        self.commit(branch, self.state(source))

    def commit(self, branch: str, state: State, *more: int) -> None:
        before = self.state(branch) if branch in self.branches else {}
        gone = self.dropped.get(branch, {}) | before
        self.dropped[branch] = {id: one for id, one in gone.items() if id not in state}
        parents = [self.branches[branch]] if branch in self.branches else []
        above = frozenset().union(*(self.nodes[one].ancestors | {one} for one in (*parents, *more)))
        node = Node(next(self.ids), state, above)
        self.nodes[node.id] = node
        self.branches[branch] = node.id

    def state(self, branch: str) -> State:
        return self.nodes[self.branches[branch]].state

    def bases(self, one: str, other: str) -> list[Node]:
        """Return the common ancestors that are not contained in other common ancestors."""
        a, b = (self.nodes[self.branches[name]] for name in (one, other))
        common = (a.ancestors | {a.id}) & (b.ancestors | {b.id})
        return [self.nodes[id] for id in common if not any(id in self.nodes[o].ancestors for o in common)]

    def merged(self, ours: str, theirs: str, base: State, strategy: str = "fail") -> State:
        mine, other = self.state(ours), self.state(theirs)
        result = dict(mine)
        for id in base.keys() | other.keys():
            b, m, o = base.get(id), mine.get(id), other.get(id)
            if o in (b, m):
                continue
            if m == b:
                if o is None:
                    del result[id]
                else:
                    result[id] = o
            elif b is not None and m is not None and o is not None:
                result[id] = self.content(b, m, o, strategy)
            elif strategy == "fail":
                raise ConflictError
            elif strategy == "theirs" and o is None:
                del result[id]
            elif strategy == "theirs" and o is not None:
                result[id] = o
        names = [one.name for one in result.values()]
        if len(set(names)) < len(names):
            raise ConflictError
        return result

    def content(self, b: Content, m: Content, o: Content, strategy: str) -> Content:
        try:
            name = _three(b.name, m.name, o.name)
        except ConflictError:
            if strategy == "fail":
                raise
            return o if strategy == "theirs" else m
        assert name is not None
        try:
            return self.fields(b, m, o)._replace(name=name)
        except ConflictError:
            if strategy == "fail":
                raise
            return (o if strategy == "theirs" else m)._replace(name=name)

    def fields(self, b: Content, m: Content, o: Content) -> Content:
        """Return the merged properties and snapshots."""
        before, mine, other = (dict(one.properties) for one in (b, m, o))
        properties = {
            key: _three(before.get(key), mine.get(key), other.get(key)) for key in before | mine | other
        }
        kept = tuple(sorted((key, value) for key, value in properties.items() if value is not None))
        if o.snapshots in (b.snapshots, m.snapshots):
            snapshots = m.snapshots
        elif b.snapshots and not (b.snapshots[-1] in m.snapshots and b.snapshots[-1] in o.snapshots):
            raise ConflictError  # one side does not have the base's state any more
        else:
            snapshots = m.snapshots + tuple(
                id for id in o.snapshots if id not in m.snapshots and id not in b.snapshots
            )
        return Content(m.name, kept, snapshots)


def _three(base: str | None, mine: str | None, other: str | None) -> str | None:
    if other in (base, mine):
        return mine
    if mine == base:
        return other
    raise ConflictError


class Lake:
    """A catalog and its branches, as clients see them."""

    def __init__(self, folder: Path) -> None:
        self.store, self.warehouse = f"sqlite://{folder / 'store.db'}", str(folder / "warehouse")
        self.clients: dict[str, Client] = {}

    def open(self, branch: str) -> Client:
        if branch not in self.clients:
            session = polaris_spark.connect(store=self.store, warehouse=self.warehouse, branch=branch)
            self.clients[branch] = Client(session)
        return self.clients[branch]

    def close(self) -> None:
        for client in self.clients.values():
            client.session.close()

    def state(self, branch: str) -> Tables:
        """Return the properties and snapshots of each table by name."""
        client = self.open(branch)
        found = {}
        for name in client.names("db"):
            metadata = client.load(name)["metadata"]
            own = sorted((k, v) for k, v in metadata["properties"].items() if k.startswith("my."))
            by_id = {one["snapshot-id"]: one for one in metadata.get("snapshots", ())}
            ids, at = [], metadata.get("current-snapshot-id")
            while at in by_id:
                ids.append(int(by_id[at]["summary"].get("source-snapshot-id", at)))
                at = by_id[at].get("parent-snapshot-id")
            assert len(set(ids)) == len(ids)
            found[name] = (tuple(own), frozenset(ids))
        return found


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    lake = Lake(tmp_path)
    yield lake
    lake.close()


def stored_snapshots(client: Client) -> dict[str, set[int]]:
    """Return the ids of the snapshots that each table of a branch stores, by the UUID of the table."""
    found = [client.load(name)["metadata"] for name in client.names("db")]
    return {one["table-uuid"]: {each["snapshot-id"] for each in one.get("snapshots", ())} for one in found}


def expected(state: State) -> Tables:
    return {one.name: (one.properties, frozenset(one.snapshots)) for one in state.values()}


def change(rng: random.Random, lake: Lake, model: Model, branch: str, names: Iterator[int]) -> None:
    """Make a random change of a branch, in the catalog and in the model."""
    client, state = lake.open(branch), dict(model.state(branch))
    id = rng.choice(list(state)) if state else None
    dropped = model.dropped[branch]
    kind = rng.choices(["create", "set", "append", "rename", "drop", "undrop"], [2, 6, 8, 1, 1, 1])[0]
    if kind == "undrop" and dropped:
        id = rng.choice(list(dropped))
        call(client.session, "undrop", table=f"db.{dropped[id].name}")
        state[id] = dropped[id]
    elif id is None or kind in ("create", "undrop"):
        name = f"t{next(names)}"
        appendable(client, name)
        state[next(names) + 1_000] = Content(name)
    elif kind == "set":
        key, value = f"my.{rng.randrange(12)}", str(rng.randrange(2))
        if (key, value) in state[id].properties:
            return
        client.set(state[id].name, **{key: value})
        properties = dict(state[id].properties) | {key: value}
        state[id] = state[id]._replace(properties=tuple(sorted(properties.items())))
    elif kind == "append":
        append = new_append(1)
        made = attempt(client.load(state[id].name)["metadata"], append)
        write_manifests(made)
        answer = send(client, made, state[id].name)
        assert answer.status == 200, answer
        newest = answer.body["metadata"]["current-snapshot-id"]
        state[id] = state[id]._replace(snapshots=(*state[id].snapshots, newest))
    elif kind == "rename":
        new = f"t{next(names)}"
        ends = [{"namespace": ["db"], "name": one} for one in (state[id].name, new)]
        client.ok("POST", "v1/tables/rename", {"source": ends[0], "destination": ends[1]})
        state[id] = state[id]._replace(name=new)
    else:
        client.ok("DELETE", table(state[id].name))
        del state[id]
    model.commit(branch, state)


def run(seed: int, lake: Lake) -> dict[str, int]:
    """Run a random history, and return how often each outcome of a merge occurred."""
    rng, model, names = random.Random(seed), Model(), count()
    outcomes = dict.fromkeys(["merged", "nothing", "conflict", "criss-cross", "ours", "theirs"], 0)
    main = lake.open("main")
    main.namespace("db")
    model.commit("main", {})
    for _ in range(TABLES):
        change(rng, lake, model, "main", names)
    for step in range(STEPS):
        branch = rng.choice(list(model.branches))
        if len(model.branches) < BRANCHES and rng.random() < 0.15:
            new = f"b{step}"
            call(lake.open(branch).session, "create_branch", name=new)
            model.fork(new, branch)
        elif len(model.branches) > 1 and rng.random() < 0.4:
            source = rng.choice([one for one in model.branches if one != branch])
            outcomes[merge(lake, model, branch, source)] += 1
            if outcomes["conflict"] and rng.random() < 0.8:
                strategy = rng.choice(["ours", "theirs"])
                outcomes[f"{strategy}"] += merge(lake, model, branch, source, strategy) != "nothing"
        else:
            change(rng, lake, model, branch, names)
        assert lake.state(branch) == expected(model.state(branch)), f"seed {seed}, step {step}, {branch}"
    assert call(main.session, "fsck") == []
    return outcomes


def merge(lake: Lake, model: Model, branch: str, source: str, strategy: str = "fail") -> str:
    """Merge a branch in the catalog and in the model, and return the outcome."""
    bases = model.bases(branch, source)
    node = model.branches[source]
    contained = node in model.nodes[model.branches[branch]].ancestors
    results: list[State | None] = []
    for base in bases:
        try:
            results.append(model.merged(branch, source, base.state, strategy))
        except ConflictError:
            results.append(None)
    session, before = lake.open(branch).session, lake.state(branch)
    start, stored = session.catalog.head().head.number, stored_snapshots(lake.open(branch))
    foreseen = call(session, "merge", source=source, strategy=strategy, dry_run=True)
    assert lake.state(branch) == before
    try:
        rows = call(session, "merge", source=source, strategy=strategy)
    except MergeConflictError:
        assert None in results, results
        assert "conflict" in {action for _, _, action, _ in foreseen}
        return "conflict"
    assert rows == foreseen
    found = lake.state(branch)
    after = stored_snapshots(lake.open(branch))
    assert not any(ids - after[table] for table, ids in stored.items() if table in after)
    check_difference(lake, branch, start, before, found, rows)
    allowed = [one for one in results if one is not None and expected(one) == found]
    assert allowed, (results, found)
    assert call(lake.open(branch).session, "merge", source=source) == []  # idempotent
    if contained:
        assert rows == []
        return "nothing"
    model.commit(branch, allowed[0], node)
    return "merged" if len(bases) == 1 else "criss-cross"


def check_difference(
    lake: Lake,
    branch: str,
    start: int,
    before: Tables,
    after: Tables,
    rows: list[Row],
) -> None:
    """Check that `diff` and the merge agree about what a merge changed, and that a revert of the merge restores what
    was before it.

    Args:
        start: number of the last commit before the merge.
        before: the tables before the merge.
        after: the tables after it.
        rows: the result of the merge.
    """
    client = lake.open(branch)
    end = client.session.catalog.head().head.number
    assert call(client.session, "diff", from_state=f"{branch}#{end}", to_state=f"{branch}#{end}") == []
    changed = call(client.session, "diff", from_state=f"{branch}#{start}", to_state=f"{branch}#{end}")
    tables = [row[1:4] for row in changed if row[0] == "table"]
    named = {name.removeprefix("db.") for name, _, _ in tables}
    earlier = {old.removeprefix("db.") for _, _, old in tables if old}
    different = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert different <= named | earlier
    assert named <= {name.removeprefix("db.") for kind, name, *_ in rows if kind == "table"}
    if end == start:
        return
    call(client.session, "create_branch", name="reverted")
    reverted = lake.open("reverted")
    call(reverted.session, "revert", commit=str(end))
    assert lake.state("reverted") == before
    lake.clients.pop("reverted").session.close()
    call(client.session, "drop_branch", name="reverted")


@pytest.mark.parametrize("seed", range(6))
def test_random_histories_are_those_of_the_model(lake: Lake, seed: int) -> None:
    outcomes = run(seed, lake)
    assert outcomes["merged"] + outcomes["ours"] + outcomes["theirs"] > 3, outcomes


@pytest.mark.parametrize("seed", range(8))
def test_a_merge_gives_the_same_as_cherry_picks_of_all_commits(lake: Lake, seed: int) -> None:
    rng, model, names = random.Random(seed), Model(), count()
    main = lake.open("main")
    main.namespace("db")
    model.commit("main", {})
    for _ in range(TABLES):
        change(rng, lake, model, "main", names)
    for name in ("source", "picked"):
        call(main.session, "create_branch", name=name)
        model.fork(name, "main")
    source = lake.open("source").session.catalog
    first = source.head().head.number
    for _ in range(12):
        change(rng, lake, model, rng.choice(["main", "source", "source"]), names)
    last = source.head().head.number
    # The changes of `main` are also those of `picked`, so that both sides have changed before the merge and the picks.
    call(lake.open("picked").session, "merge", source="main")
    assert lake.state("picked") == lake.state("main")
    if merge(lake, model, "main", "source") == "conflict":
        with pytest.raises(MergeConflictError):
            pick(lake, first, last)
        return
    pick(lake, first, last)
    assert lake.state("picked") == lake.state("main")


def pick(lake: Lake, first: int, last: int) -> None:
    """Make the changes of the commits of `source` after number `first` until `last` one by one in `picked`."""
    for number in range(first + 1, last + 1):
        call(lake.open("picked").session, "cherry_pick", commit=f"source#{number}")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 130))
def test_many_random_histories_are_those_of_the_model(lake: Lake, seed: int) -> None:
    run(seed, lake)
