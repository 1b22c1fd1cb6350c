"""Vectorized decoding of the headers of object rows: each step reads one field of all rows.

This decodes only headers in the usual MessagePack form: a type name of at most 31 bytes, a low revision, and pointers
of nine bytes each. All other rows, including damaged rows, are marked as not decoded. Callers then decode these rows
individually with `objects.decode_header`, which raises errors for damaged rows.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from polaris_spark import objects

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

_SHORT_ARRAY, _LONG_ARRAY, _NUMBER = 0x90, 0xDC, 0xCF
"""MessagePack tags of: an array of up to 15 elements (length in the low four bits), an array of up to 65,535 elements
(length in the next two bytes), and a number of eight bytes."""

_TEXT_LENGTH = 0x1F
"""Bit mask of the length in the MessagePack tag of a string of up to 31 bytes."""

_POINTER_BYTES = 9
_DESCRIBED = 40
"""Maximum size of a row's encoded type and revision with their tags, in bytes, rounded up to 8-byte words."""

_PADDING = 64
"""Number of zero bytes after the last row. They ensure that reading a damaged row does not go beyond the buffer."""


class Pointers(NamedTuple):
    """The object ids that rows point to. `strong` and `weak` of a row are valid only if `decoded` is true for this
    row."""

    decoded: pa.BooleanArray
    strong: pa.ListArray
    weak: pa.ListArray


def types(starts: pa.BinaryArray) -> tuple[pa.StringArray, pa.Int32Array]:
    """Return the object type and revision of each row, from the first `objects.TYPE_BYTES` bytes of the row.

    Both are null for a row whose first bytes are not in the usual form. Each distinct pair is decoded only once.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    data, begins, ends = _rows(starts)
    headers = begins + objects.TAG.start
    lengths = data[headers + 1] & _TEXT_LENGTH
    described = _numbers(data, f"V{_DESCRIBED}")[headers].view(np.uint64).reshape(-1, _DESCRIBED // 8)
    described &= _kept()[lengths]
    whole = pa.array(headers + lengths + 3 <= ends)
    distinct = pa.Array.from_buffers(
        pa.binary(_DESCRIBED), len(starts), [None, pa.py_buffer(described)]
    ).dictionary_encode()
    decoded = [_type(one) for one in distinct.dictionary.to_pylist()]
    names, revisions = ([pair[i] for pair in decoded] for i in (0, 1))
    indices = pc.if_else(whole, distinct.indices, None)
    return pa.array(names, pa.string()).take(indices), pa.array(revisions, pa.int32()).take(indices)


def _type(described: bytes) -> tuple[str, int] | tuple[None, None]:
    end = objects.end_of_type(described[: objects.TAG.stop - objects.TAG.start])
    return (end and objects.decode_type(described[: end - objects.TAG.start])) or (None, None)


@cache
def _kept() -> NDArray[np.uint64]:
    """Return a byte mask for each length of the type name. It covers both tags, the name, and the revision after it."""
    import numpy as np

    ends = np.arange(_TEXT_LENGTH + 1)[:, None] + 3
    return np.where(np.arange(_DESCRIBED) < ends, 0xFF, 0).astype(np.uint8).view(np.uint64)


def pointers(starts: pa.BinaryArray) -> Pointers:
    """Return the pointers of each row, from the first bytes of the row.

    `decoded` is valid only for rows for which `types` returns a type. It is false if the header is longer than the
    given bytes.
    """
    import numpy as np
    import pyarrow as pa

    data, begins, ends = _rows(starts)
    headers = begins + objects.TAG.start
    header_ends = headers + _numbers(data, ">u4")[headers - 4]
    decoded = header_ends <= ends
    limits = np.minimum(header_ends, ends)
    after_type = headers + 3 + (data[headers + 1] & _TEXT_LENGTH)
    strong, fits, after = _ids(data, np.minimum(after_type, limits), limits)
    decoded &= fits
    weak, fits, after = _ids(data, after, limits)
    decoded &= fits & (after == limits)
    return Pointers(pa.array(decoded), strong, weak)


def _ids(
    data: NDArray[np.uint8], at: NDArray[np.int64], limits: NDArray[np.int64]
) -> tuple[pa.ListArray, NDArray[np.bool_], NDArray[np.int64]]:
    """Decode one array of ids in each row. The array of row i begins at byte `at[i]` and must end before `limits[i]`.

    Return for each row: the ids, whether the array has the expected form, and the offset of the array's end.
    """
    import numpy as np
    import pyarrow as pa

    tags = data[at]
    short = tags & 0xF0 == _SHORT_ARRAY
    counts = np.where(short, tags & 0x0F, _numbers(data, ">u2")[at + 1]).astype(np.int64)
    firsts = at + np.where(short, 1, 3)
    after = firsts + counts * _POINTER_BYTES
    fits = (short | (tags == _LONG_ARRAY)) & (after <= limits)
    counts[~fits] = 0
    offsets = np.concatenate(([0], np.cumsum(counts)))
    places = (
        np.repeat(firsts - offsets[:-1] * _POINTER_BYTES, counts) + np.arange(offsets[-1]) * _POINTER_BYTES
    )
    ids = _numbers(data, ">i8")[places + 1].astype(np.int64)
    wrong = (data[places] != _NUMBER) | (ids < 0)
    if wrong.any():
        fits[np.repeat(np.arange(len(at)), counts)[wrong]] = False
    lists = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(ids))
    return lists, fits, np.minimum(after, limits)


def _rows(values: pa.BinaryArray) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """Concatenate all values into one array of bytes, followed by `_PADDING` zero bytes. Return this array, and the
    offsets at which each value begins and ends."""
    import numpy as np

    _, offsets, data = values.buffers()
    if not len(values) or data is None:
        nothing = np.zeros(len(values), np.int64)
        return np.zeros(_PADDING, np.uint8), nothing, nothing
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(
        np.int64
    )
    held = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
    bounds -= bounds[0]
    return np.concatenate((held, np.zeros(_PADDING, np.uint8))), bounds[:-1], bounds[1:]


def _numbers(data: NDArray[np.uint8], type: str) -> NDArray[Any]:
    """Return an array whose element i is the number of this NumPy type that begins at byte i. It shares memory with
    `data`."""
    import numpy as np

    numbers: NDArray[Any] = np.ndarray(len(data) - np.dtype(type).itemsize + 1, type, data, strides=(1,))
    return numbers
