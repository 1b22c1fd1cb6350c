"""Jobs and symbolic links: no job deletes files outside, or files of another table, through a link."""

from __future__ import annotations

import pickle
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from polaris_spark.catalog.files.files import Files
from polaris_spark.catalog.files.folders import Folders
from polaris_spark.catalog.files.permits import Permit
from polaris_spark.errors import ForbiddenError
from polaris_spark.jobs.registry import call
from tests.maintenance.hostile import JOBS, name_data_files, prepare, run, tree
from tests.maintenance.lakes import ROWS, Lake, age, folder, name_statistics

JOB = pytest.mark.parametrize("job", JOBS)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A catalog with a grace period of 0 s."""
    lake = Lake(f"memory:{uuid.uuid4()}", tmp_path / "warehouse", grace="0s")
    lake.warehouse.mkdir(exist_ok=True)
    yield lake
    lake.close()


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder outside the warehouse, with a file."""
    (tmp_path / "outside" / "deep").mkdir(parents=True)
    (tmp_path / "outside" / "precious").write_text("mine")
    return tmp_path / "outside"


@JOB
def test_nothing_outside_is_deleted_through_a_link(lake: Lake, outside: Path, job: str) -> None:
    prepare(job, lake)
    (lake.warehouse / "out").symlink_to(outside)
    (lake.warehouse / "chain").symlink_to(lake.warehouse / "out")
    (lake.warehouse / "last").symlink_to(outside / "precious")
    table = lake.table("hostile", appends=1)
    (folder(table) / "own").symlink_to("../../../outside")
    names = ["out/precious", "chain/precious", "last", "db/hostile/own/precious", "out/deep/../precious"]
    locations = [f"file://{lake.warehouse}/{name}" for name in names]
    name_data_files(table, locations)
    name_statistics(table.refresh(), locations[0])
    age(outside / "precious", 10)
    run(job, lake, "db.hostile")
    assert (outside / "precious").read_text() == "mine"
    assert (lake.warehouse / "last").is_symlink()


@JOB
def test_nothing_of_another_table_is_deleted_through_a_link(lake: Lake, tmp_path: Path, job: str) -> None:
    prepare(job, lake)
    live = lake.table("live")
    far = lake.catalog.create_table("db.far", ROWS.schema, location=f"file://{tmp_path}/far")
    far.append(ROWS)
    files = tree(folder(live), folder(far))
    table = lake.table("hostile", appends=1)
    (lake.warehouse / "up").symlink_to(folder(live))
    (folder(table) / "own").symlink_to(folder(live) / "data")
    (lake.warehouse / "far").symlink_to(folder(far))
    names = [f"{lake.warehouse}/up/{file.relative_to(folder(live))}" for file in tree(folder(live))]
    names += [f"{folder(table)}/own/{file.name}" for file in (folder(live) / "data").iterdir()]
    names += [f"file:{lake.warehouse}/far/{file.relative_to(folder(far))}" for file in tree(folder(far))]
    name_data_files(table, names)
    run(job, lake, "db.hostile")
    assert files <= tree(folder(live), folder(far))


@JOB
def test_a_table_whose_location_is_a_link_to_another_table_deletes_none_of_its_files(
    lake: Lake, job: str
) -> None:
    prepare(job, lake)
    live = lake.table("live")
    files = tree(folder(live))
    (lake.warehouse / "alias").symlink_to(folder(live))
    table = lake.catalog.create_table("db.hostile", ROWS.schema, location=f"file://{lake.warehouse}/alias")
    table.append(ROWS)
    name_data_files(
        table, [f"file://{lake.warehouse}/alias/{file.relative_to(folder(live))}" for file in files]
    )
    run(job, lake, "db.hostile")
    assert files <= tree(folder(live))
    assert live.refresh().scan().to_arrow().num_rows == 6


@JOB
def test_a_table_located_through_a_link_keeps_its_files_from_tables_that_name_its_real_path(
    lake: Lake, job: str
) -> None:
    prepare(job, lake)
    (lake.warehouse / "disk").mkdir()
    (lake.warehouse / "link").symlink_to(lake.warehouse / "disk")
    live = lake.catalog.create_table("db.live", ROWS.schema, location=f"file://{lake.warehouse}/link/live")
    live.append(ROWS)
    real = lake.warehouse / "disk" / "live"
    files = tree(real)
    table = lake.table("hostile", appends=1)
    name_data_files(table, [f"file://{file}" for file in files])
    inside = lake.catalog.create_table("db.inside", ROWS.schema, location=f"file://{real}/inside")
    inside.append(ROWS)
    name_data_files(inside, [f"file://{file}" for file in files])
    run(job, lake, "db.hostile")
    run(job, lake, "db.inside")
    assert files <= tree(real)
    assert live.refresh().scan().to_arrow().num_rows == 3


@pytest.mark.parametrize("target", ["outside", "live"])
@pytest.mark.parametrize("job", ["purge", "purge_dropped", "expire", "expire by locations", "remove_orphans"])
def test_a_table_folder_outside_the_warehouse_replaced_by_a_link_is_not_followed(
    lake: Lake, outside: Path, tmp_path: Path, job: str, target: str
) -> None:
    prepare(job, lake)
    victim = outside if target == "outside" else folder(lake.table("live"))
    place = tmp_path / "allowed" / "hostile"
    table = lake.catalog.create_table("db.hostile", ROWS.schema, location=f"file://{place}")
    table.append(ROWS)
    victims = tree(victim)
    name_data_files(table, [f"file://{place}/{file.relative_to(victim)}" for file in victims])
    if job.startswith("expire"):
        table.refresh().delete()
    shutil.copytree(place, victim, dirs_exist_ok=True)  # so that the jobs find the table's own files
    place.rename(tmp_path / "aside")
    place.symlink_to(victim)
    for file in tree(victim):
        age(file, 10)
    rows: list[tuple[object, ...]] = []
    if job == "remove_orphans":
        rows = lake.remove(dry_run=False)
        assert [(row[0], row[4]) for row in rows if row[0] == f"file://{place}"] == [
            (f"file://{place}", "kept")
        ]
    elif job.startswith("expire"):
        check = "locations" if job == "expire by locations" else "store"
        call(lake.session, "expire", table="db.hostile", older_than="0 s", check_files=check)
    else:
        run(job, lake, "db.hostile")
    assert victims <= tree(victim)
    assert place.is_symlink()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_location_that_becomes_a_link_after_the_decision_is_not_followed(
    tmp_path: Path, outside: Path, when: str
) -> None:
    place = tmp_path / "place"
    (place / "deep").mkdir(parents=True)
    (place / "precious").touch()
    permit = Permit([f"file://{tmp_path}/warehouse"], places=[f"file://{place}"], follow_links=True)
    if when == "after":
        grant = permit.grant(f"file://{place}/precious")
    place.rename(tmp_path / "aside")
    place.symlink_to(outside)
    if when == "before":
        assert permit.may(f"file://{place}/precious") is None
    else:
        with pytest.raises(ForbiddenError, match="symbolic link"):
            Folders(Files({})).delete(grant, pickle.loads(pickle.dumps(permit)))
    assert (outside / "precious").exists()


@pytest.mark.parametrize("job", ["purge", "expire"])
def test_a_table_behind_a_link_that_stays_inside_is_cleaned(lake: Lake, job: str) -> None:
    (lake.warehouse / "disk").mkdir()
    (lake.warehouse / "link").symlink_to(lake.warehouse / "disk")
    table = lake.catalog.create_table("db.t", ROWS.schema, location=f"file://{lake.warehouse}/link/t")
    table.append(ROWS)
    files = {file for file in tree(lake.warehouse / "disk") if file.suffix == ".parquet"}
    assert files
    run(job, lake, "db.t")
    assert files.isdisjoint(tree(lake.warehouse / "disk"))


def test_files_that_a_purge_leaves_behind_a_link_are_orphans(lake: Lake) -> None:
    prepare("purge_dropped", lake)
    (lake.warehouse / "disk").mkdir()
    (lake.warehouse / "link").symlink_to(lake.warehouse / "disk")
    table = lake.catalog.create_table("db.t", ROWS.schema, location=f"file://{lake.warehouse}/link/t")
    table.append(ROWS)
    run("purge_dropped", lake, "db.t")
    assert tree(lake.warehouse / "disk")
    for file in tree(lake.warehouse / "disk"):
        age(file, 10)
    lake.remove(dry_run=False)
    assert tree(lake.warehouse / "disk") == set()


def test_a_purge_is_left_to_maintenance_if_the_store_has_too_many_locations(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.table("other", appends=1)
    others = lake.files()
    lake.table(appends=1)
    files = lake.files()
    monkeypatch.setattr("polaris_spark.catalog.drops.purge.MOST_PLACES", -1)
    lake.catalog.purge_table("db.t")
    assert lake.files() == files
    call(lake.session, "purge_dropped")
    assert lake.files() == others
