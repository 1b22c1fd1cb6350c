"""URIs, options, credentials and tables."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, ObjectKey, ObjectRow
from polaris_spark.backends.dynamodb.settings import PREFIX, Settings
from polaris_spark.errors import StateError, StoreURIError
from polaris_spark.store_uris import Secret
from tests.backends.dynamodb.gateway import Answer, Body, Forward, Gateway
from tests.backends.dynamodb.support import parsed
from tests.servers.dynamodb import DynamoDBLocal


def test_a_uri_names_region_and_prefix() -> None:
    assert parsed("dynamodb://eu-central-1") == Settings("eu-central-1", PREFIX)
    found = parsed("dynamodb://AKID:s3cret@us-gov-west-1/my.store-1?timeout=5s&connections=7")
    assert found == Settings("us-gov-west-1", "my.store-1", "AKID", Secret("s3cret"), None, 5_000, 7)
    assert "s3cret" not in repr(found) + found.where


def test_a_secret_without_a_key_id_is_refused() -> None:
    with pytest.raises(StoreURIError, match="set both the access key's id"):
        open_backend("dynamodb://eu-central-1/prefix", {"password": Secret("x")})


def test_credentials_come_from_the_environment_if_the_uri_has_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: DynamoDBLocal
) -> None:
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    uri = f"dynamodb://us-east-1/environment?endpoint=http://127.0.0.1:{server.port}"
    with contextlib.closing(open_backend(uri)) as backend, pytest.raises(StateError, match="access key"):
        backend.setup()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "fromenvironment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with contextlib.closing(open_backend(uri)) as backend:
        backend.setup()
        assert backend.read_reference("realm", "name") is None


def test_stores_of_different_prefixes_share_nothing(server: DynamoDBLocal) -> None:
    with contextlib.closing(open_backend(server.uri("one"))) as one:
        one.setup()
        one.write_objects("realm", [ObjectRow(1, 0, b"x")])
        with contextlib.closing(open_backend(server.uri("one.more"))) as two:
            two.setup()
            assert two.read_objects("realm", [ObjectKey(1)]) == {}


def test_setting_up_waits_until_the_tables_are_active(gateway: Gateway, far_uri: str) -> None:
    told: list[str] = []

    def slowly(operation: str, body: Body, forward: Forward) -> Answer | None:
        if operation != "DescribeTable":
            return None
        answer = forward(body)
        if answer.status == 200 and told.count(body["TableName"]) < 3:
            told.append(body["TableName"])
            answer.body["Table"]["TableStatus"] = "CREATING"
        return answer

    gateway.rule = slowly
    with contextlib.closing(open_backend(far_uri)) as far:
        far.setup()
        assert len(told) == 6
        assert gateway.count("CreateTable") == 2
        assert all(
            body["BillingMode"] == "PAY_PER_REQUEST"
            for operation, body in gateway.asked
            if operation == "CreateTable"
        )
        far.setup()
        assert gateway.count("CreateTable") == 2


def test_a_user_without_the_right_to_create_tables_uses_those_that_exist(
    gateway: Gateway, backend: Backend, far: Backend
) -> None:
    def forbidden(operation: str, body: Body, forward: Forward) -> Answer | None:
        denied = {"__type": "com.amazon.coral.service#AccessDeniedException", "Message": "not authorized"}
        return Answer(400, denied) if operation == "CreateTable" else None

    gateway.rule = forbidden
    far.setup()
    other = open_backend(f"dynamodb://k:s@us-east-1/other?endpoint=http://127.0.0.1:{gateway.port}")
    with pytest.raises(StateError, match=r"not authorized.*grant"):
        other.setup()
    other.close()
