"""`polaris-spark upgrade`: switches on the features of this release in the realms of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from polaris_spark.cli.options import AsJSON, Password, Store
from polaris_spark.cli.output import grid, plain, print_json, screen, tell
from polaris_spark.cli.progress import reading
from polaris_spark.cli.realm import connected
from polaris_spark.errors import NewerFormatError

if TYPE_CHECKING:
    from polaris_spark.maintenance.upgrades import RealmFeatures
    from polaris_spark.system.connections import StoreConnection
    from polaris_spark.system.realms import RealmRecord


def upgrade(
    store: Store,
    realm: Annotated[
        str | None, typer.Option(help="Only this realm; by default all.", show_default=False)
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Change nothing; show which features each realm may use and does use. Reads all objects. The exit "
            "code is 1 if an upgrade would change something, or a realm needs a newer release.",
        ),
    ] = False,
    password: Password = None,
    as_json: AsJSON = False,
) -> None:
    """Let a store's realms use all features of this release. Do this after every process has this release: earlier
    releases then refuse the realms.

    Until then, this release writes only what the release that created the realm can read. A repeated call changes
    nothing. New realms have all features.
    """
    from polaris_spark.maintenance.upgrades import realms_to_upgrade

    refused: list[NewerFormatError] = []
    records: list[RealmRecord] = []
    with connected(store, password, create=False) as connection:
        for found in realms_to_upgrade(connection.realms, realm):
            if isinstance(found, NewerFormatError):
                refused.append(found)
            else:
                records.append(found)
        is_complete = (
            _check(connection, records, as_json=as_json)
            if check
            else _upgrade(connection, records, as_json=as_json)
        )
    for error in refused:
        tell(str(error))
    if refused or not is_complete:
        raise typer.Exit(1)


def _upgrade(connection: StoreConnection, records: list[RealmRecord], *, as_json: bool) -> bool:
    from polaris_spark.objects import known_types

    results = []
    for record in records:
        after = connection.realms.upgrade(record.name, known_types())
        results.append((after, [name for name in after.features if name not in record.features]))
        if not as_json:
            _, added = results[-1]
            what = f"may now use {', '.join(added)}" if added else "has all features of this release already"
            screen().print(f"realm {plain(record.name)} {plain(what)}", soft_wrap=True)
    if as_json:
        print_json([{"realm": after.name, "added": added} for after, added in results])
    return True


def _check(connection: StoreConnection, records: list[RealmRecord], *, as_json: bool) -> bool:
    from polaris_spark.maintenance.upgrades import features_of

    with reading() as on_read:
        found = [features_of(connection.backend, record, on_read) for record in records]
    if as_json:
        print_json([_facts(one) for one in found])
    else:
        table = grid(None, "realm", "feature", "release", "state", "objects")
        for one in found:
            for row in _facts(one)["features"]:
                state = "allowed" if row["allowed"] else "not allowed yet"
                table.add_row(
                    plain(one.record.name), row["name"], row["release"], state, f"{row['objects']:,}"
                )
            for unknown in one.unknown:
                name = f"type {plain(unknown.type)!r}, revision {unknown.revision}"
                table.add_row(
                    plain(one.record.name), name, "unknown", "not known here", f"{unknown.objects:,}"
                )
        screen().print(table)
    return not any(one.missing for one in found)


def _facts(found: RealmFeatures) -> dict[str, Any]:
    return {
        "realm": found.record.name,
        "state": found.record.state.value,
        "format": found.record.format,
        "features": [
            {
                "name": one.feature.name,
                "release": one.feature.release,
                "what": one.feature.what,
                "allowed": one.is_allowed,
                "objects": one.objects,
            }
            for one in found.features
        ],
        "unknown": [one._asdict() for one in found.unknown],
    }
