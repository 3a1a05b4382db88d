"""The index of a data set: which bytes of which file hold which records.

Agents make it (``optimus-agent index-data``), once for all workers and generations of a
job; :func:`scan` makes the same one for a script that runs alone.

Formats
-------

``recordio``
    MXNet's own: parts of a little-endian magic word 0xced7230a, a word with the kind of
    the part (3 bits) and its length (29 bits), and the content, padded to a multiple of
    four bytes. A record is one part of kind 0, or parts of kinds 1, 2, …, 3 between
    which a magic word was left out. Files ``.idx`` and ``.lst`` beside are passed over.
``lines``
    A record is a line without its ``\\n``; a file's last line need not have one. An
    empty line is an empty record.
``fixed``
    Every record has ``record_bytes`` bytes, and every file a multiple of that.
``files``
    A record is a whole file.

Files are taken from the data set's folder and all below it, in the order of their
paths; names that begin with ``.`` or ``_`` are passed over, and links are refused.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
import struct
import zlib
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

SCHEMA = "optimus.data/1"
FORMATS = ("recordio", "lines", "fixed", "files")
NAME = "index.json"

MAGIC = 0xCED7230A
HEAD = struct.Struct("<II")
LENGTH_MASK = (1 << 29) - 1

CHUNK_BYTES = 128 << 20
BLOCK_BYTES = 4 << 20
BLOCK_RECORDS_MAX = 1 << 16
RECORD_BYTES_MAX = 1 << 29
# Blocks with a larger record have no checksum: an agent's scan does not read them.
SUMMED_BYTES_MAX = 256 << 10


class DataError(Exception):
    """A data set that cannot be used; the text names the file and the place in it."""


class Block(NamedTuple):
    """Successive records: of one file, or (``files``) whole files from ``file`` on."""

    file: int
    offset: int
    bytes: int
    records: int
    crc32: Optional[int]


class Index:
    """The chunks of a data set.

    ``files``: (path below the data set, bytes). ``chunks``: the blocks of each.
    ``counts``: the records of each chunk. ``firsts``: the number of each one's first
    record in the whole set.
    """

    def __init__(
        self, format: str, record_bytes: Optional[int], chunk_bytes: int,
        files: List[Tuple[str, int]], chunks: List[List[Block]],
    ) -> None:
        self.format = format
        self.record_bytes = record_bytes
        self.chunk_bytes = chunk_bytes
        self.files = files
        self.chunks = chunks
        self.counts = [sum(block.records for block in chunk) for chunk in chunks]
        self.firsts: List[int] = []
        self.records = 0
        for count in self.counts:
            self.firsts.append(self.records)
            self.records += count
        self.bytes = sum(size for _, size in files)

    def to_json(self) -> Dict[str, Any]:
        """The document, as :meth:`decode` takes it."""
        return {
            "schema": SCHEMA, "format": self.format, "record_bytes": self.record_bytes,
            "chunk_bytes": self.chunk_bytes, "records": self.records, "bytes": self.bytes,
            "files": [{"path": path, "bytes": size} for path, size in self.files],
            "chunks": [[list(block) for block in chunk] for chunk in self.chunks],
        }

    def encode(self) -> bytes:
        """The document, byte for byte as an agent writes it."""
        return json.dumps(
            self.to_json(), separators=(",", ":"), ensure_ascii=False
        ).encode("utf-8")

    @classmethod
    def decode(cls, text: bytes) -> "Index":
        """Raises DataError where the text is no index."""
        try:
            document = json.loads(text)
            if document["schema"] != SCHEMA or document["format"] not in FORMATS:
                raise ValueError(f"schema {document['schema']!r}, format {document['format']!r}")
            index = cls(
                document["format"], document["record_bytes"], document["chunk_bytes"],
                [(file["path"], int(file["bytes"])) for file in document["files"]],
                [[Block(*block) for block in chunk] for chunk in document["chunks"]],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"the data set's index is not understood: {error}") from error
        if index.records != document["records"] or index.records < 1:
            raise DataError("the data set's index does not add up")
        return index


def scan(
    place: str, format: str, record_bytes: Optional[int] = None, chunk_bytes: int = CHUNK_BYTES
) -> Index:
    """Index a local file or folder; one that was imported brings its own.

    Raises DataError where it is damaged, empty or not there.
    """
    if format not in FORMATS or (format == "fixed") != bool(record_bytes):
        raise DataError(
            f"format {format!r} with record_bytes {record_bytes!r}: give one of "
            f"{', '.join(FORMATS)}, and the bytes of a record with fixed alone"
        )
    own = _own_index(place)
    if own is not None:
        if (own.format, own.record_bytes) != (format, record_bytes):
            raise DataError(f"{place} was imported as {own.format}, and is asked for as {format}")
        return own
    files = [
        (path, size) for path, size in _files(place)
        if format != "recordio" or not path.endswith((".idx", ".lst"))
    ]
    builder = _Builder(format, chunk_bytes)
    for number, (path, size) in enumerate(files):
        whole = os.path.join(place, path) if path else place
        if format == "files":
            builder.add(number, 0, size, None)
            continue
        if not size:
            continue
        with open(whole, "rb") as file, mmap.mmap(
            file.fileno(), size, access=mmap.ACCESS_READ
        ) as content:
            for start, stop in _records(content, size, format, record_bytes, whole):
                if stop - start > RECORD_BYTES_MAX:
                    raise DataError(
                        f"{whole} has a record of {stop - start} bytes at byte {start}: too large"
                    )
                builder.add(number, start, stop - start, content)
            builder.close_block()
    chunks = builder.finish()
    if not chunks:
        raise DataError(f"{place} cannot be used as a data set: it has no records")
    return Index(format, record_bytes, chunk_bytes, files, chunks)


def _own_index(place: str) -> Optional[Index]:
    try:
        with open(os.path.join(place, NAME), "rb") as file:
            text = file.read()
    except OSError:
        return None
    return Index.decode(text) if b'"optimus.data/' in text[:256] else None


def _files(place: str) -> List[Tuple[str, int]]:
    """(path below the place, bytes) of every file, by path."""
    try:
        if not stat.S_ISDIR(os.stat(place).st_mode):
            return [("", os.stat(place).st_size)]
        return sorted(
            _below(place, ""), key=lambda found: found[0].encode("utf-8", "surrogateescape")
        )
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from error


def _below(place: str, folder: str) -> Iterator[Tuple[str, int]]:
    with os.scandir(os.path.join(place, folder)) as entries:
        for entry in entries:
            if entry.name.startswith((".", "_")):
                continue
            path = os.path.join(folder, entry.name)
            if entry.is_dir(follow_symlinks=False):
                yield from _below(place, path)
            elif entry.is_file(follow_symlinks=False):
                yield path, entry.stat().st_size
            else:
                raise DataError(f"{entry.path} is a link, a pipe or a device, not a plain file")


def _records(
    content: mmap.mmap, size: int, format: str, record_bytes: Optional[int], whole: str
) -> Iterator[Tuple[int, int]]:
    """Where each record of a file begins and ends."""
    if format == "fixed":
        assert record_bytes is not None, "checked by scan"
        if size % record_bytes:
            place = size - size % record_bytes
            raise DataError(
                f"{whole} is damaged at byte {place}: the last record has fewer than "
                f"{record_bytes} bytes"
            )
        yield from ((at, at + record_bytes) for at in range(0, size, record_bytes))
        return
    at = 0
    while at < size:
        if format == "lines":
            end = content.find(b"\n", at) + 1 or size
        else:
            end = record_end(content, at, size, whole, 0)
        yield at, end
        at = end


def record_end(content: Any, start: int, size: int, file: str, base: int) -> int:
    """Where the RecordIO record ends that begins at ``start`` of ``size`` bytes.

    ``base``: where the content begins in the file, for the error alone.
    """
    at = start
    while True:
        if size - at < HEAD.size:
            problem = "it ends within the head of a record"
            break
        magic, word = HEAD.unpack_from(content, at)
        kind = word >> 29
        if magic != MAGIC:
            problem = f"no RecordIO record begins at byte {base + at}"
            break
        if kind not in ((0, 1) if at == start else (2, 3)):
            problem = f"a part of kind {kind} stands at byte {base + at}, out of order"
            break
        at += HEAD.size + -(-(word & LENGTH_MASK) // 4) * 4
        if at > size:
            problem = f"its record reaches to byte {base + at}"
            break
        if kind in (0, 3):
            return at
    raise DataError(f"{file} is damaged at byte {base + start}: {problem}")


class _Builder:
    """Puts records together to blocks and chunks, by the rules of the agent's scan."""

    def __init__(self, format: str, chunk_bytes: int) -> None:
        self._format = format
        self._chunk_bytes = chunk_bytes
        self._chunks: List[List[Block]] = []
        self._chunk: List[Block] = []
        self._filled = 0
        self._open: Optional[List[int]] = None  # file, offset, bytes, records, summed
        self._content: Any = None

    def add(self, file: int, offset: int, size: int, content: Any) -> None:
        """A record; ``content``: its whole file, as far as that is read."""
        if self._filled + size > self._chunk_bytes and (self._chunk or self._open):
            self.close_block()
            self._chunks.append(self._chunk)
            self._chunk, self._filled = [], 0
        block = self._open
        if block is not None and (
            block[2] + size > BLOCK_BYTES or block[3] >= BLOCK_RECORDS_MAX
        ):
            self.close_block()
        if self._open is None:
            self._open = [file, offset, 0, 0, 1]
            self._content = content
        self._open[2] += size
        self._open[3] += 1
        self._open[4] &= content is not None and size <= SUMMED_BYTES_MAX
        self._filled += size

    def close_block(self) -> None:
        if self._open is not None:
            file, offset, size, records, summed = self._open
            crc = zlib.crc32(self._content[offset:offset + size]) if summed else None
            self._chunk.append(Block(file, offset, size, records, crc))
            self._open, self._content = None, None

    def finish(self) -> List[List[Block]]:
        self.close_block()
        return self._chunks + ([self._chunk] if self._chunk else [])
