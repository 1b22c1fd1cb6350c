"""Names imported from the driver's module `cassandra.cluster`.

`cassandra.cluster` cannot be imported if the driver was installed without an event loop. Importing this module then
raises `MissingLibraryError`."""

from __future__ import annotations

from cassandra import DependencyException

from polaris_spark.errors import MissingLibraryError

try:
    from cassandra.cluster import EXEC_PROFILE_DEFAULT as EXEC_PROFILE_DEFAULT
    from cassandra.cluster import Cluster as Cluster
    from cassandra.cluster import ExecutionProfile as ExecutionProfile
    from cassandra.cluster import NoHostAvailable as NoHostAvailable
    from cassandra.cluster import UnresolvableContactPoints as UnresolvableContactPoints
except DependencyException as error:
    raise MissingLibraryError(
        "cassandra-driver is installed without an event loop that works here: install cassandra-driver from a wheel, "
        f"or install libev before you build it from source ({error})"
    ) from None
