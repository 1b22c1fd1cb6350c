"""Races of processes for one reference that run longer than those in the conformance kit."""

from __future__ import annotations

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.testing.processes import in_processes, increments_of_store_for
from polaris_spark.testing.stores import row
from tests.sizes import TIMES
from tests.stores import NETWORKED, StoreOn

PROCESSES, SECONDS = 8, 2.0 * TIMES


@pytest.mark.long
@pytest.mark.parametrize("database", NETWORKED)
def test_acknowledged_swaps_of_eight_processes_equal_the_final_count(
    store_on: StoreOn, database: str
) -> None:
    uri = store_on(database)
    backend = open_backend(uri)
    backend.setup()
    backend.insert_reference("realm", "counter", row(b"0"))
    tallies = in_processes(increments_of_store_for, [(uri, "realm", "counter", SECONDS)] * PROCESSES)
    found = backend.read_reference("realm", "counter")
    backend.close()
    done, perhaps = (sum(tally[i] for tally in tallies) for i in (0, 1))
    print(
        f"{database}: {done} swaps in {SECONDS:.0f} s by {PROCESSES} processes, {perhaps} of unknown outcome"
    )
    assert found is not None
    assert done <= int(found.value) <= done + perhaps
    assert min(tally.done for tally in tallies) > 0
