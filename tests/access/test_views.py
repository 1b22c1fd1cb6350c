"""What the system views and the feed show to a principal with few privileges."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo

from polaris_spark.access import securables
from polaris_spark.access.credentials import Credentials
from polaris_spark.access.needs import UNDECLARED, On
from polaris_spark.access.privileges import PRIVILEGES
from polaris_spark.access.scopes import READS_ALL
from polaris_spark.catalog.rows import TABLE, VIEW
from polaris_spark.errors import NotAuthorizedError, NotFoundError, ReferenceGoneError
from polaris_spark.jobs.registry import call
from polaris_spark.pyiceberg import PolarisCatalog
from polaris_spark.spark.views import VIEWS
from tests.access import authorizing
from tests.access.world import User, World
from tests.rest.materialized import create_materialized_view, refresh
from tests.rest.test_metrics import COMMIT, SCAN
from tests.views.catalogs import Row, rows
from tests.views.test_feed import Stream

OPTIONS = {"files": {"unreadable": "report"}}
"""Options for a view, because the files of some tables do not exist."""


class Lake(World):
    """Two namespaces, `db` and `secret`, each with tables, views, a materialized view, reports and deleted files."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "warehouse", f"sqlite://{folder}/c.db?synchronous=off")
        credential = self.administrator.text()
        with PolarisCatalog(
            "polaris", store=self.store, warehouse=self.folder, credential=credential
        ) as known:
            for namespace in ("db", "secret"):
                known.create_namespace(namespace)
                for name in ("t", "u"):
                    table = known.create_table(f"{namespace}.{name}", pa.schema([("a", pa.int64())]))
                    table.append(pa.table({"a": [1, 2]}))
                    table.delete(EqualTo("a", 1))
                    self.root.send("POST", f"v1/namespaces/{namespace}/tables/{name}/metrics", SCAN)
                self.root.send("POST", f"v1/namespaces/{namespace}/tables/t/metrics", COMMIT)
            call(known._opened, "add_schedule", name="nightly", procedure="expire", every="1 d")
            call(known._opened, "expire", older_than="0 s", retain_last=1)
        self._all: dict[tuple[str, int], list[Row]] = {}
        session = self.root.session
        session.catalog.metrics.flush()
        for namespace in ("db", "secret"):
            self.view(namespace, "v")
            create_materialized_view(session.catalog, "m", "SELECT a FROM t", namespace=(namespace,))
            uuid = self.root.send("GET", f"v1/namespaces/{namespace}/views/m")[1]["metadata"]["view-uuid"]
            source = {
                "type": "table",
                "catalog": "polaris",
                "namespace": [namespace],
                "name": "t",
                "columns": ["a"],
            }
            lineage = {"sources": [source], "edges": {"IDENTITY": [[0, 0, 0]]}}
            storage = f"v1/namespaces/{namespace}%1Fm/tables/storage"
            made = refresh(uuid, 1, 1, lineage=lineage, **{"source-states": []})
            assert self.root.status("POST", storage, made) == 200
        session.catalogs.create("other", {"warehouse": f"{self.folder}-other"})

    def read(self, view: str, **options: str) -> list[Row]:
        """The rows of a view that ann sees, in a fixed order."""
        return self._read(view, self.credentials, **options)

    def all(self, view: str) -> list[Row]:
        """All rows of a view."""
        key = view, self.root.session.catalog.head().head.commit
        if key not in self._all or view in (
            "changes",
            "commits",
            "objects",
            "references",
        ):  # grants change these
            self._all[key] = self._read(view, self.administrator)
        return self._all[key]

    def _read(self, view: str, credentials: Credentials, **options: str) -> list[Row]:
        given = {**OPTIONS.get(view, {}), **options}
        return sorted(rows(view, store=self.store, credential=credentials.text(), **given), key=repr)

    def id_of(self, *levels: str, kind: bytes = TABLE) -> int:
        """The entity id of a table or view."""
        found = securables.entity_of(self.entity(*levels, kind=kind))
        assert found is not None
        return found


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    made = Lake(tmp_path_factory.mktemp("views"))
    yield made
    made.close()


@pytest.fixture
def world(lake: Lake) -> Lake:
    lake.revoke_all()
    return lake


def of_entity(found: list[Row], *ids: int) -> list[Row]:
    return [row for row in found if row.get("entity_id") in ids]


def test_every_view_declares_what_it_shows() -> None:
    assert [name for name, view in VIEWS.items() if view.shown is UNDECLARED or not view.shown] == []


def test_the_administrator_sees_rows_in_every_view(world: Lake) -> None:
    assert [name for name in VIEWS if not world.all(name)] == []


@pytest.mark.parametrize("view", VIEWS)
def test_a_principal_without_privileges_sees_no_row(world: Lake, view: str) -> None:
    assert world.read(view) == []


TABLE_ROWS = {"tables", "snapshots", "schemas", "refs", "files", "metrics", "deletions", "changes"}
"""Views with rows of the table `db.t`, besides `index`."""


@pytest.mark.parametrize("view", VIEWS)
def test_a_grant_on_a_table_shows_only_its_rows(world: Lake, view: str) -> None:
    world.grant(["TABLE_READ_DATA"], world.entity("db", "t", kind=TABLE))
    found, all = world.read(view), world.all(view)
    if view == "index":
        assert [(row["namespace"], row["name"]) for row in found] == [("", "db"), ("db", "t")]
    else:
        assert found == (of_entity(all, world.id_of("db", "t")) if view in TABLE_ROWS else [])
        assert bool(found) is (view in TABLE_ROWS)


@pytest.fixture
def mirrored(world: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """The lake, in which an authorizer decides as its grants say."""
    authorizing.installed(tmp_path / "site", monkeypatch)
    authorizing.AUTHORIZERS["mirror"] = authorizing.Mirror(world)
    mirror = {"type": "given", "key": "mirror", "timeout": "1 min", "cache": "0 s"}
    authorizing.settings(tmp_path, monkeypatch, mirror=mirror)
    assert world.root.call("set_authorizer", name="mirror")[0] == 200
    yield world
    assert world.root.call("set_authorizer")[0] == 200


@pytest.mark.parametrize("view", VIEWS)
def test_an_authorizer_shows_the_rows_of_the_entities_that_it_allows(mirrored: Lake, view: str) -> None:
    test_a_grant_on_a_table_shows_only_its_rows(mirrored, view)


@pytest.mark.parametrize("view", ["tables", "changes", "objects", "files"])
def test_an_authorizer_that_allows_the_log_shows_all_rows(mirrored: Lake, view: str) -> None:
    assert mirrored.read(view) == []
    mirrored.grant([READS_ALL], securables.REALM)
    assert mirrored.read(view) == mirrored.all(view)


VIEW_ROWS = {"views", "materialized_views", "lineage", "schemas", "changes"}
"""Views with rows of the materialized view `db.m`."""
STORAGE_ROWS = {"refreshes", "tables", "snapshots", "refs", "schemas", "files", "index"}
"""Views with rows of the storage table of a materialized view."""


@pytest.mark.parametrize("view", VIEWS)
def test_a_grant_on_a_materialized_view_shows_it_and_its_storage_table(world: Lake, view: str) -> None:
    world.grant(["VIEW_READ_PROPERTIES"], world.entity("db", "m", kind=VIEW))
    found, all = world.read(view), world.all(view)
    if view == "changes":
        assert {(row["namespace"], row["name"]) for row in found} >= {("db", "m")}
        assert not [row for row in found if "m" not in (row["name"], *str(row["namespace"]).split("."))]
    elif view == "index":
        assert [(row["namespace"], row["name"]) for row in found] == [
            ("", "db"),
            ("db", "m"),
            ("db.m", "storage"),
        ]
    else:
        ids = [world.id_of("db", "m", kind=VIEW)] * (view in VIEW_ROWS)
        ids += [storage_id(world)] * (view in STORAGE_ROWS)
        assert found == of_entity(all, *ids)
        assert bool(found) is bool(ids)


def storage_id(world: Lake) -> int:
    [row] = [row for row in world.all("tables") if row["namespace"] == "db.m"]
    return int(row["entity_id"])


@pytest.mark.parametrize("view", VIEWS)
def test_whoever_may_read_the_log_of_the_realm_sees_every_row(world: Lake, view: str) -> None:
    world.grant([READS_ALL], securables.REALM)
    assert world.read(view) == world.all(view)


@pytest.mark.parametrize("view", VIEWS)
def test_whoever_may_read_the_log_of_a_catalog_sees_its_rows(world: Lake, view: str) -> None:
    world.grant([READS_ALL], world.catalog)
    expected = [row for row in world.all(view) if row.get("catalog") == "polaris"]
    if view == "tasks":
        expected = [row for row in world.all(view) if row["scope"].endswith(f"/{world.id:x}")]
        assert expected
    assert world.read(view) == expected


@pytest.mark.parametrize("privilege", ["TABLE_LIST", "TABLE_READ_PROPERTIES", "NAMESPACE_LIST", "VIEW_LIST"])
def test_a_privilege_shows_only_views_that_need_it_or_less(world: Lake, privilege: str) -> None:
    world.grant([privilege], world.entity("db"))
    wrong = []
    for name, view in VIEWS.items():
        kinds = {need.on for need in view.shown if need.privilege == privilege}
        found = world.read(name)
        if name == "index":
            assert found
        elif name == "changes" and privilege == "TABLE_READ_PROPERTIES":
            assert {row["kind"] for row in found} == {"table"}
        elif bool(found) is not bool(kinds & {On.TABLE, On.VIEW, On.NAMESPACE}):
            wrong.append(name)
        assert not [row for row in found if "secret" in repr(row)]
    assert set(wrong) <= {"refreshes"}  # `db.m` is seen only with a privilege on views or tables


def test_privileges_of_declarations_exist() -> None:
    unknown = {need.privilege for view in VIEWS.values() for need in view.shown} - set(PRIVILEGES)
    assert unknown == {"sees namespaces", "sees tables", "sees views"}


def test_hidden_catalogs_are_not_named(world: Lake) -> None:
    world.grant(["TABLE_READ_DATA"], world.entity("db", "t", kind=TABLE))
    assert {row["catalog"] for row in world.read("tables")} == {"polaris"}
    with pytest.raises(NotFoundError) as hidden:
        world.read("tables", catalog="other")
    with pytest.raises(NotFoundError) as missing:
        world.read("tables", catalog="none!")
    assert str(hidden.value) == str(missing.value).replace("none!", "other")


def test_a_read_without_credentials_is_refused(world: Lake) -> None:
    with pytest.raises(NotAuthorizedError, match="set the option 'credential'"):
        rows("tables", store=world.store)
    with pytest.raises(NotAuthorizedError, match="not valid"):
        rows("tables", store=world.store, credential="a:b")


def test_an_owner_sees_what_it_owns(world: Lake) -> None:
    world.grant(["NAMESPACE_LIST", "TABLE_CREATE"], world.entity("db"))
    ann = world.open(world.credentials)
    schema = {"type": "struct", "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}]}
    assert ann.status("POST", "v1/namespaces/db/tables", {"name": "mine", "schema": schema}) == 200
    world.revoke_all()
    world.grant(["CATALOG_LIST"])
    assert [row["name"] for row in world.read("tables")] == ["mine"]
    assert {row["name"] for row in world.read("changes")} == {"mine"}
    assert world.root.status("DELETE", "v1/namespaces/db/tables/mine") == 204
    assert world.read("tables") == []


def test_the_log_of_a_renamed_or_dropped_table_belongs_to_its_id(world: Lake) -> None:
    for name in ("kept", "dropped"):
        world.table("db", name)
    names = {
        "source": {"namespace": ["db"], "name": "kept"},
        "destination": {"namespace": ["db"], "name": "new"},
    }
    world.grant(["TABLE_READ_PROPERTIES"], world.entity("db", "kept", kind=TABLE))
    id = world.id_of("db", "kept")
    assert world.root.status("POST", "v1/tables/rename", names) == 204
    world.table("db", "kept")  # another table of this name
    found = world.read("changes")
    assert {row["entity_id"] for row in found} == {id}
    assert [row["name"] for row in world.read("tables")] == ["new"]
    world.revoke_all()
    world.grant(["TABLE_READ_PROPERTIES"], world.entity("db"))
    assert world.root.status("DELETE", "v1/namespaces/db/tables/dropped") == 204
    assert {row["action"] for row in world.read("changes") if row["name"] == "dropped"} == {
        "create-table",
        "drop-table",
    }
    # A table that was moved to a hidden namespace is hidden, and its log, too.
    moved = {
        "source": {"namespace": ["db"], "name": "new"},
        "destination": {"namespace": ["secret"], "name": "new"},
    }
    assert world.root.status("POST", "v1/tables/rename", moved) == 204
    assert id not in {row["entity_id"] for row in world.read("changes")}


def test_earlier_states_branches_and_tags_show_what_grants_allow_there(world: Lake) -> None:
    branch = call(world.root.session, "create_branch", name="dev")
    assert branch
    call(world.root.session, "create_tag", name="v1")
    world.grant(["TABLE_READ_DATA"], world.branch("dev"))
    assert world.read("tables") == []
    assert world.read("tables", catalog="polaris", as_of="v1") == []
    shown = world.read("tables", catalog="polaris", branch="dev")
    assert {row["namespace"] for row in shown} >= {"db", "secret"}
    assert world.read("tables", catalog="polaris", as_of="dev") == shown
    number = str(world.root.session.catalog.head().head.number)
    assert world.read("tables", catalog="polaris", as_of=number) == []
    world.revoke_all()
    world.grant(["TABLE_READ_DATA"], world.entity("db", "t", kind=TABLE))
    for options in ({"branch": "dev"}, {"as_of": "v1"}, {"as_of": number}):
        assert [row["name"] for row in world.read("tables", catalog="polaris", **options)] == ["t"], options


def planned(user: User, world: Lake, view: str, **options: str) -> list[Row]:
    """The rows of a view as a session plans it for Spark."""
    import base64
    import pickle

    given = {"store": world.store, "catalog": "polaris", **options}
    schema = user.send("POST", f"polaris-spark/v1/views/{view}/columns", {"options": given})[1]["schema"]
    columns = [field["name"] for field in schema["fields"]]
    body = {"options": given, "columns": columns, "filters": []}
    status, plan = user.send("POST", f"polaris-spark/v1/views/{view}/plan", body)
    assert status == 200, plan
    function, _ = pickle.loads(base64.b64decode(plan["function"]))
    partitions = [base64.b64decode(one) for one in plan["partitions"]]
    batch = [pa.RecordBatch.from_arrays([pa.array([one], pa.binary())], ["p"]) for one in partitions]
    return [row for found in function(iter(batch)) for row in found.to_pylist()]


def test_a_session_plans_what_its_principal_may_see(world: Lake) -> None:
    world.grant(["TABLE_READ_DATA"], world.entity("db", "t", kind=TABLE))
    ann = world.open(world.credentials)
    assert [(row["namespace"], row["name"]) for row in planned(ann, world, "tables")] == [("db", "t")]
    assert len(planned(world.root, world, "tables")) > 1
    counted: dict[str, Any] = {"options": {"store": world.store, "catalog": "polaris"}}
    assert ann.send("POST", "polaris-spark/v1/views/tables/count", counted) == (200, {"count": 1})
    counted["options"]["realm"] = "another"
    assert (
        ann.status("POST", "polaris-spark/v1/views/realms/plan", {**counted, "columns": [], "filters": []})
        == 404
    )


def test_what_is_sent_to_executors_contains_no_credentials(world: Lake) -> None:
    import pickle

    from pyspark import cloudpickle

    from tests.views.catalogs import reader

    found = reader("tables", store=world.store, credential=world.administrator.text())
    sent = cloudpickle.dumps((found.partitions(), found))
    assert world.administrator.secret.reveal().encode() not in sent
    assert pickle.loads(sent)


def test_a_revoked_grant_does_not_show_rows(world: Lake) -> None:
    world.grant(["TABLE_READ_DATA"], world.entity("db", "t", kind=TABLE))
    ann = world.open(world.credentials)
    assert planned(ann, world, "tables")
    world.revoke_all()
    body = {"options": {"store": world.store}, "columns": ["name"], "filters": []}
    assert ann.status("POST", "polaris-spark/v1/views/tables/plan", body) == 404


def test_a_stream_has_only_changes_that_its_principal_may_see(world: Lake) -> None:
    world.grant(["TABLE_READ_DATA"], world.entity("db", "t", kind=TABLE))
    stream = Stream(world.store, credential=world.credentials.text())
    first = stream.batch()
    assert {row["entity_id"] for row in first} == {world.id_of("db", "t")}
    assert first == [
        row for row in Stream(world.store, credential=world.administrator.text()).batch() if row in first
    ]
    world.revoke_all()
    world.grant(["TABLE_READ_DATA"], world.entity("db", "u", kind=TABLE))
    for name in ("t", "u"):
        update = {
            "requirements": [],
            "updates": [{"action": "set-properties", "updates": {"k": str(len(first))}}],
        }
        assert world.root.status("POST", f"v1/namespaces/db/tables/{name}", update) == 200
    assert {row["name"] for row in stream.batch()} == {"u"}
    with pytest.raises(ReferenceGoneError):
        Stream(world.store, credential=world.credentials.text(), reference="access").batch()


def test_the_route_of_changes_shows_only_what_the_caller_may_see(world: Lake) -> None:
    world.grant(["TABLE_READ_PROPERTIES"], world.entity("db", "t", kind=TABLE))
    ann = world.open(world.credentials)
    query = {"after": "oldest"}
    status, page = ann.send("GET", "polaris-spark/v1/changes", query=query)
    assert status == 200
    assert {change["name"] for change in page["changes"]} == {"db.t"}
    everything = world.root.send("GET", "polaris-spark/v1/changes", query=query)[1]
    assert page["changes"] == [change for change in everything["changes"] if change["name"] == "db.t"]
    assert page["next"] == everything["next"]
    one = ann.send("GET", "polaris-spark/v1/changes", query={**query, "limit": "1"})[1]
    assert one["changes"] == page["changes"][:1]
    world.revoke_all()
    assert ann.status("GET", "polaris-spark/v1/changes") == 404


def test_sources_that_were_not_recorded_are_not_looked_up_for_a_principal_with_few_grants(
    world: Lake,
) -> None:
    """The author of a view can name tables in its query that it may not see."""
    create_materialized_view(world.root.session.catalog, "spy", "SELECT a FROM secret.t", namespace=("db",))
    spy = world.id_of("db", "spy", kind=VIEW)
    world.grant(["VIEW_READ_PROPERTIES"], world.entity("db", "spy", kind=VIEW))
    [row] = of_entity(world.all("lineage"), spy)
    assert (row["source_namespace"], row["source_name"]) == ("secret", "t")
    assert world.read("lineage") == []
    assert len(of_entity(world.read("materialized_views"), spy)) == 1
    world.root.call("drop_materialized_view", view="db.spy")
