"""A catalog whose changes become OpenLineage events, and a receiver of the events on loopback.

The receiver reads events with the classes of OpenLineage's own library, which are generated from the JSON schemas of
the specification.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import attrs
from cattrs import Converter
from cattrs.gen import make_dict_structure_fn
from openlineage.client import facet_v2
from openlineage.client.event_v2 import RunEvent
from openlineage.client.serde import Serde

from tests.cli.receivers import Received, Receiver
from tests.rest.materialized import SCHEMA
from tests.views.catalogs import Catalog

TOKEN = "the-key"
SOURCE = "/catalogs/polaris/branches/main"

Json = dict[str, Any]

_FACETS: dict[str, type[facet_v2.BaseFacet]] = {
    "schema": facet_v2.schema_dataset.SchemaDatasetFacet,
    "version": facet_v2.dataset_version_dataset.DatasetVersionDatasetFacet,
    "lifecycleStateChange": facet_v2.lifecycle_state_change_dataset.LifecycleStateChangeDatasetFacet,
    "symlinks": facet_v2.symlinks_dataset.SymlinksDatasetFacet,
    "datasetType": facet_v2.dataset_type_dataset.DatasetTypeDatasetFacet,
    "catalog": facet_v2.catalog_dataset.CatalogDatasetFacet,
    "columnLineage": facet_v2.column_lineage_dataset.ColumnLineageDatasetFacet,
    "outputStatistics": facet_v2.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet,
    "jobType": facet_v2.job_type_job.JobTypeJobFacet,
    "sql": facet_v2.sql_job.SQLJobFacet,
    "processing_engine": facet_v2.processing_engine_run.ProcessingEngineRunFacet,
    "tags": facet_v2.tags_run.TagsRunFacet,
}
"""The library's class of each facet, by the key that the specification gives the facet."""


def _structured_facets(facets: Json, type: Any) -> dict[str, facet_v2.BaseFacet]:
    base = get_args(type)[1]
    found = {name: _READER.structure(facet, _FACETS[name]) for name, facet in facets.items()}
    assert all(isinstance(facet, base) for facet in found.values())
    return found


def _is_facets(type: Any) -> bool:
    arguments = get_args(type)
    return get_origin(type) is dict and _is_class(arguments[1], facet_v2.BaseFacet)


def _is_class(found: Any, base: type) -> bool:
    return isinstance(found, type) and issubclass(found, base)


_READER = Converter()
# The library sets the fields `schemaURL` and `_schemaURL` itself, so they are no arguments of its classes.
_READER.register_structure_hook_factory(
    attrs.has,
    lambda type: make_dict_structure_fn(
        type, _READER, _cattrs_forbid_extra_keys=True, _cattrs_include_init_false=True
    ),
)
_READER.register_structure_hook_func(_is_facets, _structured_facets)


def _without_empty(value: Any) -> Any:
    """A JSON value without empty lists and objects, which the library adds for absent fields."""
    if isinstance(value, dict):
        parts = {name: _without_empty(part) for name, part in value.items()}
        return {name: part for name, part in parts.items() if part not in ([], {})}
    return [_without_empty(part) for part in value] if isinstance(value, list) else value


def _facets(event: Json) -> Iterator[tuple[str, Json]]:
    """Yield (name, facet) of all facets of an event."""
    yield from event["run"]["facets"].items()
    yield from event["job"]["facets"].items()
    for dataset in (*event.get("inputs", ()), *event.get("outputs", ())):
        yield from dataset["facets"].items()
        yield from dataset.get("outputFacets", {}).items()


def check_event(event: Json) -> None:
    """Check that OpenLineage's library reads an event, and would write the same event: all required fields are there,
    all fields are known, and their values have the right types.

    Raises:
        Exception: the event is wrong.
    """
    read = _READER.structure(event, RunEvent)
    assert _without_empty(Serde.to_dict(read)) == _without_empty(event)
    assert event["schemaURL"] == RunEvent._get_schema()
    for name, facet in _facets(event):
        assert facet["_schemaURL"] == _FACETS[name]._get_schema()


class LineageReceiver(Receiver):
    """A receiver of OpenLineage events."""

    def _checked(self, headers: dict[str, str], body: bytes) -> Received:
        assert headers["Authorization"] == f"Bearer {TOKEN}"
        event = json.loads(body)
        check_event(event)
        return Received(event["run"]["runId"], headers["Content-Type"], [event])

    def completed(self) -> list[str]:
        """The job names of the accepted events of ends, with repetitions."""
        events = [event for one in self.accepted for event in one.events]
        return [event["job"]["name"] for event in events if event["eventType"] == "COMPLETE"]


def new_catalog(folder: Path) -> Catalog:
    """Return a catalog with the namespace `db` and the table `t`."""
    made = Catalog(folder / "c.db", principal="ada")
    made.namespace("db")
    made.request("POST", "v1/namespaces/db/tables", {"name": "t", "schema": SCHEMA})
    return made


def commit(catalog: Catalog, id: int, **summary: str) -> None:
    """Commit a snapshot of the table, with this summary."""
    catalog.snapshot("db", "t", id, summary={key.replace("_", "-"): value for key, value in summary.items()})
