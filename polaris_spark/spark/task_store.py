"""Store access for planned tasks: the driver sends the store's location, and each executor opens the store itself."""

from __future__ import annotations

from polaris_spark.spark.options import StoreLocation
from polaris_spark.spark.realm_reader import ReadStore, machine, open_for_reading, refuse_other_machine


class PlannedStore:
    """Location of a store, and the machine that planned the read. Can be pickled; its `repr` shows no secret."""

    def __init__(self, location: StoreLocation) -> None:
        """
        Args:
            location: location of the store, with resolved secrets.
        """
        self.location = location
        self._planned_on = machine()

    def open(self) -> ReadStore:
        """Return the store. Each process opens a store once, and keeps it open.

        Raises:
            InputError: the store is in files, and this machine is not the one that planned the read.
            PolarisError: the store cannot be opened (`open_for_reading` lists the reasons).
        """
        refuse_other_machine(self.location, self._planned_on)
        return open_for_reading(self.location)

    def __repr__(self) -> str:
        return f"PlannedStore({self.location.uri})"
