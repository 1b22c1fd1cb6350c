"""If a test server is not available, the error says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from polaris_spark.errors import StateError
from polaris_spark.testing.server import ProcessServer
from tests.servers.cassandra import Cassandra
from tests.servers.dynamodb import DynamoDBLocal
from tests.servers.mongodb import MongoJavaServer


@pytest.mark.parametrize("kind", [Cassandra, DynamoDBLocal, MongoJavaServer])
def test_a_missing_build_tool_is_named(
    kind: type[ProcessServer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StateError, match=r"no Maven|needs Java"):
        kind()
