"""Stores that break the contract are found out by the kit's cases, which come to an end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend
from polaris_spark.errors import TryAgainError
from polaris_spark.testing.conformance import ServerConformance


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    backend = open_backend(f"memory:{request.node.name}")
    backend.setup()
    yield backend
    backend.close()


def test_a_writer_that_fails_ends_its_reader(
    request: pytest.FixtureRequest, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, left = backend.write_and_swap, iter(range(20))

    def failing(*arguments: object) -> object:
        if next(left, None) is None:
            raise TryAgainError("busy")
        return write(*arguments)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(backend, "write_and_swap", failing)
    with pytest.raises(TryAgainError, match="busy"):
        ServerConformance().test_a_reader_never_sees_a_swap_without_its_rows(
            f"memory:{request.node.name}", backend
        )
