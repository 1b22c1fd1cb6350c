"""Messages between competing processes: the object `Intent`, its parts, and the answer to it (`intents`)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from polaris_spark.backends.base import ReferenceRow
from polaris_spark.commits.group import Memo
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import Effects, Point, Range
from polaris_spark.index import Entry
from polaris_spark.objects import ObjectId, ObjectRow, object_type


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One change in an intent: everything that its process read to make it (`points`, `ranges`), and everything that it
    writes (`puts`, `entries`, `rows`)."""

    operation: bytes
    principal: str
    digest: bytes
    points: tuple[Point, ...]
    ranges: tuple[Range, ...]
    puts: tuple[tuple[str, bytes, Entry | None], ...]
    entries: tuple[LogEntry, ...]
    rows: tuple[ObjectRow, ...]
    """The rows of the new objects. The commit that contains the part writes them."""
    request: bytes = b""
    """The request for the change (`Change.as_request`). If data that the change read has changed since, the committing
    process applies this request. Empty if no other process can apply it."""

    def memo(self, fence: int) -> Memo:
        """Return the outcome of the change, without its objects."""
        effects = Effects()
        effects.puts, effects.entries = list(self.puts), list(self.entries)
        return Memo([*self.points, *self.ranges], effects, None, fence)


@object_type("intent", revision=1)
class Intent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The applied changes of one process that the next commit is to contain."""

    fence: int
    """The reference's fence when the changes were applied."""
    following: ObjectId
    """Id of the process's next intent. It was made together with this intent, so its time is this intent's time."""
    parts: bytes
    """The encoded `Part`s. They are encoded on their own, so that no pointer in them counts as a pointer of the intent.
    """


Outcomes = Sequence[bool | list[LogEntry]]
"""The outcome of each change of an intent: True if a commit contains the change as its process applied it; the change's
log entries if another process applied its request; False if no commit contains it."""


def request_id(intent: int, position: int) -> bytes:
    """Return the id for the log entries of a change whose request another process applied, if the client gave no id: a
    UUIDv8 (RFC 9562, 5.8) of the intent's id and the change's position in the intent."""
    id = bytearray(hashlib.sha256(f"{intent} {position}".encode()).digest()[:16])
    id[6], id[8] = 0x80 | id[6] & 0x0F, 0x80 | id[8] & 0x3F
    return bytes(id)


class Answer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answer to an intent, from the process that decided it. The receiver then needs no read of the database."""

    row: ReferenceRow | None
    """The reference's new row. None in an answer that is written to the database, because its reader has read the row.
    """
    entries: dict[int, tuple[LogEntry, ...]]
    """The log entries of each change whose request was applied, by its position in the intent."""
    rows: tuple[ObjectRow, ...]
    """Rows of the objects of these changes, and of objects of the last commits to which they point."""


@object_type("answer", revision=1)
class WrittenAnswer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answer to an intent of a process that messages do not reach. The commit that decides the intent writes it,
    and only a `Slot` names it."""

    answer: bytes
    """An encoded `Answer`. It is encoded on its own, so that no pointer in it counts as a pointer of this object."""


APPLIED, REQUEST = 1, 2
"""Values of a byte of `Slot.outcomes`."""
encode = msgspec.msgpack.Encoder().encode
decode_parts = msgspec.msgpack.Decoder(tuple[Part, ...]).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode
