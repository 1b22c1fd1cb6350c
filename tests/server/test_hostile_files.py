"""Random requests, links and metadata files of a hostile client never cause files of others to be deleted."""

from __future__ import annotations

import os
import random
import time
from itertools import count
from pathlib import Path

import pytest

from tests.server.hostile_world import play
from tests.sizes import long


@pytest.mark.parametrize("seconds", [5, long(10)])
def test_no_request_and_no_job_deletes_files_that_are_not_the_tables_own(
    seconds: int, tmp_path: Path
) -> None:
    first = os.environ.get("POLARIS_SPARK_SEED") or str(random.SystemRandom().randrange(10**9))
    started = time.monotonic()
    for number in count():
        seed = f"{first}-{number}"
        print(f"POLARIS_SPARK_SEED={first}, world {seed}")  # shown if the test fails
        play(tmp_path / str(number), seed, steps=100)
        if time.monotonic() - started > seconds:
            break
