"""How long the tests with the marker `long` go on: as a continuous integration can afford, or several times that.

The environment variable POLARIS_SPARK_TIMES multiplies every number of rounds, as in `POLARIS_SPARK_TIMES=5 pytest
-m long`.
"""

from __future__ import annotations

import os

import pytest
from _pytest.mark import ParameterSet

TIMES = int(os.environ.get("POLARIS_SPARK_TIMES", "1"))
"""How many times as long as usual tests with the marker `long` go on."""


def long(rounds: int) -> ParameterSet:
    """A parameter for the same test with more rounds, which runs only with the marker `long`."""
    return pytest.param(rounds * TIMES, marks=pytest.mark.long)
