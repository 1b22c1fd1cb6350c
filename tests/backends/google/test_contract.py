"""The storage contract over the protocol of Google Cloud Storage."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from polaris_spark.testing.conformance import BackendConformance
from tests.backends.google.storage import BUCKET, google_storage, without_log_in

_numbers = count(1)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with google_storage() as url:
        yield url


class TestGoogle(BackendConformance):
    bad_uris = (("gs://bucket/p?region=x", "no option 'region'"),)

    @pytest.fixture
    def uri(self, url: str, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", without_log_in(url))
        return f"gs://{BUCKET}/store_{next(_numbers)}?endpoint={url}"
