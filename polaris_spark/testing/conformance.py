"""The contract of storage backends as test cases. A backend meets the contract if test classes for it inherit these
cases and pass.

A test class for a store without a server defines the fixture `uri`:

    class TestMyBackend(BackendConformance):
        @pytest.fixture
        def uri(self, tmp_path):
            return f"mydatabase://{tmp_path}/store"

A test class for a store in local files inherits from `FileConformance`. This class also tests that maintenance jobs do
not delete the files of the store, and that a full disk loses no data.

A test class for a store on a server inherits from `ServerConformance` and defines the fixture `server` instead. This
class also tests lost answers, servers that do not answer, restarts, credentials and permissions:

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

The attribute `bad_uris` of a test class lists store URIs with a mistake, each with a regular expression for its error.

A test class that can look at the tables or files of a store and drop them also inherits from `AdminCases`, and
defines the fixture `store_admin`: a `StoreAdmin` (both in `polaris_spark.testing.admin_cases`). These cases test stores
that were dropped or never set up, and stores, tables and files that belong to newer releases or other programs.

If the database executes statements in sessions, and has locks, inherit from `SessionCases` instead of `AdminCases`. The
administrator is then a `SessionAdmin` (both in `polaris_spark.testing.session_cases`), who can also kill sessions and
lock rows.

Each test gets a new, empty store. `open_backend` must find the backend by its URI scheme in all processes. So a backend
of another package must be registered in the entry-point group `polaris_spark.backends`, and one of this package in
`polaris_spark.databases.BUILT_IN`. All tests of a run use the same server. Some tests kill the server and start it
again. A proxy between client and server injects faults (`polaris_spark.testing.proxy`).
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
    """Base of test classes for a backend. A subclass defines the fixture `uri`: the URI of a new store."""


class FileConformance(FileCases, BackendConformance):
    """Base of test classes for a backend that stores data in local files. A subclass defines the fixture `uri`."""


class ServerConformance(TroubleCases, BackendConformance):
    """Base of test classes for a database server. A subclass defines the fixture `server`: a
    `polaris_spark.testing.server.Server`."""
