"""Export of the metadata files of many tables: executors read the rows and write the files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from polaris_spark.catalog.entities import TableName
from polaris_spark.catalog.exporting import Exported, Exporter, Wanted
from polaris_spark.catalog.files import Files
from polaris_spark.commits.state import StoredObjects
from polaris_spark.spark.options import StoreLocation
from polaris_spark.spark.planned import PlannedStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_SCHEMA = "number bigint, location string, outcome string, error string"


def export(
    spark: SparkSession,
    items: Sequence[Wanted],
    *,
    store: StoreLocation,
    realm: str,
    files: Mapping[str, str],
    directory: str | None,
    overwrite: bool,
) -> list[Exported]:
    """Export tables and views in parallel.

    Args:
        spark: the session whose executors export.
        items: the tables and views to export, all from one commit.
        store: the store, with resolved secrets.
        realm: instance id of the realm.
        files: properties of the FileIO that writes the files.
        directory: directory for the files; None to write each file to its own location.
        overwrite: whether existing files with different content are replaced.
    Returns:
        the outcome of each item, in the order of `items`.
    """
    import pyarrow as pa

    job = _Job(PlannedStore(store), realm, dict(files), directory, overwrite=overwrite)
    numbered = pa.table(
        {
            "number": pa.array(range(len(items)), pa.int64()),
            "kind": pa.array([item.kind for item in items], pa.binary()),
            "content": pa.array([item.content for item in items], pa.int64()),
            "namespace": pa.array([list(item.name.namespace) for item in items], pa.list_(pa.string())),
            "name": pa.array([item.name.name for item in items], pa.string()),
        }
    )
    # Several tasks per core: the task with the longest table histories must not delay the whole job.
    tasks = min(len(items), 4 * spark.sparkContext.defaultParallelism)
    rows = spark.createDataFrame(numbered).repartition(tasks).mapInArrow(job, _SCHEMA).collect()
    return [
        Exported(items[row.number].name, items[row.number].kind, row.location, row.outcome, row.error)
        for row in sorted(rows, key=lambda row: int(row.number))
    ]


class _Job:
    """The function that executors run. Input: tables and views. Output: the outcome of each."""

    def __init__(
        self,
        store: PlannedStore,
        realm: str,
        files: dict[str, str],
        directory: str | None,
        *,
        overwrite: bool,
    ) -> None:
        self._store = store
        self._realm = realm
        self._files = files
        self._directory = directory
        self._overwrite = overwrite

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        reader = StoredObjects(self._store.open().objects(self._realm))
        exporter = Exporter(reader, Files(self._files), directory=self._directory, overwrite=self._overwrite)
        for batch in batches:
            rows = batch.to_pylist()
            items = [
                Wanted(TableName(tuple(row["namespace"]), row["name"]), row["kind"], row["content"])
                for row in rows
            ]
            done = list(exporter.all(items))
            yield pa.RecordBatch.from_pydict(
                {
                    "number": pa.array([row["number"] for row in rows], pa.int64()),
                    "location": pa.array([one.location for one in done], pa.string()),
                    "outcome": pa.array([one.outcome for one in done], pa.string()),
                    "error": pa.array([one.error for one in done], pa.string()),
                }
            )
