"""The storage contract on a real server."""

from __future__ import annotations

import pytest

from polaris_spark.testing.conformance import ServerConformance
from polaris_spark.testing.server import Server
from tests.stores import ServerOf


class TestS3(ServerConformance):
    bad_uris = (
        ("s3:///prefix", "names no bucket"),
        ("s3://bucket/a//b", "prefix"),
        ("s3://bucket/a/../b", "prefix"),
        ("s3://bucket/p?endpoint=localhost:9000", "endpoint.*must be a URL"),
        ("s3://bucket/p?endpoint=http://user:correct-horse@host", "is or contains a secret"),
        ("s3://bucket/p?conections=3", "did you mean 'connections'"),
        ("s3://bucket/p?connections=0", "1 to 999"),
        ("s3://bucket/p?virtual-hosted=yes", "true or false"),
        ("s3://bucket/p?timeout=30", "with its unit"),
        ("s3://buck%20et/p", "bucket.*cannot be"),
        ("s3://us%0Aer:correct-horse@bucket/p", "user.*cannot be"),
        ("s3://bucket/p?region=a%0Ab", "region.*cannot be"),
        ("s3://bucket/p?endpoint=http://h%7D:1", "endpoint.*must be a URL"),
        ("s3://user@bucket/p?endpoint=http://h:1&region=r", "cannot be opened.*SecretAccessKey"),
    )

    @pytest.fixture
    def server(self, server_of: ServerOf) -> Server:
        return server_of("s3")
