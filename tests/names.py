"""Names that earlier releases accepted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock


@contextlib.contextmanager
def unchecked_names() -> Iterator[None]:
    """Allow any name in this process, like releases without rules for names."""
    with (
        mock.patch("polaris_spark.catalog.entities.entities.problem_of_part", return_value=None),
        mock.patch("polaris_spark.catalog.metadata.table_snapshots.problem_of", return_value=None),
    ):
        yield
