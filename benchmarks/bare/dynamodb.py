"""Bare swaps on DynamoDB, by boto3's client, which threads share."""

from __future__ import annotations

from typing import Any

from boto3.session import Session
from botocore.config import Config

from benchmarks.bare import REALM
from polaris_spark.backends.base import ReferenceRow
from polaris_spark.store_uris import StoreURI

_CONNECTIONS = 64


def open_bare(uri: str) -> BareDynamoDB:
    """Open the store of a URI with an access key and the option `endpoint`."""
    return BareDynamoDB(StoreURI.parse(uri))


class BareDynamoDB:
    """A store with one boto3 client, which has a connection for each thread.

    The client does not retry requests, because a conditional write must not be repeated.
    """

    def __init__(self, uri: StoreURI) -> None:
        assert uri.password is not None
        self._table = f"{uri.path}.references"
        self._client: Any = Session().client(
            "dynamodb",
            region_name=uri.authority,
            endpoint_url=uri.options["endpoint"],
            aws_access_key_id=uri.user,
            aws_secret_access_key=uri.password.reveal(),
            config=Config(max_pool_connections=_CONNECTIONS, retries={"total_max_attempts": 1}),
        )

    def client(self) -> _Client:
        """Return a client on the shared boto3 client."""
        return _Client(self._client, self._table)

    def close(self) -> None:
        """Close all connections."""
        self._client.close()


class _Client:
    def __init__(self, client: Any, table: str) -> None:
        self._client, self._table = client, table

    def swap(self, name: str, expected: bytes, new: ReferenceRow) -> bool:
        try:
            self._client.put_item(
                TableName=self._table,
                Item={"p": {"B": _key(name)}, "n": {"B": new.version}, "v": {"B": new.value}},
                ConditionExpression="n = :n",
                ExpressionAttributeValues={":n": {"B": expected}},
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except self._client.exceptions.ConditionalCheckFailedException:
            return False
        return True

    def version(self, name: str) -> bytes:
        found = self._client.get_item(
            TableName=self._table, Key={"p": {"B": _key(name)}}, ConsistentRead=True
        )
        version: bytes = found["Item"]["n"]["B"]
        return version


def _key(name: str) -> bytes:
    return len(REALM).to_bytes(2, "big") + f"{REALM}{name}".encode()
