"""Trino with its Iceberg connector, on tables that a server has in a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyarrow.fs import FileSelector, FileType, S3FileSystem

import polaris_spark
from polaris_spark.errors import StateError
from polaris_spark.pyiceberg import PolarisCatalog
from tests.programs.trino import Trino
from tests.rest.client import path
from tests.server.servers import Server, client, token_file
from tests.servers.versitygw import VersityGateway
from tests.stores import start, unavailable

pytestmark = pytest.mark.programs

TOKEN = "a" * 16
KINDS = ["every-commit", "never"]
"""Whether the server writes metadata files."""

WORK: dict[str, list[list[Any]]] = {
    # The schema has no location of its own.
    "CREATE SCHEMA {0}.cafe": [],
    """CREATE TABLE {0}.cafe.orders (id BIGINT, item VARCHAR, price DECIMAL(6, 2))
    WITH (partitioning = ARRAY['bucket(id, 2)'])""": [],
    "INSERT INTO {0}.cafe.orders VALUES (1, 'tea', 2), (2, 'coffee', 3.5), (3, 'milk', 1)": [[3]],
    "UPDATE {0}.cafe.orders SET item = 'cocoa' WHERE id = 2": [[1]],
    "DELETE FROM {0}.cafe.orders WHERE id = 1": [[1]],
    """MERGE INTO {0}.cafe.orders t USING (VALUES (3, 'water'), (4, 'juice')) s (id, item) ON t.id = s.id
    WHEN MATCHED THEN UPDATE SET item = s.item
    WHEN NOT MATCHED THEN INSERT (id, item, price) VALUES (s.id, s.item, 4)""": [[2]],
    "SELECT * FROM {0}.cafe.orders ORDER BY id":
        [[2, "cocoa", "3.50"], [3, "water", "1.00"], [4, "juice", "4.00"]],
    "ANALYZE {0}.cafe.orders": [[None]],  # writes a file of statistics, which the server drops with the table
    'SELECT count(*) > 3 FROM {0}.cafe."orders$history"': [[True]],
    "CREATE TABLE {0}.cafe.copy AS SELECT id, item FROM {0}.cafe.orders": [[3]],
    "CREATE OR REPLACE TABLE {0}.cafe.copy AS SELECT id, item FROM {0}.cafe.orders WHERE id > 2": [[2]],
    "CREATE TABLE IF NOT EXISTS {0}.cafe.copy AS SELECT 1 AS x": [[0]],
    "ALTER TABLE {0}.cafe.copy ADD COLUMN note VARCHAR": [],
    "ALTER TABLE {0}.cafe.copy RENAME COLUMN item TO drink": [],
    "ALTER TABLE {0}.cafe.copy RENAME TO {0}.cafe.drinks": [],
    "COMMENT ON TABLE {0}.cafe.drinks IS 'what we sell'": [],
    "ALTER TABLE {0}.cafe.orders EXECUTE optimize": [],
    "CREATE VIEW {0}.cafe.names AS SELECT drink FROM {0}.cafe.drinks": [],
    "CREATE OR REPLACE VIEW {0}.cafe.names AS SELECT upper(drink) AS name FROM {0}.cafe.drinks": [],
    "SELECT * FROM {0}.cafe.names ORDER BY 1": [["JUICE"], ["WATER"]],
    "SHOW TABLES FROM {0}.cafe": [["drinks"], ["names"], ["orders"]],
    "SELECT table_name, table_type FROM {0}.information_schema.tables WHERE table_schema = 'cafe' ORDER BY 1":
        [["drinks", "BASE TABLE"], ["names", "VIEW"], ["orders", "BASE TABLE"]],
    'CREATE SCHEMA {0}."north.east"': [],  # the server makes `north` as well
    'CREATE TABLE {0}."north.east".t (i INTEGER)': [],
    "SHOW SCHEMAS FROM {0}": [["cafe"], ["information_schema"], ["north"], ["north.east"], ["system"]],
}  # fmt: skip  # a statement and its rows

REMOVAL = [
    "DROP VIEW {0}.cafe.names",
    "DROP TABLE {0}.cafe.drinks",
    "DROP TABLE {0}.cafe.orders",
    "DROP SCHEMA {0}.cafe",
    'DROP SCHEMA {0}."north.east" CASCADE',
    "DROP SCHEMA {0}.north",
]


class Place(NamedTuple):
    """A server with a warehouse of its own, and Trino with a catalog on it."""

    server: Server
    trino: Trino
    name: str
    """The catalog's name in Trino."""
    folder: str
    """The warehouse, as bucket and prefix."""
    bucket: VersityGateway
    store: str

    def run(self, statement: str) -> list[list[Any]]:
        """Return the rows of a statement."""
        return self.trino.execute(statement.format(self.name))

    def objects(self) -> set[str]:
        """The files of the warehouse."""
        system = S3FileSystem(
            access_key=self.bucket.user,
            secret_key=self.bucket.secret,
            endpoint_override=self.bucket.endpoint,
            region="us-east-1",
        )
        found = system.get_file_info(FileSelector(self.folder, recursive=True, allow_not_found=True))
        return {info.path for info in found if info.type == FileType.File}

    def properties(self) -> dict[str, str]:
        """Return the properties with which a program reaches the warehouse."""
        return {
            "s3.endpoint": self.bucket.endpoint,
            "s3.access-key-id": self.bucket.user,
            "s3.secret-access-key": self.bucket.secret,
            "s3.region": "us-east-1",
        }


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Place]]:
    """A server of each kind, and Trino with a catalog on each."""
    directory = tmp_path_factory.mktemp("trino")
    with ExitStack() as ends:
        bucket = ends.enter_context(start(VersityGateway))
        servers, catalogs = {}, {}
        for kind in KINDS:
            name = kind.replace("-", "_")
            servers[kind] = ends.enter_context(_served(bucket, directory, kind))
            catalogs[name] = {
                "iceberg.catalog.type": "rest",
                "iceberg.rest-catalog.uri": servers[kind].uri,
                "iceberg.rest-catalog.security": "OAUTH2",
                "iceberg.rest-catalog.oauth2.token": TOKEN,
                "iceberg.rest-catalog.nested-namespace-enabled": "true",
                "fs.native-s3.enabled": "true",
                "s3.endpoint": bucket.endpoint,
                "s3.region": "us-east-1",
                "s3.path-style-access": "true",
                "s3.aws-access-key": bucket.user,
                "s3.aws-secret-key": bucket.secret,
            }
        catalogs["on_branch"] = {**catalogs["never"], "iceberg.rest-catalog.warehouse": "polaris@dev"}
        try:
            trino = ends.enter_context(Trino(catalogs))
        except StateError as error:
            unavailable(f"this test needs Trino: {error}")
            raise
        yield {
            kind: Place(
                servers[kind],
                trino,
                kind.replace("-", "_"),
                f"catalogs/{kind}",
                bucket,
                f"sqlite://{directory}/{kind}.db",
            )
            for kind in KINDS
        }


def _served(bucket: VersityGateway, directory: Path, kind: str) -> Server:
    given = {"s3.endpoint": bucket.endpoint, "s3.region": "us-east-1"}
    given |= {"s3.access-key-id": "env:USER_ID", "s3.secret-access-key": "env:SECRET"}
    options = [word for name, text in given.items() for word in ("--property", f"{name}={text}")]
    tokens = str(token_file(directory, {"trino": TOKEN}))
    return Server(
        f"sqlite://{directory}/{kind}.db",
        *("--warehouse", f"s3://catalogs/{kind}", "--token-file", tokens, "--metadata-files", kind),
        *options,
        env={"USER_ID": bucket.user, "SECRET": bucket.secret},
    )


@pytest.mark.parametrize("kind", KINDS)
def test_trino_creates_writes_reads_and_drops_tables_and_views(places: dict[str, Place], kind: str) -> None:
    place = places[kind]
    found = {statement: place.run(statement) for statement in WORK}
    assert found == WORK
    [[created]] = place.run("SHOW CREATE SCHEMA {0}.cafe")
    assert f"location = 's3://{place.folder}/cafe'" in created
    [[first]] = place.run('SELECT min_by(snapshot_id, made_current_at) FROM {0}.cafe."orders$history"')
    assert place.run(f"SELECT count(*) FROM {{0}}.cafe.orders FOR VERSION AS OF {first}") == [[0]]
    catalog = PolarisCatalog("polaris", store=place.store, **place.properties())
    orders = catalog.load_table("cafe.orders").scan().to_arrow().sort_by("id").to_pylist()
    assert [(row["id"], row["item"], str(row["price"])) for row in orders] == [
        (2, "cocoa", "3.50"),
        (3, "water", "1.00"),
        (4, "juice", "4.00"),
    ]
    assert catalog.load_table("cafe.drinks").properties["comment"] == "what we sell"
    catalog.close()
    rest = client(place.server, TOKEN)
    assert rest.names("cafe") == ["drinks", "orders"]
    assert rest.names("cafe", kind="views") == ["names"]
    assert rest.stored_properties("cafe") == {}
    [version] = rest.ok("GET", f"{path('cafe')}/views/names")["metadata"]["versions"][-1:]
    assert [text["dialect"] for text in version["representations"]] == ["trino"]
    for statement in REMOVAL:
        assert place.run(statement) == []
    assert rest.ok("GET", "v1/namespaces")["namespaces"] == []
    assert {one for one in place.objects() if "/cafe/names-" not in one} == set()


def test_trino_works_on_a_branch_by_configuration_alone(places: dict[str, Place]) -> None:
    main = places["never"]
    branch = main._replace(name="on_branch")
    with polaris_spark.connect(store=main.store, **main.properties()) as session:
        polaris_spark.call(session, "create_branch", name="dev")
    branch.run("CREATE SCHEMA {0}.tried")
    branch.run("CREATE TABLE {0}.tried.t AS SELECT 1 AS i")
    branch.run("INSERT INTO {0}.tried.t VALUES 2")
    assert branch.run("SELECT i FROM {0}.tried.t ORDER BY i") == [[1], [2]]
    assert ["tried"] not in main.run("SHOW SCHEMAS FROM {0}")
    with polaris_spark.connect(store=main.store, **main.properties()) as session:
        assert polaris_spark.call(session, "merge", source="dev")
    assert main.run("SELECT i FROM {0}.tried.t ORDER BY i") == [[1], [2]]
    main.run("DROP SCHEMA {0}.tried CASCADE")


@pytest.mark.parametrize("name", ["metadata_log_entries", "refs", "snapshots"])
def test_three_metadata_tables_of_trino_need_metadata_files(places: dict[str, Place], name: str) -> None:
    for place in places.values():
        place.run(f"CREATE SCHEMA {{0}}.of_{name}")
        place.run(f"CREATE TABLE {{0}}.of_{name}.t AS SELECT 1 AS i")
    query = f'SELECT count(*) > 0 FROM {{0}}.of_{name}."t${name}"'
    assert places["every-commit"].run(query) == [[True]]
    with pytest.raises(AssertionError, match="Failed to get status for file"):
        places["never"].run(query)
