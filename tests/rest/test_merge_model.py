"""Random histories of branches beside a model: merging gives what the rules say, and loses and doubles nothing.

The model knows tables as dicts of properties and lists of rows, and namespaces as dicts of properties. It merges them
by the rules that the guide states. It keeps all states, so that it finds the common ancestor by itself, from the graph
of the commits. Branches give a few names to many tables, and create namespaces of the same names.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import polaris_spark
from polaris_spark.errors import MergeConflictError
from polaris_spark.jobs.registry import call
from tests.rest.appends import attempt, new_append, write_manifests
from tests.rest.client import Client, Json, path, set_properties, table, table_request, tables

BRANCHES = 8
TABLES = 4
STEPS = 40


class Content(NamedTuple):
    """A table or namespace in the model: its name, its properties and the ids of its snapshots, oldest first."""

    name: str
    """Such as `db.t` or, of a namespace, `db`."""
    properties: tuple[tuple[str, str], ...] = ()
    snapshots: tuple[int, ...] = ()


Id = int | str
"""Identity of a table, or name of a namespace, which identifies it."""

State = dict[Id, Content]
"""The tables and namespaces of a state."""


Tables = dict[str, tuple[tuple[tuple[str, str], ...], frozenset[int]]]
"""The properties and snapshots of each table and namespace of a branch in the catalog, by name."""

Choose = Callable[..., str]
"""Returns the strategy for an entity with these names."""

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
        self.dropped: dict[str, list[tuple[Id, Content]]] = {}
        """The tables that were dropped in the history of each branch, as they were then, the last one at the end."""

    def fork(self, branch: str, source: str) -> None:
        self.branches[branch] = self.branches[source]
        self.dropped[branch] = list(self.dropped[source])
        self.commit(branch, self.state(source))

    def commit(self, branch: str, state: State, *more: int) -> None:
        before = self.state(branch) if branch in self.branches else {}
        gone = [(id, one) for id, one in before.items() if id not in state and isinstance(id, int)]
        self.dropped.setdefault(branch, []).extend(gone)
        parents = [self.branches[branch]] if branch in self.branches else []
        above = frozenset().union(*(self.nodes[one].ancestors | {one} for one in (*parents, *more)))
        node = Node(next(self.ids), state, above)
        self.nodes[node.id] = node
        self.branches[branch] = node.id

    def state(self, branch: str) -> State:
        return self.nodes[self.branches[branch]].state

    def restorable(self, branch: str) -> dict[Id, Content]:
        """Return the tables that can be restored under their names: no other table of this name was dropped later."""
        state = self.state(branch)
        last = {one.name: (id, one) for id, one in self.dropped[branch]}
        names = {one.name for one in state.values()}
        return {
            id: one
            for id, one in last.values()
            if id not in state and one.name not in names and one.name.partition(".")[0] in state
        }

    def bases(self, one: str, other: str) -> list[Node]:
        """Return the common ancestors that are not contained in other common ancestors."""
        a, b = (self.nodes[self.branches[name]] for name in (one, other))
        common = (a.ancestors | {a.id}) & (b.ancestors | {b.id})
        return [self.nodes[id] for id in common if not any(id in self.nodes[o].ancestors for o in common)]

    def merged(self, ours: str, theirs: str, base: State, choose: Choose) -> State:
        mine, other = self.state(ours), self.state(theirs)
        result = dict(mine)
        for id in base.keys() | other.keys():
            b, m, o = base.get(id), mine.get(id), other.get(id)
            if o in (b, m):
                continue
            if m == b:
                taken = o
            elif m is not None and o is not None and (b is not None or isinstance(id, str)):
                taken = self.content(b or Content(m.name), m, o, choose)
            else:
                names = [one.name for one in (m, o, b) if one is not None]
                taken = _chosen(choose(*names), m, o)
            if taken is None:
                result.pop(id, None)
            else:
                result[id] = taken
        self.resolve_names(mine, result, choose)
        if not all(one.name.partition(".")[0] in result for one in result.values()):
            raise ConflictError  # a table has no namespace
        return result

    def resolve_names(self, mine: State, result: State, choose: Choose) -> None:
        """Change the result of a merge so that each name belongs to one table."""
        while True:
            kept = {one.name: id for id, one in result.items() if id in mine and mine[id].name == one.name}
            taken = [id for id, one in result.items() if kept.get(one.name, id) != id]
            if not taken:
                return
            id = taken[0]
            if choose(result[id].name) == "theirs":
                del result[kept[result[id].name]]
            elif choose(result[id].name) == "fail":
                raise ConflictError
            elif id in mine:
                result[id] = mine[id]
            else:
                del result[id]

    def content(self, b: Content, m: Content, o: Content, choose: Choose) -> Content:
        try:
            name = _three(b.name, m.name, o.name)
        except ConflictError:
            return _chosen(choose(m.name, o.name, b.name), m, o) or m
        assert name is not None
        if "." not in name:
            return self.namespace(b, m, o, choose)
        try:
            return self.fields(b, m, o)._replace(name=name)
        except ConflictError:
            found = _chosen(choose(name, m.name), m, o) or m
            return found._replace(name=name)

    def namespace(self, b: Content, m: Content, o: Content, choose: Choose) -> Content:
        """Return the merged properties of a namespace. A strategy resolves the conflict of each property."""
        before, mine, other = (dict(one.properties) for one in (b, m, o))
        found = {}
        for key in before | mine | other:
            try:
                found[key] = _three(before.get(key), mine.get(key), other.get(key))
            except ConflictError:
                found[key] = {"ours": mine, "theirs": other}[_tried(choose(m.name))].get(key)
        kept = tuple(sorted((key, value) for key, value in found.items() if value is not None))
        return Content(m.name, kept)

    def fields(self, b: Content, m: Content, o: Content) -> Content:
        """Return the merged properties and snapshots."""
        before, mine, other = (dict(one.properties) for one in (b, m, o))
        properties = {
            key: _three(before.get(key), mine.get(key), other.get(key)) for key in before | mine | other
        }
        kept = tuple(sorted((key, value) for key, value in properties.items() if value is not None))
        if o.snapshots in (b.snapshots, m.snapshots):
            snapshots = m.snapshots
        elif m.snapshots == b.snapshots:
            snapshots = o.snapshots
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


def _tried(strategy: str) -> str:
    if strategy == "fail":
        raise ConflictError
    return strategy


def _chosen(strategy: str, mine: Content | None, other: Content | None) -> Content | None:
    return {"ours": mine, "theirs": other}[_tried(strategy)]


def chooser(strategy: str, strategies: Mapping[str, str]) -> Choose:
    """Return a function that chooses the strategy as a merge with these options does."""
    return lambda *names: next((strategies[name] for name in names if name in strategies), strategy)


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
        """Return the properties and snapshots of each table and namespace by name."""
        client = self.open(branch)
        found = {}
        for [namespace] in client.ok("GET", "v1/namespaces")["namespaces"]:
            found[namespace] = (tuple(sorted(client.stored_properties(namespace).items())), frozenset[int]())
        for name, metadata in loaded(client).items():
            own = sorted((k, v) for k, v in metadata["properties"].items() if k.startswith("my."))
            by_id = {one["snapshot-id"]: one for one in metadata.get("snapshots", ())}
            ids, at = [], metadata.get("current-snapshot-id")
            while at in by_id:
                ids.append(int(by_id[at]["summary"].get("source-snapshot-id", at)))
                at = by_id[at].get("parent-snapshot-id")
            assert len(set(ids)) == len(ids)
            found[name] = (tuple(own), frozenset(ids))
        return found


def loaded(client: Client) -> dict[str, Json]:
    """Return the metadata of each table of a branch, by name. `location` is the location of the metadata file."""
    return {
        f"{namespace}.{name}": {**answer["metadata"], "location": answer["metadata-location"]}
        for [namespace] in client.ok("GET", "v1/namespaces")["namespaces"]
        for name in client.names(namespace)
        for answer in [client.load(name, (namespace,))]
    }


def url(name: str) -> str:
    """Return the path of a table or namespace."""
    namespace, _, last = name.partition(".")
    return table(last, (namespace,)) if last else path(namespace)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    lake = Lake(tmp_path)
    yield lake
    lake.close()


def stored_snapshots(client: Client, *, current: bool = False) -> dict[str, set[int]]:
    """Return the ids of the snapshots that each table of a branch stores, by the UUID of the table.

    Args:
        current: whether to return only the snapshots in the history of the table's current snapshot.
    """
    found = {}
    for metadata in loaded(client).values():
        parents = {one["snapshot-id"]: one.get("parent-snapshot-id") for one in metadata.get("snapshots", ())}
        ids, at = set(), metadata.get("current-snapshot-id")
        while at in parents:
            ids.add(at)
            at = parents[at]
        found[metadata["table-uuid"]] = ids if current else set(parents)
    return found


def expected(state: State) -> Tables:
    return {one.name: (one.properties, frozenset(one.snapshots)) for one in state.values()}


class Names:
    """Gives names to new tables and namespaces, and identities to tables."""

    def __init__(self, rng: random.Random, *, shared: bool = True) -> None:
        """
        Args:
            shared: whether different tables and namespaces get the same few names.
        """
        self._rng = rng
        self._count = count()
        self.shared = shared

    def table(self, state: State) -> str:
        if not self.shared:
            return f"db.t{next(self._count)}"
        namespaces = [id for id in state if isinstance(id, str)]
        return f"{self._rng.choice(['db', self._rng.choice(namespaces)])}.t{self._rng.randrange(6)}"

    def id(self) -> int:
        return next(self._count)


def change(rng: random.Random, lake: Lake, model: Model, branch: str, names: Names) -> None:
    """Make a random change of a branch, in the catalog and in the model."""
    if names.shared and rng.random() < 0.25:
        state = change_namespace(rng, lake.open(branch), dict(model.state(branch)))
    else:
        state = change_table(rng, lake.open(branch), model, branch, names)
    if state != model.state(branch):
        model.commit(branch, state)


def change_namespace(rng: random.Random, client: Client, state: State) -> State:
    name, key, value = f"n{rng.randrange(3)}", f"p{rng.randrange(3)}", str(rng.randrange(2))
    kind = rng.choice(["set", "set", "remove", "drop"])
    if name not in state:
        client.namespace(name, properties={key: value})
        state[name] = Content(name, ((key, value),))
    elif kind == "drop":
        if not any(one.name.startswith(f"{name}.") for one in state.values()):
            client.ok("DELETE", path(name))
            del state[name]
    else:
        properties = dict(state[name].properties)
        removed = [key] if kind == "remove" and key in properties else []
        updates = {} if removed else {key: value}
        client.ok("POST", f"{path(name)}/properties", {"updates": updates, "removals": removed})
        properties = {one: text for one, text in (properties | updates).items() if one not in removed}
        state[name] = Content(name, tuple(sorted(properties.items())))
    return state


def change_table(rng: random.Random, client: Client, model: Model, branch: str, names: Names) -> State:
    state = dict(model.state(branch))
    present = [id for id in state if isinstance(id, int)]
    id: Id | None = rng.choice(present) if present else None
    dropped, used = model.restorable(branch), {one.name for one in state.values()}
    kind = rng.choices(
        ["create", "set", "append", "rename", "drop", "undrop"], [2, 6, 8, 1 + names.shared, 1, 1]
    )[0]
    new = names.table(state)
    if kind == "undrop" and dropped:
        id = rng.choice(list(dropped))
        call(client.session, "undrop", table=dropped[id].name)
        state[id] = dropped[id]
    elif id is None or kind in ("create", "undrop"):
        if new not in used:
            namespace, _, last = new.partition(".")
            request = table_request(last, properties={"format-version": "2", "polaris.append-rebase": "true"})
            client.ok("POST", tables(namespace), request)
            state[names.id()] = Content(new)
    elif kind == "set":
        key, value = f"my.{rng.randrange(12)}", str(rng.randrange(2))
        if (key, value) in state[id].properties:
            return state
        client.ok(
            "POST", url(state[id].name), {"requirements": [], "updates": [set_properties(**{key: value})]}
        )
        properties = dict(state[id].properties) | {key: value}
        state[id] = state[id]._replace(properties=tuple(sorted(properties.items())))
    elif kind == "append":
        made = attempt(client.ok("GET", url(state[id].name))["metadata"], new_append(1))
        write_manifests(made)
        body = json.dumps({"requirements": made.requirements, "updates": made.updates})
        newest = client.ok("POST", url(state[id].name), body)["metadata"]["current-snapshot-id"]
        state[id] = state[id]._replace(snapshots=(*state[id].snapshots, newest))
    elif kind == "rename":
        if new not in used:
            ends = [
                dict(zip(("namespace", "name"), one, strict=True))
                for one in (_ends(state[id].name), _ends(new))
            ]
            client.ok("POST", "v1/tables/rename", {"source": ends[0], "destination": ends[1]})
            state[id] = state[id]._replace(name=new)
    else:
        client.ok("DELETE", url(state[id].name))
        del state[id]
    return state


def _ends(name: str) -> tuple[list[str], str]:
    namespace, _, last = name.partition(".")
    return [namespace], last


def run(seed: int, lake: Lake) -> dict[str, int]:
    """Run a random history, and return how often each outcome of a merge occurred."""
    rng, model = random.Random(seed), Model()
    names = Names(rng)
    outcomes = dict.fromkeys(["merged", "nothing", "conflict", "criss-cross", "ours", "theirs"], 0)
    main = lake.open("main")
    main.namespace("db")
    model.commit("main", {"db": Content("db")})
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
            strategy, mixed = random_strategy(rng, model, branch, source)
            if rng.random() < 0.6:
                outcome = merge(lake, model, branch, source)
                outcomes[outcome] += 1
                if outcome != "conflict":
                    strategy = ""
            if strategy:
                outcomes[strategy] += merge(lake, model, branch, source, strategy, mixed) != "nothing"
        else:
            change(rng, lake, model, branch, names)
        assert lake.state(branch) == expected(model.state(branch)), f"seed {seed}, step {step}, {branch}"
    assert call(main.session, "fsck") == []
    return outcomes


def random_strategy(rng: random.Random, model: Model, branch: str, source: str) -> tuple[str, dict[str, str]]:
    """Return a strategy, and strategies for single tables and namespaces."""
    known = sorted({one.name for each in (branch, source) for one in model.state(each).values()})
    some = rng.sample(known, rng.randrange(len(known) + 1) if rng.random() < 0.5 else 0)
    return rng.choice(["ours", "theirs"]), {name: rng.choice(["ours", "theirs"]) for name in some}


def merge(
    lake: Lake,
    model: Model,
    branch: str,
    source: str,
    strategy: str = "fail",
    strategies: Mapping[str, str] | None = None,
) -> str:
    """Merge a branch in the catalog and in the model, and return the outcome."""
    options = {"source": source, "strategy": strategy, "strategies": dict(strategies or {})}
    bases = model.bases(branch, source)
    node = model.branches[source]
    contained = node in model.nodes[model.branches[branch]].ancestors
    results: list[State | None] = []
    for base in bases:
        try:
            chosen = chooser(strategy, options["strategies"])
            results.append(model.merged(branch, source, base.state, chosen))
        except ConflictError:
            results.append(None)
    session, before = lake.open(branch).session, lake.state(branch)
    start, stored = session.catalog.head().head.number, stored_snapshots(lake.open(branch), current=True)
    locations = {name: metadata["location"] for name, metadata in loaded(lake.open(branch)).items()}
    check_namespaces(lake, branch, source)
    foreseen = call(session, "merge", **options, dry_run=True)
    assert lake.state(branch) == before
    try:
        rows = call(session, "merge", **options)
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
    if len(bases) == 1:
        check_unchanged(lake, model, branch, source, bases[0].state, allowed[0], locations)
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
    named, earlier = {row[1] for row in changed}, {row[3] for row in changed if row[3]}
    different = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert different <= named | earlier
    assert named <= {row[1] for row in rows}
    kept = {name for _, name, action, _ in rows if action == "kept"}  # or only renamed
    assert kept & named <= {row[1] for row in changed if row[2] == "renamed"}
    namespaces = {row[1] for row in changed if row[0] == "namespace"}
    assert namespaces == {name for name in different if "." not in name}
    if end == start:
        return
    call(client.session, "create_branch", name="reverted")
    reverted = lake.open("reverted")
    call(reverted.session, "revert", commit=str(end))
    assert lake.state("reverted") == before
    lake.clients.pop("reverted").session.close()
    call(client.session, "drop_branch", name="reverted")


def check_namespaces(lake: Lake, one: str, other: str) -> None:
    """Check that `diff` lists the namespaces that differ between two branches, and no others."""
    states = [lake.state(branch) for branch in (one, other)]
    namespaces = [{name: value for name, value in state.items() if "." not in name} for state in states]
    different = {name for name, _ in namespaces[0].items() ^ namespaces[1].items()}
    listed = call(lake.open(one).session, "diff", from_state=one, to_state=other)
    assert sorted(row[1] for row in listed if row[0] == "namespace") == sorted(different)


def check_unchanged(
    lake: Lake, model: Model, branch: str, source: str, base: State, result: State, locations: dict[str, str]
) -> None:
    """Check that a merge did not write tables to which both sides had made the same changes.

    Args:
        locations: locations of the metadata files before the merge, by the names of the tables.
    """
    mine, other, found = model.state(branch), model.state(source), loaded(lake.open(branch))
    for id, one in result.items():
        if isinstance(id, int) and mine.get(id) == one and base.get(id) not in (one, other.get(id)):
            assert found[one.name]["location"] == locations[one.name], one


@pytest.mark.parametrize("seed", range(6))
def test_random_histories_are_those_of_the_model(lake: Lake, seed: int) -> None:
    outcomes = run(seed, lake)
    assert outcomes["merged"] + outcomes["ours"] + outcomes["theirs"] > 3, outcomes


@pytest.mark.parametrize("seed", range(8))
def test_a_merge_gives_the_same_as_cherry_picks_of_all_commits(lake: Lake, seed: int) -> None:
    rng, model = random.Random(seed), Model()
    names = Names(rng, shared=False)
    main = lake.open("main")
    main.namespace("db")
    model.commit("main", {"db": Content("db")})
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
