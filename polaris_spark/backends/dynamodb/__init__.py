"""`dynamodb://region/prefix`: Amazon DynamoDB, for any number of processes and machines of one region.

A store is two tables, `<prefix>.objects` and `<prefix>.references`, with on-demand billing. Every read is strongly
consistent. A reference changes by one conditional PutItem; a refused PutItem returns the existing row (`ALL_OLD`).

Rows are written before the swap, by BatchWriteItem (25 rows, several batches in parallel), so a commit takes two round
trips. DynamoDB's transactions are not used: TransactWriteItems costs twice the write units for every row. It takes two
phases inside the service, and a batch and a swap take one phase each, so a transaction is not faster. It is limited to
100 rows and 4 MB, and any concurrent access to the reference cancels it.

Options: `endpoint` (a URL, for DynamoDB Local and private endpoints), `timeout` of one request including retries
(30 s; a batch that DynamoDB processes in parts may take longer), `connections` (32), the maximum number of concurrent
requests. The user of the URI is the access key id, and `store.password` its secret. Without them, the credentials come
from the same places as for the AWS tools: the environment, a profile, or the role of the instance or task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

from polaris_spark.backends import Options
from polaris_spark.backends.base import (
    Backend,
    Conflict,
    ObjectKey,
    ObjectRow,
    ReferenceRow,
    Split,
    Swapped,
    Table,
)
from polaris_spark.backends.chunks import chunks
from polaris_spark.backends.dynamodb import items, scans, schema
from polaris_spark.backends.dynamodb.failures import ConditionFailedError
from polaris_spark.backends.dynamodb.requests import Requests
from polaris_spark.backends.dynamodb.settings import Settings
from polaris_spark.backends.limits import check_place, check_realm, check_reference, check_rows
from polaris_spark.store_uris import StoreURI

if TYPE_CHECKING:
    import pyarrow as pa

_GOT_AT_ONCE: Final = 100
_WRITTEN_AT_ONCE: Final = 25


def open_backend(uri: StoreURI, options: Options) -> DynamoDBBackend:
    """Return the backend for the store in the tables of `uri`. It connects at first use. The module's docstring lists
    the options.

    Raises:
        StoreURIError: the URI names no region, or an option or its value is not valid.
    """
    return DynamoDBBackend(Settings.parse(uri, options))


class DynamoDBBackend(Backend):
    """A store in two DynamoDB tables. Each row is an item."""

    scope = "cluster"

    def __init__(self, settings: Settings) -> None:
        self._requests = Requests(settings)
        self._objects = schema.name(settings.prefix, "objects")
        self._references = schema.name(settings.prefix, "references")

    def setup(self) -> None:
        schema.create(self._requests)

    def close(self) -> None:
        self._requests.close()

    def read_objects(self, realm: str, keys: Collection[ObjectKey]) -> dict[ObjectKey, bytes]:
        check_realm(realm)
        encoded, wanted = realm.encode(), dict.fromkeys(keys)
        parts = chunks([items.object_key(encoded, key) for key in wanted], _GOT_AT_ONCE)
        found = self._requests.workers.each(lambda part: self._requests.get_batch(self._objects, part), parts)
        return {items.key_of(item): item["v"]["B"] for part in found for item in part}

    def write_objects(self, realm: str, rows: Sequence[ObjectRow]) -> None:
        check_rows(realm, rows)
        encoded = realm.encode()
        different = {(row.id, row.part): row for row in rows}.values()  # DynamoDB refuses duplicate keys
        self._write(
            self._objects, [{"PutRequest": {"Item": items.object_item(encoded, row)}} for row in different]
        )

    def delete_objects(self, realm: str, keys: Collection[ObjectKey]) -> None:
        check_realm(realm)
        encoded = realm.encode()
        self._write(
            self._objects,
            [{"DeleteRequest": {"Key": items.object_key(encoded, key)}} for key in dict.fromkeys(keys)],
        )

    def read_reference(self, realm: str, name: str) -> ReferenceRow | None:
        check_place(realm, name)
        key = items.reference_key(realm, name)
        found = self._requests.read("get_item", TableName=self._references, Key=key, ConsistentRead=True)
        return items.reference_of(found["Item"]) if "Item" in found else None

    def insert_reference(self, realm: str, name: str, new: ReferenceRow) -> Swapped | Conflict:
        check_reference(realm, name, new)
        item = items.reference_item(realm, name, new)
        return self._change("put_item", Item=item, ConditionExpression="attribute_not_exists(p)")

    def swap_reference(
        self, realm: str, name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        check_reference(realm, name, new)
        item = items.reference_item(realm, name, new)
        return self._change("put_item", Item=item, **_at(expected_version))

    def delete_reference(self, realm: str, name: str, expected_version: bytes) -> Swapped | Conflict:
        check_place(realm, name)
        key = items.reference_key(realm, name)
        return self._change("delete_item", Key=key, **_at(expected_version))

    def splits(self, table: Table, realms: Sequence[str] | None, n: int) -> list[Split]:
        return scans.splits(table, realms, n)

    def scan(self, split: Split) -> Iterator[pa.RecordBatch]:
        return scans.scan(self._requests, split)

    def now_ms(self) -> int | None:
        """Return the time in the header `Date` of an answer, in milliseconds since 1970; None if there is no such
        header. The header has whole seconds, so the result is the middle of the second."""
        key = items.reference_key("::system::", "clock")
        answer = self._requests.read("get_item", TableName=self._references, Key=key)
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        return None if date is None else int(parsedate_to_datetime(date).timestamp() * 1_000) + 500

    def drop_realm(self, realm: str) -> bool:
        """Delete all rows of the realm by their keys. Queries find the realm's objects, and a scan of all references
        finds its references."""
        check_realm(realm)
        for split in scans.splits("objects", [realm], 1):
            for _, page in scans.pages(self._requests, split, keys_only=True):
                self._write(self._objects, [{"DeleteRequest": {"Key": key}} for key in page])
        for split in scans.splits("references", [realm], 1):
            for _, page in scans.pages(self._requests, split, keys_only=True):
                ours = [key for key in page if items.reference_place(key)[0] == realm]
                self._write(self._references, [{"DeleteRequest": {"Key": key}} for key in ours])
        return True

    def _change(self, operation: str, **parameters: Any) -> Swapped | Conflict:
        try:
            self._requests.change(
                operation,
                TableName=self._references,
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
                **parameters,
            )
        except ConditionFailedError as failed:
            return Conflict(items.reference_of(failed.item) if failed.item else None)
        return Swapped()

    def _write(self, table: str, requests: Sequence[dict[str, Any]]) -> None:
        parts = chunks(requests, _WRITTEN_AT_ONCE)
        self._requests.workers.each(lambda part: self._requests.write_batch(table, part), parts)


def _at(version: bytes) -> dict[str, Any]:
    return {"ConditionExpression": "n = :n", "ExpressionAttributeValues": {":n": {"B": version}}}
