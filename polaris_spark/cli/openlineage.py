"""Changes as run events of OpenLineage 2 (https://openlineage.io/docs/spec/object-model).

A change of a table or view is a finished run, whose output is the table or view. The changes of a transaction are one
run. A run has two events, `START` and `COMPLETE`, because the specification requires both. Datasets are named by their
location, as OpenLineage's integration of Spark names them.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from polaris_spark import __version__
from polaris_spark.catalog.materialized.lineage import DIRECT, Dependence, LineageSource
from polaris_spark.catalog.tables.summaries import number_in
from polaris_spark.cli.changed_datasets import ChangedDataset, DatasetReader, ReadSource
from polaris_spark.cli.delivery import Event, MakeRequest, Request
from polaris_spark.errors import InputError
from polaris_spark.names import sql_name

Json = dict[str, Any]

PRODUCER = f"urn:polaris-spark:{__version__}"
INTEGRATION = "POLARIS_SPARK"
ENDPOINT = "/api/v1/lineage"
"""Path of the route that OpenLineage's clients send events to."""

MAX_OUTPUTS = 100
"""Maximum number of changes in a run. A larger transaction is several runs."""

_SPECIFICATION = "https://openlineage.io/spec"
_FACETS = {
    "schema": ("1-2-0", "SchemaDatasetFacet"),
    "version": ("1-0-1", "DatasetVersionDatasetFacet"),
    "lifecycleStateChange": ("1-0-1", "LifecycleStateChangeDatasetFacet"),
    "symlinks": ("1-0-1", "SymlinksDatasetFacet"),
    "datasetType": ("1-0-1", "DatasetTypeDatasetFacet"),
    "catalog": ("1-1-0", "CatalogDatasetFacet"),
    "columnLineage": ("1-2-0", "ColumnLineageDatasetFacet"),
    "outputStatistics": ("1-0-2", "OutputStatisticsOutputDatasetFacet"),
    "jobType": ("2-0-4", "JobTypeJobFacet"),
    "sql": ("1-1-0", "SQLJobFacet"),
    "processing_engine": ("1-1-1", "ProcessingEngineRunFacet"),
    "tags": ("1-0-0", "TagsRunFacet"),
}
"""Version and type of each facet."""

_CHANGES = {
    "create": "CREATE",
    "register": "CREATE",
    "import": "CREATE",
    "undrop": "CREATE",
    "drop": "DROP",
    "rename": "RENAME",
    "update": "ALTER",
}
"""State change of the life cycle by the verb of an action. Changes by other actions, such as a new owner, are not
sent."""

_ALTERING = frozenset(
    {
        "add-schema",
        "set-current-schema",
        "add-spec",
        "set-default-spec",
        "add-sort-order",
        "set-default-sort-order",
        "set-location",
        "set-properties",
        "remove-properties",
        "upgrade-format-version",
    }
)
"""Updates of a table that are the state change ALTER."""

_KEEPING_CONTENT = frozenset(
    {
        "set-snapshot-ref",
        "remove-snapshot-ref",
        "remove-snapshots",
        "set-statistics",
        "remove-statistics",
        "set-partition-statistics",
        "remove-partition-statistics",
        "remove-schemas",
        "remove-partition-specs",
        "add-encryption-key",
        "remove-encryption-key",
    }
)
"""Updates of a table that change neither rows nor columns of its branch `main`. For updates of refs, this holds
for refs other than `main`."""

_TOKEN = re.compile("[!-~]+")
_ALIASES = {"s3a": "s3", "s3n": "s3", "abfs": "abfss", "wasb": "wasbs"}
_OBJECT_STORES = frozenset({"s3", "gs", "abfss", "wasbs"})


class DatasetName(NamedTuple):
    """The name of a dataset."""

    namespace: str
    name: str


class _Output(NamedTuple):
    """A change of a dataset. For a materialized view, also the change of its storage table."""

    change: Json
    dataset: ChangedDataset


def openlineage_requests(token: str | None) -> MakeRequest:
    """Return the function that makes the requests to a receiver of OpenLineage events; each has one event.

    Args:
        token: the API key, which is sent as a bearer token; None for none.
    Raises:
        InputError: the key has characters that a header cannot contain. The message does not contain the key.
    """
    if token is not None and not _TOKEN.fullmatch(token):
        raise InputError(
            "the API key in the environment variable of --secret cannot be sent: it must consist of visible ASCII "
            "characters"
        )
    headers = {"Content-Type": "application/json"} | (
        {} if token is None else {"Authorization": f"Bearer {token}"}
    )

    def made(events: list[Event], _: datetime) -> Request:
        return Request(events[0].text, headers)

    return made


def endpoint(url: str) -> str:
    """Return the address that events are sent to: an address without a path gets `ENDPOINT`, as with OpenLineage's
    clients."""
    parsed = urlsplit(url)
    return parsed._replace(path=ENDPOINT).geturl() if parsed.path in ("", "/") else url


def is_sent(change: Json) -> bool:
    """Whether events are sent for a change: whether it changed the data or metadata of a table or view."""
    summary, updates = change["summary"], _updates(change)
    if change["kind"] not in ("table", "view") or _verb(change) not in _CHANGES:
        return False
    if change["kind"] == "table":
        return (
            not updates or "operation" in summary or "ref main" in summary or not updates <= _KEEPING_CONTENT
        )
    # A change of the storage table of a materialized view has a second entry for the view.
    follows = updates == {"set-properties"} and not any(
        name.startswith(("set ", "unset")) for name in summary
    )
    return not follows and updates != {"set-storage-table"}


def events_of(changes: Iterable[Json], source: str, reader: DatasetReader) -> Iterator[Event]:
    """Yield changes as events, two for each run. Changes without events are left out.

    Tables and views can have large schemas. So this function keeps in memory only those of one run, and of the change
    after the run.

    Args:
        changes: changes as `catalog.branches.change_log.changes_after` returns them.
        source: URI reference of the branch; the namespace of the jobs.
        reader: reads the tables and views of the changes.
    """
    naming = _Naming(source, reader.catalog)
    run: list[_Output] = []
    for change in filter(is_sent, changes):
        output = _Output(change, reader.read(change))
        if run and (len(run) >= MAX_OUTPUTS or not _is_one_run(run[-1], output)):
            yield from naming.events(run)
            run = []
        run.append(output)
    if run:
        yield from naming.events(run)


def _is_one_run(before: _Output, after: _Output) -> bool:
    """Whether two consecutive changes in the log belong to the same operation."""
    one, other = before.change, after.change
    if one["commit"]["id"] != other["commit"]["id"] or one["operation"] != other["operation"]:
        return False
    is_pair = before.dataset.name == after.dataset.name and one["entity"] != other["entity"]
    return one["operation"] is not None or is_pair  # a materialized view and its storage table


def _updates(change: Json) -> frozenset[str]:
    """Return the actions of the metadata updates that made a change, such as `set-properties`, as the change's summary
    lists them. The summary lists none if the commit only added snapshots and moved branches to them."""
    return frozenset(filter(None, change["summary"].get("updates", "").split(",")))


def _verb(change: Json) -> str:
    return str(change["action"].removesuffix(f"-{change['kind']}"))


def name_of_location(location: str) -> DatasetName:
    """Return the name of the dataset at a location, by OpenLineage's rules
    (https://openlineage.io/docs/spec/naming#dataset-naming)."""
    scheme, found, rest = location.partition(":")
    if not found or "/" in scheme:
        scheme, rest = "file", location
    scheme = _ALIASES.get(scheme.lower(), scheme.lower())
    authority = ""
    if rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        rest = slash + path
    path = rest.rstrip("/")
    if scheme == "file":
        return DatasetName(f"file://{authority}" if authority else "file", path or "/")
    name = path.strip("/") if scheme in _OBJECT_STORES else path
    return DatasetName(f"{scheme}://{authority}", name or "/")


class _Naming:
    """Makes the events of a catalog's branch."""

    def __init__(self, source: str, catalog: str) -> None:
        self._source = source
        self._catalog = catalog

    def events(self, run: list[_Output]) -> Iterator[Event]:
        """Yield two events of a run: for its beginning and for its end."""
        first, last = run[0].change, run[-1].change
        # A restarted sender may divide a large transaction at other changes, so the id names the first and last change.
        id = uuid.uuid5(uuid.NAMESPACE_URL, f"{self._source}#{first['position']}:{last['position']}")
        common = {
            "producer": PRODUCER,
            "schemaURL": f"{_SPECIFICATION}/2-0-2/OpenLineage.json#/$defs/RunEvent",
            "run": {"runId": str(id), "facets": _run_facets(run)},
            "job": {"namespace": self._source, "name": _job_name(run), "facets": _job_facets(run)},
        }
        by_name: dict[DatasetName, list[_Output]] = {}
        for output in run:
            by_name.setdefault(self._name(output.dataset), []).append(output)
        read = {self._source_name(one): one for output in run for one in output.dataset.sources}
        committed = first["commit"]["time"]
        begin = {"eventType": "START", "eventTime": min(first["time"], committed), **common}
        end = {
            "eventType": "COMPLETE",
            "eventTime": committed,
            **common,
            "inputs": [self._input(source) for source in read.values()],
            "outputs": [self._output(name, found) for name, found in by_name.items()],
        }
        yield Event(last["position"], json.dumps(begin).encode(), is_last=False)
        yield Event(last["position"], json.dumps(end).encode())

    def _in_catalog(self, name: str) -> DatasetName:
        return DatasetName(self._source, name)

    def _name(self, dataset: ChangedDataset) -> DatasetName:
        if dataset.location:
            return name_of_location(dataset.location)
        return self._in_catalog(dataset.name)

    def _source_name(self, read: ReadSource) -> DatasetName:
        if read.location:
            return name_of_location(read.location)
        source, name = read.source, self._source_in_catalog(read.source)
        return name or DatasetName(source.catalog or "", sql_name((*source.namespace, source.name)))

    def _source_in_catalog(self, source: LineageSource) -> DatasetName | None:
        if source.catalog != self._catalog:
            return None
        return self._in_catalog(sql_name((*source.namespace, source.name)))

    def _input(self, read: ReadSource) -> Json:
        name = self._source_name(read)
        facets = _type_facet(read.source.type)
        if read.version is not None:
            facets |= _facet("version", datasetVersion=read.version)
        alias = self._source_in_catalog(read.source)
        return {**name._asdict(), "facets": facets | self._catalog_facets(name, alias)}

    def _output(self, name: DatasetName, found: list[_Output]) -> Json:
        # Of a materialized view and its storage table, the change with sources counts, else that of the view.
        dataset = next((one.dataset for one in found if one.dataset.sources), found[-1].dataset)
        facets = _type_facet(dataset.type) | self._catalog_facets(name, self._in_catalog(dataset.name))
        if dataset.fields is not None:
            facets |= _facet("schema", fields=[_field(one) for one in dataset.fields])
        versions = [one.dataset.version for one in found if one.dataset.version is not None]
        if versions:
            facets |= _facet("version", datasetVersion=versions[-1])
        state = _state_change(found)
        if state is not None:
            renamed = [one.change for one in found if "old-name" in one.change]
            old = next((one for one in renamed if one["kind"] == "view"), renamed[0] if renamed else None)
            before = (
                {} if old is None else {"previousIdentifier": self._in_catalog(old["old-name"])._asdict()}
            )
            facets |= _facet("lifecycleStateChange", lifecycleStateChange=state, **before)
        facets |= self._column_lineage(dataset)
        statistics = next((_statistics(one.change) for one in found if _operation(one)), {})
        return {**name._asdict(), "facets": facets, "outputFacets": statistics}

    def _catalog_facets(self, name: DatasetName, alias: DatasetName | None) -> Json:
        """Return the facets about the name in the catalog; none for a dataset of another catalog."""
        if alias is None:
            return {}
        links = [] if alias == name else [{**alias._asdict(), "type": "TABLE"}]
        of_catalog = _facet("catalog", framework="iceberg", type="rest", name=self._catalog)
        return of_catalog | (_facet("symlinks", identifiers=links) if links else {})

    def _column_lineage(self, dataset: ChangedDataset) -> Json:
        read = {one.source: self._source_name(one) for one in dataset.sources}
        columns: dict[str | None, dict[tuple[DatasetName, str], list[Json]]] = {}
        for one in dataset.dependences:
            if one.source_column is not None:
                inputs = columns.setdefault(one.column, {})
                inputs.setdefault((read[one.source], one.source_column), []).append(_transformation(one))
        if not columns:
            return {}
        fields = {
            column: {"inputFields": _input_fields(inputs)} for column, inputs in columns.items() if column
        }
        return _facet("columnLineage", fields=fields, dataset=_input_fields(columns.get(None, {})))


def _facet(facet: str, /, **fields: Any) -> Json:
    version, type = _FACETS[facet]
    url = f"{_SPECIFICATION}/facets/{version}/{type}.json#/$defs/{type}"
    return {facet: {"_producer": PRODUCER, "_schemaURL": url, **fields}}


def _type_facet(type: str) -> Json:
    if type == "materialized view":
        return _facet("datasetType", datasetType="VIEW", subType="MATERIALIZED")
    return _facet("datasetType", datasetType=type.upper())


def _transformation(dependence: Dependence) -> Json:
    type = "DIRECT" if dependence.kind in DIRECT else "INDIRECT"
    return {"type": type} if dependence.kind is None else {"type": type, "subtype": dependence.kind}


def _input_fields(inputs: Mapping[tuple[DatasetName, str], list[Json]]) -> list[Json]:
    return [
        {**name._asdict(), "field": column, "transformations": kinds}
        for (name, column), kinds in inputs.items()
    ]


def _field(field: Json) -> Json:
    """Return a field of an Iceberg schema in the form of the facet `schema`."""
    doc = {"description": field["doc"]} if field.get("doc") else {}
    return {"name": str(field["name"]), **_type(field["type"]), **doc}


def _type(type: Any) -> Json:
    if not isinstance(type, Mapping):
        return {"type": str(type)}
    if type["type"] == "struct":
        return {"type": "struct", "fields": [_field(one) for one in type["fields"]]}
    if type["type"] == "list":
        return {"type": "array", "fields": [{"name": "_element", **_type(type["element"])}]}
    pair = (("key", type["key"]), ("value", type["value"]))
    return {"type": "map", "fields": [{"name": name, **_type(one)} for name, one in pair]}


def _operation(output: _Output) -> str:
    return str(output.change["summary"].get("operation", ""))


def _state_change(found: list[_Output]) -> str | None:
    return next((state for state in map(_one_state_change, found) if state is not None), None)


def _one_state_change(output: _Output) -> str | None:
    state, operation, totals = _CHANGES[_verb(output.change)], _operation(output), output.dataset.totals
    if state == "CREATE" and output.change["before"]:  # an import that replaced a table
        return "ALTER"
    if state != "ALTER" or output.change["kind"] == "view":
        return state
    updates = _updates(output.change)
    # CREATE OR REPLACE TABLE removes the branch main, and appends.
    if operation in ("overwrite", "delete") or (operation and "remove-snapshot-ref" in updates):
        rows, files = number_in(totals, "total-records"), number_in(totals, "total-data-files")
        if rows == 0 or files == 0:
            return "TRUNCATE"
        if operation != "delete" and files is not None and files == number_in(totals, "added-data-files"):
            return "OVERWRITE"
    return "ALTER" if updates & _ALTERING else None


def _statistics(change: Json) -> Json:
    counts = {
        name: number_in(change["summary"], f"added-{name}") or 0
        for name in ("records", "files-size", "data-files", "delete-files")
    }
    return _facet(
        "outputStatistics",
        rowCount=counts["records"],
        size=counts["files-size"],
        fileCount=counts["data-files"] + counts["delete-files"],
    )


def _job_name(run: list[_Output]) -> str:
    for output in run:
        for field in ("job", "commit.job"):
            if name := str(output.change["summary"].get(field, "")).strip():
                return name
    refreshed = next((one for one in run if one.dataset.is_refresh), None)
    if refreshed is not None:
        return f"refresh.{refreshed.dataset.name}"
    # Of a materialized view and its storage table, the last change is that of the view.
    last = run[-1] if run[0].dataset.name == run[-1].dataset.name else run[0]
    principal = last.change["principal"] or "polaris-spark"
    return f"{principal}.{_operation(last) or last.change['action']}.{last.dataset.name}"


def _job_facets(run: list[_Output]) -> Json:
    is_refresh = any(one.dataset.is_refresh for one in run)
    facets = _facet(
        "jobType",
        processingType="BATCH",
        integration=INTEGRATION,
        jobType="REFRESH" if is_refresh else "COMMIT",
    )
    queries = {one.dataset.query for one in run if one.dataset.query is not None and one.dataset.sources}
    if len(queries) == 1:
        ((query, dialect),) = queries
        facets |= _facet("sql", query=query, dialect=dialect)
    return facets


def _run_facets(run: list[_Output]) -> Json:
    first = run[0].change
    tags = {"commit": f"{first['commit']['number']}-{first['commit']['id']}", "principal": first["principal"]}
    if first["operation"] is not None:
        tags["operation"] = first["operation"]
    for output in run:
        for name, text in output.change["summary"].items():
            if name in ("spark.app.id", "engine-name", "from") or name.startswith("commit."):
                tags.setdefault(name, text)
    listed = [{"key": key, "value": value, "source": INTEGRATION} for key, value in tags.items() if value]
    engine = _facet("processing_engine", name="polaris-spark", version=__version__)
    return engine | _facet("tags", tags=listed)
