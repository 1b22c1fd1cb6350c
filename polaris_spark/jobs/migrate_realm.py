"""`migrate_realm`: moves a realm to another database while commits continue.

It is not named `migrate`, because Iceberg has a different procedure with this name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from polaris_spark.access.needs import Need, On
from polaris_spark.errors import InputError
from polaris_spark.jobs.engine import engine_of
from polaris_spark.jobs.maintenance import job
from polaris_spark.jobs.procedure import Call, Parameter, columns
from polaris_spark.property_values import duration_ms
from polaris_spark.secret_options import REFERENCE, is_secret

if TYPE_CHECKING:
    from polaris_spark.config import Properties
    from polaris_spark.maintenance.migration.steps import MigrationStep
    from polaris_spark.system.connections import StoreConnection

_PAUSE = "1s"

Row = tuple[str, int | None, int | None, int | None, float | None, str | None]


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[Row]:
    from polaris_spark.maintenance.migration.marks import SourceRealm
    from polaris_spark.maintenance.migration.run import Migration, start_purge_of_target
    from polaris_spark.spark.options import refuse_memory

    session = call.session
    call.may_end_realm = True
    properties = session.properties
    source = SourceRealm(session.connection.realms, properties.realm, session.catalog.references)
    target = _target(arguments, aborting=arguments.get("abort", False))
    if target is not None and session.properties.store.address != "name":
        refuse_memory(target.store)  # in memory, the realm would be lost at the end of this process
    name = arguments.get("target_realm") or properties.realm
    if arguments.get("abort", False):
        source.abort()  # first, so that the source serves again even if the target fails
        if target is not None:
            with _opened(target) as there:
                start_purge_of_target(there, name, source.store.realm)
        return [("abort", None, None, None, None, None)]
    assert target is not None
    with _opened(target) as there:
        engine = engine_of(call, writes_to=there.backend)
        migration = Migration(
            source,
            str(session.connection.uri),
            there,
            name,
            engine=engine,
            open_target=engine.opener(target, there.backend),
            max_pause_ms=duration_ms("max_pause", arguments.get("max_pause", _PAUSE)),
            verify=arguments.get("verify", True),
        )
        return [row for step in migration.run() for row in _rows(step)]


def _target(arguments: Mapping[str, Any], *, aborting: bool) -> Properties | None:
    """Return the properties of the target store; None if a migration is aborted and no target is given.

    Raises:
        InputError: the target is missing, or a secret in its options is plain text.
    """
    from polaris_spark.config import Properties

    if "target" not in arguments:
        if aborting:
            return None
        raise InputError(
            "migrate_realm: the argument 'target' is missing; give the URI of the store to move to"
        )
    given = {k: v for k, v in arguments.get("target_options", {}).items() if v is not None}
    for name, text in given.items():
        if is_secret(name, text) and not text.startswith(REFERENCE):
            raise InputError(
                f"migrate_realm: the target's secret {name!r} would be readable in the statement; "
                "give it as env:NAME, the name of an environment variable that holds it, and list that name in the "
                "catalog's property 'procedure-variables'"
            )
    named = {"store": arguments["target"], **{f"store.{name}": value for name, value in given.items()}}
    return Properties.parse(named, refuse_uri_password=True)


@contextmanager
def _opened(target: Properties) -> Iterator[StoreConnection]:
    """Open the target store, and close it at the end. If the database does not contain a store, create one."""
    from polaris_spark.system.connections import connect_store

    connection = connect_store(target.store, target.store_options, create=True)
    try:
        yield connection
    finally:
        connection.close()


def _rows(step: MigrationStep) -> Iterator[Row]:
    message = f"{step.different:,} differences" if step.different else None
    yield step.name, step.references, step.rows, step.bytes, step.milliseconds, message
    for one in step.differences:
        yield "difference", None, None, None, None, f"{one.what} {one.key} is {one.found}"


PROCEDURE = job(
    name="migrate_realm",
    needs=(Need("SERVICE_MANAGE_ACCESS", On.REALM),),
    comment="Move the realm to another database while commits continue, and compare the two databases.",
    parameters=(
        Parameter("target", "STRING", "URI of the store to move to, without a password"),
        Parameter(
            "target_realm", "STRING", "name of the realm in the target store; by default, the same name"
        ),
        Parameter(
            "target_options", "MAP<STRING,STRING>", "options of the target store, such as password = env:NAME"
        ),
        Parameter(
            "max_pause",
            "STRING",
            f"maximum time for which commits are stopped while the realm switches stores; default {_PAUSE}",
        ),
        Parameter(
            "verify",
            "BOOLEAN",
            "whether the stores are compared before and after the switch; default true",
        ),
        Parameter("abort", "BOOLEAN", "abort a migration; the source then continues to serve the realm"),
    ),
    columns=columns(
        "step STRING, heads BIGINT, rows BIGINT, bytes BIGINT, milliseconds DOUBLE, message STRING"
    ),
    run=_run,
)
