"""Mutants of materialized views and their refreshes, each with one fault."""

from __future__ import annotations

from polaris_spark.catalog.entities import refresh_records
from polaris_spark.catalog.materialized import materialized_view_changes, source_changes, view_freshness
from polaris_spark.catalog.tables import contents
from polaris_spark.catalog.tables.contents import ContentChange, DropContent, Rename
from polaris_spark.jobs.materialized_views import write
from polaris_spark.maintenance.expiry import commits
from polaris_spark.testing.schedules import Rates
from tests.simulation.mutants import Mutant, Patch
from tests.simulation.plan import SECOND
from tests.simulation.refreshes import actors

CALM = {
    "rates": Rates(delay_ms=3.0),
    "processes": 3,
    "threads": 2,
    "gaps": (SECOND,) * 2,
    "actions": 24,
    "skews": (0.0,),
    "ahead": 0.0,
    "upkeep": 0.0,
}
"""Plan without faults and with many concurrent actions."""

REFRESH_MUTANTS: dict[str, Mutant] = {
    "a refresh records the states of its sources when it writes": Mutant(
        (
            Patch(
                write,
                "_overwrite",
                'call.progress("computing the rows")',
                "from polaris_spark.catalog.materialized.stored_views import materialized\n"
                "    from polaris_spark.catalog.materialized.query_pinning import pin\n"
                "    from polaris_spark.catalog.materialized.view_sources import query_of\n"
                "    state = catalog.view()\n"
                "    query = query_of(state, materialized(state, name))\n"
                "    pinned = pin(state, spark_catalog(call), query, name)\n"
                '    plan.record["source-states"] = pinned.source_states()',
            ),
        ),
        CALM,
    ),
    "a refresh does not look whether another one came first": Mutant(
        (
            Patch(
                refresh_records,
                "_require_valid_refresh",
                'if refresh.get("replaces") != document_of(before.properties).get(CURRENT_REFRESH):',
                "if False:",
            ),
        ),
        CALM,
    ),
    "an incremental refresh is made on top of whichever refresh is current": Mutant(
        (
            Patch(
                write,
                "_write_change",
                "query.write(table, _summary(plan, done))",
                "from polaris_spark.jobs.materialized_views.plan import state_of\n"
                '    plan.record["replaces"] = state_of(call.session.catalog.view(), name).refresh_id\n'
                "    query.write(table, _summary(plan, done))",
            ),
        ),
        CALM,
    ),
    "a refresh that was not written is reported as done": Mutant(
        (Patch(actors, "refresh", "if after.refresh_id == plan.id:", "if after.refresh_id:"),),
        CALM,
    ),
    "a refresh may be of an earlier version of the view": Mutant(
        (
            Patch(
                refresh_records,
                "_require_valid_refresh",
                'if refresh.get("view-uuid") != view.uuid or refresh["version-id"] != view.current_version_id:',
                "if False:",
            ),
        ),
        CALM,
    ),
    "any client may write to a storage table": Mutant(
        (Patch(contents, "require_refresh_only", 'if summary.get("operation") != "replace":', "if False:"),),
        CALM,
    ),
    "a commit of the storage table leaves the view to the next commit": Mutant(
        (
            Patch(
                ContentChange,
                "_store_view",
                "part.store(state, found, changed, prepared, effective)",
                "pass",
            ),
        ),
        CALM,
    ),
    "the metadata file of a storage table is written only if those of all tables are": Mutant(
        (
            Patch(
                ContentChange, "store", "(effective.metadata_files or is_storage)", "effective.metadata_files"
            ),
        ),
        CALM,
    ),
    "the document of a storage table does not follow its rollback": Mutant(
        (
            Patch(
                ContentChange,
                "_store_view",
                "set_refreshes(draft, view)",
                "if draft.added_snapshots:\n        set_refreshes(draft, view)",
            ),
        ),
        CALM,
    ),
    "the storage table of a dropped view is left": Mutant(
        (Patch(DropContent, "apply", "self._drop_storage(state, prepared)", "pass"),), CALM
    ),
    "the storage table of a renamed view is left": Mutant(
        (Patch(Rename, "_with_storage", "if storage is not None:", "if False:"),), CALM
    ),
    "a replaced view keeps the rows of its earlier query": Mutant(
        (
            Patch(
                materialized_view_changes.CreateMaterializedView,
                "_replaced",
                "apply_all(table, _emptied(table, self.storage.request))\n    set_refreshes(table, before)",
                "pass",
            ),
            Patch(
                view_freshness,
                "freshness",
                'if record.get("version-id") != view.current_version_id:',
                "if False:",
            ),
        ),
        CALM,
    ),
    "a table that was dropped and created again counts as unchanged": Mutant(
        (
            Patch(
                view_freshness,
                "_has_changed",
                'table is None or table.uuid != source["uuid"]',
                "table is None",
            ),
        ),
        CALM,
        most=120,
        first=15,
    ),
    "a table with other columns counts as unchanged": Mutant(
        (
            Patch(
                view_freshness,
                "_has_changed",
                'source.get("schema-id", table.current_schema_id) != table.current_schema_id',
                "False",
            ),
        ),
        CALM,
    ),
    "every change of a table counts as a compaction": Mutant(
        (
            Patch(
                view_freshness,
                "only_compacted",
                '(snapshot.get("summary") or {}).get("operation") != "replace"',
                "False",
            ),
        ),
        CALM,
    ),
    "a refresh reads the rows of a view below that are not fresh": Mutant(
        (Patch(view_freshness, "stored_rows", "if not freshness(state, name, outside).fresh:", "if False:"),),
        CALM,
    ),
    "expiry forgets the snapshots that refreshes need": Mutant(
        (
            Patch(
                source_changes.RefreshNeeds,
                "at",
                "return {uuid: frozenset(ids) for uuid, ids in found.items()}",
                "return {}",
            ),
        ),
        CALM,
    ),
    "expiry does not look again which snapshots refreshes need": Mutant(
        (
            Patch(
                commits._ExpireTables,
                "prepare",
                "self.needs.at(view)",
                "self.parts[0].asked.for_refreshes or {}",
            ),
        ),
        {**CALM, "think_ms": 0.0, "rates": Rates(delay_ms=20.0)},
        most=120,
        first=15,
    ),
}
