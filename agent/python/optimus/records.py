"""Records within bytes that hold whole ones: see :func:`places`."""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Optional, Tuple

from .index import HEAD, LENGTH_MASK, MAGIC, DataError, record_end

if TYPE_CHECKING:
    import numpy

Places = Tuple["numpy.ndarray", "numpy.ndarray", bytes]


def places(
    format: str, record_bytes: Optional[int], data: bytes, file: str, base: int
) -> Places:
    """Where the records of a block are: int64 arrays with their starts and stops.

    ``data``: the block's bytes; the places count from its beginning. Records that were
    written in parts are put together in the third value, which is to follow ``data``.
    ``file``, ``base``: where the block lies, for an error's text. Raises DataError.
    """
    import numpy

    size = len(data)
    if format == "fixed":
        assert record_bytes is not None, "an index of fixed records says their size"
        if size % record_bytes:
            raise DataError(f"{file} has changed: no whole records from byte {base} on")
        starts = numpy.arange(0, size, record_bytes, dtype=numpy.int64)
        return starts, starts + record_bytes, b""
    if format == "lines":
        stops = numpy.flatnonzero(numpy.frombuffer(data, dtype=numpy.uint8) == ord("\n"))
        if size and data[-1:] != b"\n":
            stops = numpy.append(stops, size)
        starts = numpy.concatenate([[0], stops[:-1] + 1]).astype(numpy.int64)
        return starts, stops.astype(numpy.int64), b""
    return _recordio(data, file, base)


def _recordio(data: bytes, file: str, base: int) -> Places:
    import numpy

    # An aligned magic word always begins a part, if the writer kept MXNet's rule: then all
    # parts are found at once. Where that does not add up, they are found one by one.
    words = numpy.frombuffer(data, dtype="<u4", count=len(data) // 4)
    heads = numpy.flatnonzero(words[:-1] == MAGIC)
    sizes = (words[heads + 1] & LENGTH_MASK).astype(numpy.int64)
    starts = heads.astype(numpy.int64) * 4 + HEAD.size
    ends = starts + (sizes + 3) // 4 * 4
    begins = numpy.append(heads.astype(numpy.int64) * 4, len(data))
    whole = len(heads) > 0 and begins[0] == 0 and numpy.array_equal(ends, begins[1:])
    if whole and not (words[heads + 1] > LENGTH_MASK).any():
        return starts, starts + sizes, b""
    return _one_by_one(data, file, base)


def _one_by_one(data: bytes, file: str, base: int) -> Places:
    import numpy

    starts: List[int] = []
    stops: List[int] = []
    tail = bytearray()
    at = 0
    while at < len(data):
        end = record_end(data, at, len(data), file, base)
        parts = []
        while at < end:
            size = HEAD.unpack_from(data, at)[1] & LENGTH_MASK
            parts.append((at + HEAD.size, at + HEAD.size + size))
            at += HEAD.size + -(-size // 4) * 4
        if len(parts) == 1:
            starts.append(parts[0][0])
            stops.append(parts[0][1])
        else:
            starts.append(len(data) + len(tail))
            tail += HEAD.pack(MAGIC, 0)[:4].join(data[low:high] for low, high in parts)
            stops.append(len(data) + len(tail))
    return (
        numpy.array(starts, dtype=numpy.int64), numpy.array(stops, dtype=numpy.int64), bytes(tail)
    )
