"""Store access for planned tasks: the driver sends the store's location, and each executor opens the store itself."""

from __future__ import annotations

from polaris_spark.access.scopes import Scope
from polaris_spark.spark.options import StoreLocation
from polaris_spark.spark.realm_reader import ReadStore, machine, open_for_reading, refuse_other_machine


class PlannedStore:
    """Location of a store, and id of the machine that planned the read. Can be pickled; the `repr` shows no secret."""

    def __init__(self, location: StoreLocation, scope: Scope | None = None) -> None:
        """
        Args:
            location: location of the store; its secrets are values, not names of environment variables.
            scope: what the reading principal may see; None if it may see everything.
        """
        self.location = location
        self._scope = scope
        self._planned_on = machine()

    def open(self) -> ReadStore:
        """Open the store, or return the store that this process has already opened.

        Raises:
            InputError: the store is in files, and another machine planned the read.
            PolarisError: the store cannot be opened (`open_for_reading` lists the reasons).
        """
        refuse_other_machine(self.location, self._planned_on)
        return open_for_reading(self.location).within(self._scope)

    def __repr__(self) -> str:
        return f"PlannedStore({self.location.uri})"
