"""Orphan files in an object store."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import FileSelector, FileType, S3FileSystem

from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.commits.change import Operation
from polaris_spark.errors import InputError
from polaris_spark.jobs.registry import call
from polaris_spark.pyiceberg import PolarisCatalog
from polaris_spark.rest.opening import connect
from tests.maintenance.lakes import ROWS
from tests.servers.versitygw import VersityGateway

NOW = {"older_than": "0s", "force": True}
"""Times of objects cannot be set: any age will do."""

HOSTILE = ["a b", "a%20b", "a%2Fb", "a#b", "a?b=c", "ünï код", "a+b", "p=x%2Fy", "a&b;c", "_p=1"]


class Bucket:
    """A catalog whose warehouse is a folder of a bucket."""

    def __init__(self, server: VersityGateway, directory: Path, scheme: str) -> None:
        self.folder = f"catalogs/{uuid.uuid4()}"
        given = {
            "store": f"sqlite://{directory}/c.db",
            "warehouse": f"{scheme}://{self.folder}",
            "catalog": "lake",
            "s3.endpoint": server.endpoint,
            "s3.access-key-id": server.user,
            "s3.secret-access-key": server.secret,
            "s3.region": "us-east-1",
        }
        self.catalog = PolarisCatalog("lake", **given)
        self.catalog.create_namespace("db")
        self.session = connect(**given)
        self.system = S3FileSystem(
            access_key=server.user,
            secret_key=server.secret,
            endpoint_override=server.endpoint,
            region="us-east-1",
        )

    def put(self, name: str) -> str:
        """Create an orphan object, by its name below the warehouse."""
        path = f"{self.folder}/{name}"
        with self.system.open_output_stream(path) as stream:
            stream.write(b"stray")
        return path

    def objects(self) -> set[str]:
        found = self.system.get_file_info(FileSelector(self.folder, recursive=True, allow_not_found=True))
        return {info.path for info in found if info.type == FileType.File}

    def remove(self, **arguments: Any) -> dict[str, str]:
        """Run `remove_orphans`, and return the outcome of each object."""
        rows = call(self.session, "remove_orphans", **{**NOW, **arguments})
        return {row[0].partition("://")[2]: row[4] for row in rows}

    def close(self) -> None:
        self.session.close()
        self.catalog.close()


@pytest.fixture(params=["s3", "s3a"])
def bucket(request: pytest.FixtureRequest, versitygw: VersityGateway, tmp_path: Path) -> Iterator[Bucket]:
    bucket = Bucket(versitygw, tmp_path, request.param)
    yield bucket
    bucket.close()


def test_objects_of_any_name_are_found_and_deleted_alone(bucket: Bucket) -> None:
    table = bucket.catalog.create_table("db.t", ROWS.schema)
    table.append(ROWS)
    table.append(ROWS)
    before = bucket.objects()
    data = table.location().partition("://")[2].removeprefix(f"{bucket.folder}/") + "/data"
    strays = {bucket.put(f"{data}/{name}/{name}.parquet") for name in HOSTILE if name != "_p=1"}
    hidden = bucket.put(f"{data}/_p=1/f")
    strays.add(bucket.put("elsewhere/f"))
    for file in ("f.parquet", "f.parquet#1", "f.parquet?1"):
        strays.add(bucket.put(f"{data}/{file}"))
    assert bucket.remove() == dict.fromkeys(strays, "would delete")
    assert bucket.remove(dry_run=False) == dict.fromkeys(strays, "deleted")
    assert bucket.objects() == before | {hidden}
    assert table.refresh().scan().to_arrow().num_rows == 6


def test_a_fragment_in_a_name_does_not_delete_another_object(bucket: Bucket) -> None:
    table = bucket.catalog.create_table("db.t", ROWS.schema)
    table.append(ROWS)
    [data] = table.inspect.data_files()["file_path"].to_pylist()
    needed = data.partition("://")[2]
    stray = bucket.put(needed.removeprefix(f"{bucket.folder}/") + "#old")
    assert bucket.remove(dry_run=False) == {stray: "deleted"}
    assert needed in bucket.objects()


def test_late_purges_work_on_objects(bucket: Bucket) -> None:
    catalog = bucket.session.catalog
    catalog.references.create(head_name(catalog.row, "side"), Operation(b"", "me"), source=catalog.head())
    bucket.catalog.create_table("db.t", ROWS.schema).append(ROWS)
    bucket.catalog.purge_table("db.t")
    files = bucket.objects()
    assert call(bucket.session, "purge_dropped") == []
    given = {**bucket.session.properties.other, "grace": "0s"}
    with connect(
        store=str(bucket.session.properties.store), warehouse=None, catalog="lake", **given
    ) as session:
        rows = call(session, "purge_dropped")
    assert {row[0].partition("://")[2] for row in rows if row[4] == "deleted"} == files
    assert bucket.objects() == set()


def test_a_folder_that_does_not_exist_is_refused(bucket: Bucket) -> None:
    stray = bucket.put("there/stray")
    warehouse = bucket.session.catalog.context.warehouse
    assert bucket.remove(location=f"{warehouse}/there") == {stray: "would delete"}
    with pytest.raises(InputError, match="does not exist"):
        bucket.remove(location=f"{warehouse}/nowhere")
