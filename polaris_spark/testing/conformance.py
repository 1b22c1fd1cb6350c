"""The storage contract as test cases: a backend can be trusted if its tests inherit from these classes and pass.

A test class for a store without a server defines the fixture `uri`:

    class TestMyBackend(BackendConformance):
        @pytest.fixture
        def uri(self, tmp_path):
            return f"mydatabase://{tmp_path}/store"

A test class for a store in files of this machine inherits from `FileConformance`, which also tests that jobs keep the
files, and a full disk.

A test class for a store on a server defines the fixture `server` instead. It also has the cases of lost answers,
silence, restarts, credentials and permissions:

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

Each test gets a fresh, empty store. `open_backend` must find the backend by its scheme (entry-point group
`polaris_spark.backends`), in other processes too. The tests of a run share a server. Some tests kill the server and
start it again. A proxy between store and server injects faults (`polaris_spark.testing.proxy`).
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
    """Base of test classes that define the fixture `uri`: the URI of a store that does not exist yet."""


class FileConformance(FileCases, BackendConformance):
    """Like `BackendConformance`, for stores in files of this machine."""


class ServerConformance(TroubleCases, BackendConformance):
    """Base of test classes that define the fixture `server`: a `polaris_spark.testing.server.Server`."""
