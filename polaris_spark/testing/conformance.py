"""The storage contract, case by case: a backend whose tests inherit this class and pass can be trusted.

    class TestMyBackend(BackendConformance):
        @pytest.fixture
        def uri(self, tmp_path):
            return f"mydatabase://{tmp_path}/store"

Each test gets a fresh, empty store. The backend must be known to `open_backend` by its scheme (entry-point group
`polaris_spark.backends`), in other processes too.
"""

from __future__ import annotations

from polaris_spark.testing.object_cases import ObjectCases
from polaris_spark.testing.race_cases import RaceCases
from polaris_spark.testing.reference_cases import ReferenceCases
from polaris_spark.testing.scan_cases import ScanCases


class BackendConformance(ObjectCases, ReferenceCases, RaceCases, ScanCases):
    """Inherit this in a test class and give the fixture `uri`: the URI of a store that does not exist yet."""
