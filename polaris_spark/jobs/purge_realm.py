"""`purge_realm`: deletes every row of a deactivated realm, or rows that do not belong to a realm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from polaris_spark.access.needs import Need, On
from polaris_spark.errors import InputError
from polaris_spark.jobs.maintenance import job
from polaris_spark.jobs.procedure import Call, Parameter, columns

if TYPE_CHECKING:
    from polaris_spark.maintenance.realm_purge import Purged


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.maintenance.realm_purge import Purge

    session = call.session
    name, instance = arguments.get("name"), arguments.get("instance")
    if name is not None and instance is not None:
        raise InputError("purge_realm takes a name or an instance, not both")
    if name == session.properties.realm:
        raise InputError(
            f"realm {name!r} contains this catalog: call purge_realm from a catalog of another realm"
        )
    if name is None and arguments.get("deactivate", False):
        raise InputError(
            "purge_realm: 'deactivate' applies only to a realm: give the realm's name as the argument 'name'"
        )
    purge = Purge(session.connection.backend, session.connection.clock, progress=call.progress)
    if name is not None:
        return [_row(purge.realm(name, deactivate=arguments.get("deactivate", False)))]
    if instance is not None:
        return [_row(purge.instance(instance))]
    return [_row(one) for one in purge.candidates()]


def _row(one: Purged) -> tuple[Any, ...]:
    return (*one[:4], None if one.objects < 0 else one.objects, one.deleted)


PROCEDURE = job(
    name="purge_realm",
    needs=(Need("SERVICE_MANAGE_ACCESS", On.REALM),),
    comment="Delete every row of a deactivated realm; without arguments, list what can be purged.",
    parameters=(
        Parameter("name", "STRING", "the realm to purge; it cannot be the realm of this catalog"),
        Parameter("instance", "STRING", "instance id of rows that belong to no realm, as reported by `fsck`"),
        Parameter(
            "deactivate",
            "BOOLEAN",
            "deactivate the realm first if it is active, and purge it even if a migration is copying into it",
        ),
    ),
    columns=columns(
        "realm STRING, instance STRING, state STRING, references BIGINT, objects BIGINT, deleted BOOLEAN"
    ),
    run=_run,
    scope="store",
    deletes=lambda arguments: "name" in arguments or "instance" in arguments,
)
