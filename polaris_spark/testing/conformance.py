"""The storage contract, case by case: a backend whose tests inherit from here and pass can be trusted.

A store without a server of its own gives the fixture `uri`:

    class TestMyBackend(BackendConformance):
        @pytest.fixture
        def uri(self, tmp_path):
            return f"mydatabase://{tmp_path}/store"

A store that is files of this machine inherits from `FileConformance`, which also fills its disk.

A store on a server gives the fixture `server` instead, and gets the cases of lost answers, silence, restarts,
credentials and permissions as well:

    class MyServer(ProcessServer):  # polaris_spark.testing.server
        name = "my database"

        def command(self):
            return ["mydatabased", "--listen", f"127.0.0.1:{self.port}", "--data", str(self.directory)]

        def uri(self, store, *, port=None):
            return f"mydatabase://127.0.0.1:{port or self.port}/{store}"

    class TestMyBackend(ServerConformance):
        @pytest.fixture(scope="session")
        def server(self):
            with MyServer() as server:
                yield server

Each test gets a fresh, empty store. The backend must be known to `open_backend` by its scheme (entry-point group
`polaris_spark.backends`), in other processes too. Servers are shared by the tests of a run; some of these kill theirs
and start it again, and trouble is made by a proxy between the two (`polaris_spark.testing.proxy`).
"""

from __future__ import annotations

from polaris_spark.testing.file_cases import FileCases
from polaris_spark.testing.object_cases import ObjectCases
from polaris_spark.testing.opening_cases import OpeningCases
from polaris_spark.testing.race_cases import RaceCases
from polaris_spark.testing.reference_cases import ReferenceCases
from polaris_spark.testing.scan_cases import ScanCases
from polaris_spark.testing.trouble_cases import TroubleCases


class BackendConformance(OpeningCases, ObjectCases, ReferenceCases, RaceCases, ScanCases):
    """Inherit this in a test class and give the fixture `uri`: the URI of a store that does not exist yet."""


class FileConformance(FileCases, BackendConformance):
    """As `BackendConformance`, for stores that are files of this machine."""


class ServerConformance(TroubleCases, BackendConformance):
    """Inherit this in a test class and give the fixture `server`: a `polaris_spark.testing.server.Server`."""
