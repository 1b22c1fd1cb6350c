"""Vectorized decoding of row headers: each step reads one field of every row.

Only headers in the form that the encoder in `polaris_spark.objects` writes (MessagePack) are decoded: a short type, a
low revision, and pointers of nine bytes each, the size of the ids that polaris_spark generates. All other rows,
including damaged rows, are marked as not decoded. `objects.decode_header` then decodes them one by one, and raises
errors for damaged rows.
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
"""MessagePack tags: arrays of up to 15 elements (four bits), arrays of up to 65,535 (two bytes), eight-byte numbers."""

_TEXT_LENGTH = 0x1F
"""Bit mask of the length in the tag of a short string."""

_POINTER_BYTES = 9
_DESCRIBED = 40
"""Size of two tags, a short string and a low revision, in bytes, rounded up to whole words."""

_PADDING = 64
"""Zero bytes after the last row, so that reads in a damaged row stay within the buffer."""


class Pointers(NamedTuple):
    """The ids that rows point to. The lists of a row are valid only if its `decoded` is true."""

    decoded: pa.BooleanArray
    strong: pa.ListArray
    weak: pa.ListArray


def types(starts: pa.BinaryArray) -> tuple[pa.StringArray, pa.Int32Array]:
    """Return types and revisions from the first `objects.TYPE_BYTES` bytes of rows.

    Each distinct pair is decoded once. Both are null for a row whose first bytes do not contain them in a known form.
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
    """Return a byte mask for each string length, with ones for the tags, the string and the byte after it."""
    import numpy as np

    ends = np.arange(_TEXT_LENGTH + 1)[:, None] + 3
    return np.where(np.arange(_DESCRIBED) < ends, 0xFF, 0).astype(np.uint8).view(np.uint64)


def pointers(starts: pa.BinaryArray) -> Pointers:
    """Return the pointers from the first bytes of rows.

    `decoded` is valid only for rows whose type `types` returns. A header that is longer than the given bytes is not
    decoded.
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
    """Decode one array of ids in each row; the arrays begin at the offsets `at`.

    Return the ids, whether each array has the expected form, and the offset of each array's end.
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
    """Return the bytes of all values, padded, and the offsets in them at which each value begins and ends."""
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
    """Return a view of the data in which element i is the number of the given type that begins at byte i."""
    import numpy as np

    numbers: NDArray[Any] = np.ndarray(len(data) - np.dtype(type).itemsize + 1, type, data, strides=(1,))
    return numbers
