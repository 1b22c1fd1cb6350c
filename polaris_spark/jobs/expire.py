"""`expire`: removes snapshots that retention does not keep, and deletes files that only these snapshots need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, get_args

from polaris_spark.errors import InputError
from polaris_spark.jobs.engine import engine_of
from polaris_spark.jobs.maintenance import OLDER_THAN, job, older_than, unless_dry_run
from polaris_spark.jobs.policy_use import BY_POLICY, choose_expiry
from polaris_spark.jobs.procedure import Call, Parameter, columns

if TYPE_CHECKING:
    from polaris_spark.maintenance.expiry.leftovers import ExpiryResult
    from polaris_spark.maintenance.expiry.retention import ExpiryRequest
    from polaris_spark.maintenance.expiry.run import CheckFiles, Limits


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.rows import TABLE
    from polaris_spark.jobs.export_metadata import select
    from polaris_spark.maintenance.expiry.run import ExpiryRun
    from polaris_spark.maintenance.periods import own_policy

    session = call.session
    catalog, properties = session.catalog, session.properties
    table, namespace = arguments.get("table"), arguments.get("namespace")
    asked, limits = _asked(call, arguments), _limits(arguments)
    selected = select(catalog.head(), catalog.name, table=table, namespace=namespace)
    by_policy = arguments.get("by_policy", False)
    chosen = choose_expiry(session, [one for one in selected if one.kind == TABLE], by_policy=by_policy)
    run = ExpiryRun(
        catalog,
        session.principal,
        engine_of(call),
        asked,
        limits=limits,
        grace_ms=properties.grace,
        keep_records_ms=own_policy(catalog).retention_ms,
        check_files=_check_files(arguments),
        policies=chosen.properties,
    )
    outcomes = run.run(
        chosen.tables,
        everything=table is None and namespace is None and chosen.everything,
        dry_run=arguments.get("dry_run", False),
        without=chosen.alone,
    )
    return [_row(outcome) for outcome in outcomes]


def _asked(call: Call, arguments: Mapping[str, Any]) -> ExpiryRequest:
    from polaris_spark.catalog.materialized.source_changes import RefreshNeeds
    from polaris_spark.maintenance.expiry.retention import ExpiryRequest

    catalog = call.session.catalog
    now = call.session.connection.clock.now_ms()
    retain_last = arguments.get("retain_last")
    if retain_last is not None and retain_last < 1:
        raise InputError(f"retain_last is {retain_last}; it must be at least 1")
    before = older_than(call, arguments, now)
    needed = catalog.loading(lambda: RefreshNeeds(now).at(catalog.view()), call.session.principal)
    return ExpiryRequest(now, before, retain_last, arguments.get("clean_expired_metadata", False), needed)


def _limits(arguments: Mapping[str, Any]) -> Limits:
    from polaris_spark.maintenance.expiry.run import Limits

    limits = Limits(arguments.get("max_tables"), arguments.get("max_files"))
    for name, limit in limits._asdict().items():
        if limit is not None and limit < 1:
            raise InputError(f"{name} is {limit}; it must be at least 1")
    return limits


def _check_files(arguments: Mapping[str, Any]) -> CheckFiles:
    from polaris_spark.maintenance.expiry.run import CheckFiles

    given: str = arguments.get("check_files", "store")
    found = next((one for one in get_args(CheckFiles) if one == given.strip().lower()), None)
    if found is None:
        known = ", ".join(get_args(CheckFiles))
        raise InputError(f"check_files is {given!r}; it must be one of: {known}")
    checked: CheckFiles = found
    return checked


def _row(one: ExpiryResult) -> tuple[Any, ...]:
    files = one.files
    return (
        one.table,
        len(one.removed.snapshots),
        len(one.removed.refs),
        len(one.removed.schemas) + len(one.removed.specs),
        files["data"],
        files["position-deletes"],
        files["equality-deletes"],
        files["manifest"],
        files["manifest-list"],
        files["statistics"],
        one.bytes,
        one.failed,
        "; ".join(one.notes) or None,
    )


PROCEDURE = job(
    name="expire",
    comment="Remove the snapshots that retention does not keep, and delete the files that only these snapshots need.",
    parameters=(
        Parameter("table", "STRING", "a table, such as db.t"),
        Parameter(
            "namespace", "STRING", "a namespace, with nested namespaces; by default, the whole catalog"
        ),
        Parameter(
            "older_than",
            "STRING",
            f"remove only snapshots {OLDER_THAN}; overrides the age in the table's properties",
        ),
        Parameter(
            "retain_last",
            "INT",
            "number of snapshots of each branch to keep; overrides the number in the table's properties",
        ),
        Parameter(
            "clean_expired_metadata",
            "BOOLEAN",
            "also remove schemas and partition specs that no snapshot needs",
        ),
        Parameter("dry_run", "BOOLEAN", "only report what would be removed and deleted"),
        Parameter("max_tables", "INT", "maximum number of tables from which one run removes snapshots"),
        Parameter(
            "max_files",
            "BIGINT",
            "after deleting this many files, leave the files of further tables to the next run",
        ),
        Parameter(
            "check_files",
            "STRING",
            "tables to check for references to a file: 'store' (all) or 'locations' (those whose locations overlap)",
        ),
        BY_POLICY,
    ),
    columns=columns(
        "table STRING, snapshots BIGINT, refs BIGINT, schemas_and_specs BIGINT, data_files BIGINT, "
        "position_delete_files BIGINT, equality_delete_files BIGINT, manifests BIGINT, "
        "manifest_lists BIGINT, statistics_files BIGINT, bytes BIGINT, failed BIGINT, note STRING"
    ),
    run=_run,
    over_http=True,
    deletes=unless_dry_run,
    scope="catalog",
)
