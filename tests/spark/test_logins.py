"""Iceberg's own Java client of the REST protocol logs in by OAuth2, and refreshes its token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from polaris_spark.testing.waiting import wait_until
from tests.server.realms import CREDENTIALS, Realm, counted, new_realm
from tests.server.servers import Server

pytestmark = pytest.mark.spark


@pytest.fixture
def realm(tmp_path: Path) -> Realm:
    return new_realm(tmp_path)


def java_client(spark: SparkSession, server: Server, **properties: str) -> Any:
    """Return an Iceberg `RESTCatalog` that was initialized."""
    jvm: Any = spark._jvm
    catalog = jvm.org.apache.iceberg.rest.RESTCatalog()
    catalog.setConf(spark._jsc.hadoopConfiguration())
    server_uri = {"oauth2-server-uri": f"{server.uri}/v1/oauth/tokens"}
    catalog.initialize("shop", {"uri": server.uri, **server_uri, **properties})
    return catalog


def namespace(spark: SparkSession, name: str) -> Any:
    jvm: Any = spark._jvm
    gateway: Any = spark.sparkContext._gateway
    array = gateway.new_array(jvm.java.lang.String, 1)
    array[0] = name
    return jvm.org.apache.iceberg.catalog.Namespace.of(array)


@pytest.mark.parametrize("scope", [None, "PRINCIPAL_ROLE:ALL", "PRINCIPAL_ROLE:service_admin"])
def test_a_java_client_logs_in_by_credentials(spark: SparkSession, realm: Realm, scope: str | None) -> None:
    more = {} if scope is None else {"scope": scope}
    with realm.server() as server:
        catalog = java_client(spark, server, credential=CREDENTIALS["ann"].text(), **more)
        catalog.createNamespace(namespace(spark, "java"))
        assert catalog.namespaceExists(namespace(spark, "java"))
        catalog.close()
        assert counted(server, "client-credentials") == 1


def test_a_java_client_refreshes_its_token(spark: SparkSession, realm: Realm) -> None:
    with realm.server("--token-lifetime", "3 s") as server:
        catalog = java_client(spark, server, credential=CREDENTIALS["ann"].text())
        wait_until(lambda: counted(server, "token-exchange") >= 2, "the client refreshes its token twice")
        catalog.createNamespace(namespace(spark, "later"))
        catalog.close()
        assert counted(server, "client-credentials") == 1


def test_a_java_client_with_wrong_credentials_is_refused(spark: SparkSession, realm: Realm) -> None:
    with realm.server() as server, pytest.raises(Py4JJavaError, match="NotAuthorizedException"):
        java_client(spark, server, credential=f"{CREDENTIALS['ann'].client_id}:wrong")
