"""Requests with many rows: statuses of single entries, answers in several pieces, and streams that end early."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.cloud.bigtable_v2.types import MutateRowsRequest, MutateRowsResponse, ReadRowsResponse

from polaris_spark.backends.base import Backend, ObjectKey, ObjectRow
from polaris_spark.errors import OutcomeUnknownError, StateError, TryAgainError
from polaris_spark.testing.processes import rows
from tests.backends.bigtable.relay import Forward, Relay, lose, refuse

_ROWS = [ObjectRow(id, 0, b"%d" % id) for id in range(100)]
_KEYS = [ObjectKey(id) for id in range(100)]
_WRITTEN = {ObjectKey(row.id): row.value for row in _ROWS}

_UNAVAILABLE, _INVALID = 14, 3


class Half:
    """Applies every second entry of a bulk mutation, and not the others."""

    def __init__(self, status: int | None, times: int) -> None:
        """
        Args:
            status: what is told of the others; None for nothing.
            times: how often; then everything is applied.
        """
        self.sizes: list[int] = []
        self._status, self._times = status, times

    def __call__(self, request: bytes, forward: Forward) -> Iterator[bytes]:
        asked = MutateRowsRequest.deserialize(request)
        self.sizes.append(len(asked.entries))
        if len(self.sizes) > self._times:
            yield from forward(request)
            return
        failed = range(1, len(asked.entries), 2)
        some = MutateRowsRequest(table_name=asked.table_name, entries=asked.entries[::2])
        told = [*forward(MutateRowsRequest.serialize(some))]
        assert len(MutateRowsResponse.deserialize(told[0]).entries) == len(some.entries)
        entries = [{"index": n, "status": {"code": 0}} for n in range(0, len(asked.entries), 2)]
        if self._status is not None:
            entries += [{"index": n, "status": {"code": self._status, "message": "no"}} for n in failed]
        # In two messages, the second of which tells of the first entries.
        for part in (entries[len(entries) // 2 :], entries[: len(entries) // 2]):
            yield MutateRowsResponse.serialize(MutateRowsResponse(entries=part))


@pytest.mark.parametrize("status", [_UNAVAILABLE, None])
def test_only_failed_entries_are_sent_again(far: Backend, relay: Relay, status: int | None) -> None:
    half = relay.rules["MutateRows"] = Half(status, 3)
    far.write_objects("realm", _ROWS)
    assert half.sizes == [100, 50, 25, 12]  # type: ignore[attr-defined]  # a rule of ours
    assert far.read_objects("realm", _KEYS) == _WRITTEN


def test_failed_entries_of_a_delete_are_sent_again(far: Backend, relay: Relay) -> None:
    far.write_objects("realm", _ROWS)
    relay.rules["MutateRows"] = Half(_UNAVAILABLE, 2)
    far.delete_objects("realm", _KEYS)
    assert far.read_objects("realm", _KEYS) == {}


def test_a_permanently_refused_entry_is_reported_at_once(far: Backend, relay: Relay) -> None:
    half = relay.rules["MutateRows"] = Half(_INVALID, 1)
    with pytest.raises(StateError, match="50 of 100 rows were not changed"):
        far.write_objects("realm", _ROWS)
    assert half.sizes == [100]  # type: ignore[attr-defined]  # a rule of ours


def test_entries_that_never_succeed_leave_the_outcome_in_doubt(hasty: Backend, relay: Relay) -> None:
    def fail(request: bytes, _: Forward) -> Iterator[bytes]:
        status = {"code": _UNAVAILABLE, "message": "moving"}
        entries = [
            {"index": n, "status": status} for n in range(len(MutateRowsRequest.deserialize(request).entries))
        ]
        yield MutateRowsResponse.serialize(MutateRowsResponse(entries=entries))

    relay.rules["MutateRows"] = fail
    with pytest.raises(OutcomeUnknownError, match="100 of 100 rows were not changed, one because of: moving"):
        hasty.write_objects("realm", _ROWS)


def test_a_write_that_the_server_has_no_capacity_for_changes_nothing(
    far: Backend, hasty: Backend, relay: Relay
) -> None:
    relay.rules["MutateRows"] = refuse("RESOURCE_EXHAUSTED")
    with pytest.raises(TryAgainError, match="no capacity"):
        hasty.write_objects("realm", _ROWS)
    del relay.rules["MutateRows"]
    assert far.read_objects("realm", _KEYS) == {}


def test_a_write_has_an_unknown_outcome_if_an_earlier_answer_was_lost(
    far: Backend, hasty: Backend, relay: Relay
) -> None:
    lost = lose("UNAVAILABLE")

    def first_lose_then_refuse(request: bytes, forward: Forward) -> Iterator[bytes]:
        relay.rules["MutateRows"] = refuse("RESOURCE_EXHAUSTED")
        return lost(request, forward)

    relay.rules["MutateRows"] = first_lose_then_refuse
    with pytest.raises(OutcomeUnknownError):
        hasty.write_objects("realm", _ROWS[:1])
    assert far.read_objects("realm", _KEYS) == {_KEYS[0]: b"0"}


def cut_in_pieces(request: bytes, forward: Forward) -> Iterator[bytes]:
    """Return values in pieces of three bytes. Each answer begins with an incomplete copy of its first row, which is
    then reset."""
    for message in forward(request):
        answer = ReadRowsResponse.deserialize(message)
        pieces = [piece for chunk in answer.chunks for piece in in_pieces(chunk)]
        begun = [next(in_pieces(chunk)) for chunk in answer.chunks[:1]]
        for piece in begun:
            piece.commit_row = False
        begun.append(ReadRowsResponse.CellChunk(reset_row=True))
        for piece in (*begun, *pieces):
            yield ReadRowsResponse.serialize(ReadRowsResponse(chunks=[piece]))


def in_pieces(chunk: ReadRowsResponse.CellChunk) -> Iterator[ReadRowsResponse.CellChunk]:
    value = chunk.value
    for start in range(0, max(len(value), 1), 3):
        last = start + 3 >= len(value)
        piece = ReadRowsResponse.CellChunk(value=value[start : start + 3])
        if start == 0:
            piece.row_key, piece.family_name, piece.qualifier = (
                chunk.row_key,
                chunk.family_name,
                chunk.qualifier,
            )
        if last:
            piece.commit_row = chunk.commit_row
        else:
            piece.value_size = len(value)
        yield piece


def test_rows_that_come_in_pieces_are_put_together(far: Backend, relay: Relay) -> None:
    written = [ObjectRow(id, 0, bytes(range(id))) for id in range(20)]
    far.write_objects("realm", written)
    relay.rules["ReadRows"] = cut_in_pieces
    found = far.read_objects("realm", [ObjectKey(id) for id in range(25)])
    assert found == {ObjectKey(row.id): row.value for row in written}
    scanned = rows(far, far.splits("objects", ["realm"], 1))
    assert sorted(scanned) == [("realm", row.id, 0, row.value) for row in written]


def test_a_scan_goes_on_after_its_last_row_when_the_stream_breaks_off(far: Backend, relay: Relay) -> None:
    far.write_objects("realm", [ObjectRow(id, 0, b"x") for id in range(200)])
    splits = far.splits("objects", ["realm"], 1)

    def break_off(request: bytes, forward: Forward) -> Iterator[bytes]:
        for number, message in enumerate(forward(request)):
            if number == 30:
                yield from refuse("UNAVAILABLE")(request, forward)
            yield message

    relay.rules["ReadRows"] = break_off
    found = [row[1] for row in rows(far, splits)]
    assert sorted(found) == list(range(200))  # type: ignore[type-var]  # ids are integers
    assert relay.seen["ReadRows"] >= 7


def test_a_scan_that_lasts_longer_than_an_attempt_goes_on_over_the_same_connections(
    far: Backend, relay: Relay
) -> None:
    far.write_objects("realm", [ObjectRow(id, 0, b"x") for id in range(20)])
    splits = far.splits("objects", ["realm"], 1)
    channels = list(far._calls._channels)  # type: ignore[attr-defined]

    def end_at_the_deadline(request: bytes, forward: Forward) -> Iterator[bytes]:
        for number, message in enumerate(forward(request)):
            if number == 3:
                yield from refuse("DEADLINE_EXCEEDED")(request, forward)
            yield message

    relay.rules["ReadRows"] = end_at_the_deadline
    assert len(rows(far, splits)) == 20
    assert far._calls._channels == channels  # type: ignore[attr-defined]


def test_a_scan_without_progress_fails(hasty: Backend, relay: Relay) -> None:
    splits = hasty.splits("objects", ["realm"], 1)
    relay.rules["ReadRows"] = refuse("UNAVAILABLE")
    with pytest.raises(TryAgainError, match="UNAVAILABLE"):
        rows(hasty, splits)


def test_batches_stay_below_the_limits_of_one_request(far: Backend, relay: Relay) -> None:
    far.write_objects("realm", [ObjectRow(id, 0, b"x" * 300_000) for id in range(40)])
    assert relay.seen["MutateRows"] == 4
    relay.seen.clear()
    far.write_objects("realm", [ObjectRow(id, 0, b"x") for id in range(100, 4_100)])
    assert relay.seen["MutateRows"] == 2
    assert len(far.read_objects("realm", [ObjectKey(id) for id in range(4_100)])) == 4_040
    assert relay.seen["ReadRows"] == 17
