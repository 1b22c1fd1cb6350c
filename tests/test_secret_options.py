"""The rule that decides which options are secrets."""

from __future__ import annotations

import pytest

from polaris_spark.secret_options import holds_secret, is_secret, without_secrets


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "secret_access_key",
        "s3.secret-access-key",
        "s3.session-token",
        "adls.sas-token.account",
        "adls.account-key",
        "adls.connection-string",
        "accountKey",
        "sas",
        "jdbc.pass",
        "pw",
        "token",
        "credential",
        "header.Authorization",
        "header.X-Api-Key",
        "auth",
        "tlsCertificateKeyFilePassword",
    ],
)
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret(name, "text")
    assert is_secret(name, "env:NAME")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("region", "eu-west-1"),
        ("endpoint", "https://host:9000"),
        ("authSource", "admin"),
        ("authMechanismProperties", "SERVICE_NAME:mongodb"),
        ("replication", "{'class': 'NetworkTopologyStrategy', 'dc1': 3}"),
        ("ssl_key", "/etc/client-key.pem"),
        ("sslkey", "client.key"),
        ("passfile", "/home/me/.pgpass"),
        ("credentials", "/etc/bigtable.json"),
        ("idempotency-key-lifetime", "1 h"),
        ("monkey", "chimpanzee"),
    ],
)
def test_other_options_are_no_secrets(name: str, text: str) -> None:
    assert not is_secret(name, text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("credentials", '{"type": "service_account", "private_key": "x"}'),
        ("ssl_key", "-----BEGIN PRIVATE KEY-----"),
        ("endpoint", "https://me:pass@host"),
        ("endpoint", "https://host/?sv=1&sig=abc"),
        ("authMechanismProperties", "SERVICE_NAME:mongodb,AWS_SESSION_TOKEN:abc"),
        ("connection", "AccountName=me;AccountKey=abc"),
    ],
)
def test_values_that_carry_a_secret_are_secrets_under_any_name(name: str, text: str) -> None:
    assert is_secret(name, text)


@pytest.mark.parametrize(
    "text",
    [
        "s3://hunter2:hunter2@bucket/path",
        "//me:hunter2@host/db",
        "https://host/path?sv=1&sig=hunter2&se=2",
        "jdbc:postgresql://host/db?user=me&password=hunter2",
        "Server=host;PWD=hunter2;Database=db",
        '{"auth": {"password": "hunter2"}}',
    ],
)
def test_texts_are_shown_without_their_secrets(text: str) -> None:
    assert holds_secret(text)
    assert "hunter2" not in without_secrets(text)


@pytest.mark.parametrize(
    "text", ["s3://bucket/token=1/key=2", "sqlite:///a/b.db?mode=rw", "https://host:8181/path?page=2"]
)
def test_texts_without_secrets_are_shown_as_they_are(text: str) -> None:
    assert not holds_secret(text)
    assert without_secrets(text) == text


@pytest.mark.parametrize(
    "text",
    ["postgresql//me:hunter#2@host/db", "//me:hunter?2@host", "s3//me:a/hunter@2@b", "pg me:my hunter2@host"],
)
def test_malformed_texts_are_shown_without_possible_passwords(text: str) -> None:
    assert "hunter" not in without_secrets(text)
    assert without_secrets(text).endswith(text.rpartition("@")[2])
