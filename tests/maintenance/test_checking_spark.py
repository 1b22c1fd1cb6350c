"""The check as Spark jobs finds the same problems as the check without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from polaris_spark.backends import open_backend
from polaris_spark.catalog.engine import LocalEngine, Reach
from polaris_spark.catalog.files.files import Files
from polaris_spark.clock import ManualClock
from polaris_spark.config import Properties
from polaris_spark.jobs.registry import call
from polaris_spark.maintenance.fsck.checker import RealmCheck
from polaris_spark.maintenance.fsck.rows import Problem
from polaris_spark.spark.engine import SparkEngine
from polaris_spark.spark.options import location_of
from polaris_spark.store.cache import process_cache
from polaris_spark.store.objects import ObjectStore
from polaris_spark.store_uris import StoreURI
from tests.maintenance.damage import Damaged, Sound, copy_rows
from tests.maintenance.planted import stranger, view_version
from tests.maintenance.planted_rows import (
    header_of_garbage,
    inner_commit,
    leaf,
    middle_part,
    no_log,
    old_content,
    schema,
    wrong_skip,
)
from tests.rest.client import connect

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    return Sound(tmp_path_factory.mktemp("sound"))


def on_disk(sound: Sound, path: Path) -> tuple[str, Damaged]:
    """A copy of the store in a file."""
    uri = f"sqlite://{path / 'store.db'}?synchronous=off"
    backend = open_backend(StoreURI.parse(uri), {})
    backend.setup()
    copy_rows(sound.client.session.connection.backend, backend)
    return uri, Damaged(backend, sound.clock, sound.instance, sound.reference)


class ThreeParts(SparkEngine):
    """Executors for which a check divides all work into three parts."""

    @property
    def parts(self) -> int:
        return 3


def with_spark(spark: SparkSession, uri: str, store: Damaged, clock: ManualClock) -> list[Problem]:
    location = location_of(Properties.parse({"store": uri})).resolved()
    own = ObjectStore(store.backend, store.instance, process_cache(), store_key=uri)
    engine = ThreeParts(lambda: spark, location, {}, LocalEngine(Reach(own, Files({}))), realm="default")
    return RealmCheck(store.backend, clock, engine=engine).run()


def found(problems: list[Problem]) -> set[tuple[str, str, str, str]]:
    return {(one.severity, one.kind, one.realm, one.key) for one in problems}


def test_a_sound_store_is_sound_on_executors(spark: SparkSession, sound: Sound, tmp_path: Path) -> None:
    uri, store = on_disk(sound, tmp_path)
    assert with_spark(spark, uri, store, sound.clock) == []


def test_executors_find_the_same_problems(spark: SparkSession, sound: Sound, tmp_path: Path) -> None:
    uri, store = on_disk(sound, tmp_path)
    damages = [view_version, no_log, wrong_skip, old_content, schema, middle_part, header_of_garbage]
    damages += [stranger, inner_commit, leaf]  # without these the others are not found
    keys = {damage(store) for damage in damages}
    problems = with_spark(spark, uri, store, sound.clock)
    assert keys <= {problem.key for problem in problems}
    assert found(problems) == found(store.problems())
    lost = {one.key: one for one in problems if one.kind == "missing"}
    assert all(one.path.split(" > ")[-1] == one.key.split("/")[0] for one in lost.values())
    assert all(one.reference in one.path for one in lost.values() if one.reference)


def test_garbage_that_points_to_nothing_is_not_a_problem(
    spark: SparkSession, sound: Sound, tmp_path: Path
) -> None:
    """A sweep deletes rows by age. An unneeded row that remains may therefore point to a deleted one."""
    uri, store = on_disk(sound, tmp_path)
    id, commit = store.commit()
    garbage = store.row(id).replace(commit.entries.to_bytes(8, "big"), (99).to_bytes(8, "big"))
    store.put(77, garbage)
    assert with_spark(spark, uri, store, sound.clock) == []


def test_the_procedure_runs_as_spark_jobs(spark: SparkSession, tmp_path: Path) -> None:
    client = connect(f"sqlite://{tmp_path}/s.db", tmp_path, metadata_files="never")
    with client.session as session:
        client.namespace("db")
        client.create("t")
        assert call(session, "fsck", spark=spark) == []
