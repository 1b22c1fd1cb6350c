"""The storage contract on a real server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest

from polaris_spark.backends.base import Table
from polaris_spark.errors import StateError, StoreURIError
from polaris_spark.testing.admin_cases import AdminCases, StoreAdmin
from polaris_spark.testing.conformance import ServerConformance
from polaris_spark.testing.server import Server
from tests.backends.dynamodb.support import parsed
from tests.stores import ServerOf


class DynamoDBAdmin(StoreAdmin):
    """The administrator of the tables of one store, which have no format version."""

    refusal = (StateError, StoreURIError)
    unreadable: ClassVar[Mapping[Table, str]] = {
        "objects": "does not contain a store",
        "references": "check that it is DynamoDB",
    }
    checks_first = False

    def __init__(self, client: Any, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    def contents(self) -> dict[str, object]:
        return {
            name: (
                self._client.describe_table(TableName=name)["Table"]["KeySchema"],
                self._client.scan(TableName=name)["Items"],
            )
            for name in self._names()
        }

    def create_foreign_table(self, table: Table) -> None:
        name = f"{self._prefix}.{table}"
        self._client.create_table(
            TableName=name,
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )
        self._client.put_item(TableName=name, Item={"id": {"S": "theirs"}})

    def drop(self) -> None:
        for name in self._names():
            self._client.delete_table(TableName=name)

    def _names(self) -> list[str]:
        pages = self._client.get_paginator("list_tables").paginate()
        return [name for page in pages for name in page["TableNames"] if name.startswith(f"{self._prefix}.")]


class TestDynamoDB(AdminCases, ServerConformance):
    bad_uris = (
        ("dynamodb:///prefix", "region"),
        ("dynamodb://eu_central/prefix", "region"),
        ("dynamodb://localhost:8000/prefix", "region"),
        ("dynamodb://eu-central-1/a/b", "prefix"),
        ("dynamodb://eu-central-1/ü", "prefix"),
        (f"dynamodb://eu-central-1/{'p' * 201}", "prefix"),
        ("dynamodb://AKID@eu-central-1/prefix", "set both the access key's id"),
        ("dynamodb://eu-central-1/prefix?endpoint=localhost:8000", "endpoint"),
        ("dynamodb://eu-central-1/prefix?endpoint=http://user:correct-horse@host", "endpoint"),
        ("dynamodb://eu-central-1/prefix?connections=0", "connections"),
        ("dynamodb://eu-central-1/prefix?timeout=5", "timeout"),
        ("dynamodb://eu-central-1/prefix?timeout=0s", "timeout"),
        ("dynamodb://eu-central-1/prefix?end-point=x", "did you mean 'endpoint'"),
    )

    @pytest.fixture
    def server(self, server_of: ServerOf) -> Server:
        return server_of("dynamodb")

    @pytest.fixture
    def store_admin(self, uri: str) -> Iterator[StoreAdmin]:
        settings = parsed(uri)
        client = settings.open()
        yield DynamoDBAdmin(client, settings.prefix)
        client.close()
