"""A store as a driver planned work on it: what it plans travels to executors, which open the store themselves."""

from __future__ import annotations

from polaris_spark.spark.options import StoreLocation
from polaris_spark.spark.reading import ReadStore, machine, open_for_reading, refuse_other_machine


class PlannedStore:
    """Where a store is, and the machine that planned to read it there. Can be pickled; its `repr` shows no secret."""

    def __init__(self, location: StoreLocation) -> None:
        """
        Args:
            location: of the store, with secrets looked up.
        """
        self.location = location
        self._planned_on = machine()

    def open(self) -> ReadStore:
        """The store, opened once per process and kept.

        Raises:
            InputError: the store serves one machine, and this is another one than planned.
            PolarisError: it cannot be opened (`open_for_reading` lists why).
        """
        refuse_other_machine(self.location, self._planned_on)
        return open_for_reading(self.location)

    def __repr__(self) -> str:
        return f"PlannedStore({self.location.uri})"
