"""Definition and creation of the two tables of a store."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from polaris_spark.backends.base import Table
from polaris_spark.backends.dynamodb.failures import TableInUseError
from polaris_spark.backends.dynamodb.requests import Requests
from polaris_spark.errors import NoStoreError, StateError, TryAgainError

KEYS: Final[Mapping[Table, Sequence[str]]] = {"objects": ("p", "s"), "references": ("p",)}
"""Names of the key attributes of each table, partition key first."""

_CREATION_S: Final = 300
_USABLE: Final = frozenset({"ACTIVE", "UPDATING"})
_PASSING: Final = frozenset({"CREATING", "DELETING"})


def name(prefix: str, table: Table) -> str:
    """Return the name that a table of a store has in DynamoDB. `prefix` is the store's prefix."""
    return f"{prefix}.{table}"


def create(requests: Requests) -> None:
    """Create the store's tables that are missing, and wait until both tables can be used.

    Raises:
        TryAgainError: after five minutes, a table still cannot be used.
        StateError: the user lacks a permission, or a table belongs to another program or cannot be used.
    """
    requests.workers.each(lambda table: _create(requests, table), KEYS)


def _create(requests: Requests, table: Table) -> None:
    end, pause = time.monotonic() + _CREATION_S, 0.02
    while (status := _status(requests, table)) not in _USABLE:
        if status is None:
            with contextlib.suppress(TableInUseError):  # another process was faster
                requests.write("create_table", **_definition(requests.settings.prefix, table))
        elif status not in _PASSING:
            raise StateError(
                f"{requests.settings.where}: table {table!r} cannot be used: its status is {status}"
            )
        if time.monotonic() > end:
            raise TryAgainError(
                f"{requests.settings.where}: table {table!r} is still {status or 'missing'} after {_CREATION_S} s; try "
                "again later"
            )
        time.sleep(pause)
        pause = min(2 * pause, 1.0)


def _status(requests: Requests, table: Table) -> str | None:
    """Return DynamoDB's status of a table; None if the table does not exist."""
    try:
        found = requests.read("describe_table", TableName=name(requests.settings.prefix, table))["Table"]
    except NoStoreError:
        return None
    wanted = _definition(requests.settings.prefix, table)
    types = {each["AttributeName"]: each["AttributeType"] for each in found["AttributeDefinitions"]}
    if found["KeySchema"] != wanted["KeySchema"] or any(types[key] != "B" for key in KEYS[table]):
        raise StateError(
            f"{requests.settings.where}: the table {wanted['TableName']!r} belongs to another program; choose "
            "another prefix"
        )
    status: str = found["TableStatus"]
    return status


def _definition(prefix: str, table: Table) -> dict[str, Any]:
    return {
        "TableName": name(prefix, table),
        "AttributeDefinitions": [{"AttributeName": key, "AttributeType": "B"} for key in KEYS[table]],
        "KeySchema": [
            {"AttributeName": key, "KeyType": kind}
            for key, kind in zip(KEYS[table], ("HASH", "RANGE"), strict=False)
        ],
        "BillingMode": "PAY_PER_REQUEST",
    }
