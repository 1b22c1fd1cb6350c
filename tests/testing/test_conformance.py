"""The conformance kit detects stores that break the contract, and its cases end."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, Split
from polaris_spark.errors import TryAgainError
from polaris_spark.testing.conformance import ServerConformance
from polaris_spark.testing.proxy import FaultyProxy


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


def test_a_scan_that_ends_silently_at_an_interruption_is_detected(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = FaultyProxy("127.0.0.1", 1)
    scan, cuts = backend.scan, list[None]()

    def ending(split: Split) -> Iterator[pa.RecordBatch]:
        for batch in scan(split):
            if len(cuts) == 1:
                cuts.append(None)
                return
            yield batch

    with proxy:
        monkeypatch.setattr(proxy, "cut_all", lambda: cuts.append(None))
        monkeypatch.setattr(backend, "scan", ending)
        case = ServerConformance().test_a_scan_whose_connections_are_cut_goes_on_or_is_to_be_tried_again
        with pytest.raises(AssertionError):
            case(proxy, backend, backend)
    assert len(cuts) == 2


def test_a_scan_that_returns_a_reference_again_after_a_swap_is_detected(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = backend.scan

    def again(split: Split) -> Iterator[pa.RecordBatch]:
        seen = pa.array([], pa.binary())
        for _ in range(2):
            for batch in scan(split):
                new = batch.filter(pc.invert(pc.is_in(batch["version"], seen)))
                seen = pa.concat_arrays([seen, new["version"]])
                yield new

    monkeypatch.setattr(backend, "scan", again)
    with pytest.raises(AssertionError):
        ServerConformance().test_references_that_are_swapped_during_a_scan_are_found_once(backend)


def test_a_scan_of_batches_without_bound_is_reported(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = backend.scan

    def at_once(split: Split) -> Iterator[pa.RecordBatch]:
        yield pa.Table.from_batches(scan(split)).combine_chunks().to_batches()[0]

    monkeypatch.setattr(backend, "scan", at_once)
    with pytest.raises(
        AssertionError,
        match=r"in 1 batch; a backend should end a batch when it reaches BATCH_BYTES \(4194304 bytes\)",
    ):
        ServerConformance().test_references_that_are_swapped_during_a_scan_are_found_once(backend)
