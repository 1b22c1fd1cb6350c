"""The names used from `cassandra.cluster`. Importing that module fails if the driver has no event loop."""

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
        "cassandra-driver is installed without an event loop that works here: install a wheel of it, or libev before "
        f"building it ({error})"
    ) from None
