"""The data set of a job, streamed to its workers chunk by chunk: see :class:`Dataset`."""

from __future__ import annotations

import json
import os
import threading
import time
import zlib
from collections import deque
from typing import (
    TYPE_CHECKING, Any, Callable, Deque, Dict, List, NamedTuple, Optional, Set, Tuple, Union,
)

from . import gateway
from . import index as indexing
from .chunks import PLACE_BYTES, AsyncChunks, Chunked, Layout, Segment, SyncChunks
from .environment import Settings, SettingsError
from .index import DataError, Index
from .records import places
from .sampler import Progress, Sampler

if TYPE_CHECKING:
    import numpy

__all__ = ["DataError", "Dataset"]

# Large enough to mix well, small beside a training process.
SHUFFLE_BYTES = 16 << 20
AHEAD_BYTES = 32 << 20
# An index file appears once an agent has scanned the set; this is how often a worker looks.
POLL_S = 0.05
# What the agent reads at once.
PIECE_BYTES_MAX = 8 << 20
# How long data may be away before the process ends, to be started again.
STORAGE_AWAY_S_MAX = 600.0
STORAGE_RETRY_S = 1.0


class Dataset:
    """Records of a file or a folder, of which each epoch gives every one exactly once.

    Made by :meth:`optimus.job.Job.dataset`, and given to the loop in place of a number
    of samples::

        data = job.dataset("data/train.rec", format="recordio")  # as the job file says
        for epoch in job.epochs(data):
            for batch in epoch:
                x, y = decode(batch.records)   # a list of bytes

    ``records``, ``chunks``, ``bytes``: the size of the set. :mod:`optimus.index` says what
    a record is in each format.

    A thread reads ahead of the loop. It holds at most ``memory_bytes_max`` bytes: the
    records that wait, a window that it shuffles, and one that the loop takes from; the
    batches that the script keeps come on top.

    Along the line of checkpoints that led to a state of the job, every record of every
    epoch was given out exactly once. What was read after the last checkpoint before a
    fault led nowhere, and is given out again.
    """

    def __init__(
        self, index: Index, source: Union["LocalSource", "RemoteSource"], identity: int,
        shuffle_bytes: int = SHUFFLE_BYTES, ahead_bytes: int = AHEAD_BYTES,
    ) -> None:
        """``identity``: checksum of the index, by which a checkpoint knows the set again."""
        if shuffle_bytes < 1 or ahead_bytes < 1:
            raise SettingsError("shuffle_bytes and ahead_bytes must be at least 1")
        self.index = index
        self.records = index.records
        self.chunks = len(index.chunks)
        self.bytes = index.bytes
        self.shuffle_bytes = shuffle_bytes
        self.ahead_bytes = ahead_bytes
        self._source = source
        self._identity = identity

    def __len__(self) -> int:
        return self.records

    @property
    def memory_bytes_max(self) -> int:
        """The most that reading holds, beside the batches that the loop has got."""
        block = max(
            block.bytes + PLACE_BYTES * block.records
            for chunk in self.index.chunks for block in chunk
        )
        window = max(self.shuffle_bytes, block)
        # Waiting; being read, with a block of it twice; being taken from.
        return max(self.ahead_bytes, window) + window + block + window

    def path(self, record: int) -> str:
        """The file that holds a record of a set of ``files``, below the set's folder."""
        if self.index.format != "files":
            raise ValueError(f"records of {self.index.format} have no file of their own")
        return self.index.files[record][0]

    def to_json(self, shuffle: bool) -> Dict[str, Any]:
        """What must stay the same as long as a job trains on the set."""
        return {
            "index_crc32": self._identity, "records": self.records, "shuffle": shuffle,
            "shuffle_bytes": self.shuffle_bytes,
        }

    def loop(
        self, settings: Settings, seed: int, rank: int, progress: Progress, shuffle: bool
    ) -> Sampler:
        """Batches of the set for one worker, read ahead."""
        layout = Layout(self.index, seed, shuffle, self.shuffle_bytes)
        kind = SyncChunks if settings.mode == "sync" else AsyncChunks
        loop = kind(
            layout, self.records, seed, rank, settings.workers, progress,
            settings.global_batch, settings.worker_batch,
        )
        loop.take = Feed(self._load, loop, settings.epochs_max, self.ahead_bytes).take
        loop.data = self.to_json(shuffle)
        return loop

    def _load(self, layout: Layout, epoch: int, segment: Segment) -> "Held":
        """Read a segment's window, and put its records in order."""
        import numpy

        window = segment.window
        content = bytearray()
        starts, stops = [], []
        for block in self.index.chunks[segment.chunk][window.first_block:window.last_block]:
            base = len(content)
            low, high = self._read(block, content)
            starts.append(low + base)
            stops.append(high + base)
        order = layout.shuffled(epoch, segment)
        first = self.index.firsts[segment.chunk] + window.start
        return Held(
            epoch, content, numpy.concatenate(starts)[order], numpy.concatenate(stops)[order],
            order + first,
        )

    def _read(
        self, block: indexing.Block, content: bytearray
    ) -> Tuple["numpy.ndarray", "numpy.ndarray"]:
        """Append a block's bytes; returns where its records are, from where they begin."""
        import numpy

        if self.index.format == "files":
            sizes = []
            for file in range(block.file, block.file + block.records):
                size = self.index.files[file][1]
                content += self._source.read(file, 0, size)
                sizes.append(size)
            stops = numpy.cumsum(numpy.array(sizes, dtype=numpy.int64))
            return stops - sizes, stops
        data = self._source.read(block.file, block.offset, block.bytes)
        name = self._source.name(block.file)
        if block.crc32 is not None and zlib.crc32(data) != block.crc32:
            raise DataError(
                f"{name} has changed or is damaged: the {block.bytes} bytes from byte "
                f"{block.offset} on are not what was indexed"
            )
        starts, stops, tail = places(
            self.index.format, self.index.record_bytes, data, name, block.offset
        )
        if len(starts) != block.records:
            raise DataError(
                f"{name} has changed: {len(starts)} records begin in the {block.bytes} bytes from "
                f"byte {block.offset} on, and {block.records} did when it was indexed"
            )
        content += data
        content += tail
        return starts, stops


class Held(NamedTuple):
    """Records of one window in the order of training, as places in its bytes."""

    epoch: int
    content: bytearray
    starts: "numpy.ndarray"
    stops: "numpy.ndarray"
    indices: "numpy.ndarray"

    @property
    def size(self) -> int:
        return len(self.content) + PLACE_BYTES * len(self.indices)

    def take(self, first: int, count: int) -> List[bytes]:
        """Copies of ``count`` records."""
        part = slice(first, first + count)
        view = memoryview(self.content)
        spans = zip(self.starts[part].tolist(), self.stops[part].tolist())
        return [view[start:stop].tobytes() for start, stop in spans]


class Feed:
    """Reads a worker's stream in a thread, as far ahead as ``ahead_bytes`` allow."""

    def __init__(
        self, load: Callable[[Layout, int, Segment], Held], loop: Chunked, epochs_max: int,
        ahead_bytes: int,
    ) -> None:
        self._load = load
        self._loop = loop
        self._first_epoch = loop.epoch
        self._epochs_max = epochs_max
        self._ahead_bytes = ahead_bytes
        self._changed = threading.Condition()
        self._waiting: Deque[Held] = deque()
        self._waiting_bytes = 0
        self._error: Optional[BaseException] = None
        self._thread: Optional[threading.Thread] = None
        self._held: Optional[Held] = None
        self._taken = 0
        self._last: Optional[Tuple["numpy.ndarray", List[bytes]]] = None

    def take(self, epoch: int, count: int) -> Tuple["numpy.ndarray", List[bytes]]:
        """The next records of an epoch, and which ones they are (int64 array).

        ``count`` 0: one that does not count, for a worker that has no share of a step.
        Raises DataError, or what else kept them from being read.
        """
        import numpy

        if count == 0:
            return self._stand_in()
        indices, records = [], []
        missing = count
        while missing:
            held = self._present(epoch)
            size = min(missing, len(held.indices) - self._taken)
            indices.append(held.indices[self._taken:self._taken + size])
            records += held.take(self._taken, size)
            self._taken += size
            missing -= size
        taken = numpy.concatenate(indices)
        self._last = (taken[-1:], records[-1:])
        return taken, records

    def _stand_in(self) -> Tuple["numpy.ndarray", List[bytes]]:
        if self._last is None:
            layout = self._loop.layout
            first = Segment(0, layout.windows(0)[0], 0, 1)
            held = self._load(layout, 0, first)
            self._last = (held.indices, held.take(0, 1))
        return self._last

    def _present(self, epoch: int) -> Held:
        held = self._held
        if held is None or self._taken == len(held.indices):
            self._held = None  # its memory is free before the next one's is taken
            self._held = held = self._next()
            self._taken = 0
        assert held.epoch == epoch, "a step's share is what its stream was dealt"
        return held

    def _next(self) -> Held:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="optimus-data", daemon=True)
            self._thread.start()
        with self._changed:
            while not self._waiting:
                if self._error is not None:
                    raise self._error
                self._changed.wait()
            held = self._waiting.popleft()
            self._waiting_bytes -= held.size
            self._changed.notify_all()
            return held

    def _run(self) -> None:
        try:
            layout = self._loop.layout
            for epoch in range(self._first_epoch, self._epochs_max):
                for segment in layout.segments(epoch, self._loop.stream(epoch)):
                    self._put(self._load(layout, epoch, segment))
            raise AssertionError("more records were asked for than the epochs have")
        except BaseException as error:  # pylint: disable=broad-except  (told to the loop)
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _put(self, held: Held) -> None:
        with self._changed:
            while self._waiting and self._waiting_bytes + held.size > self._ahead_bytes:
                self._changed.wait()
            self._waiting.append(held)
            self._waiting_bytes += held.size
            self._changed.notify_all()


class LocalSource:
    """Files of this machine, or of a shared mount, read with this process's own rights."""

    FILES_OPEN_MAX = 8

    def __init__(self, place: str, index: Index) -> None:
        self._place = place
        self._index = index
        self._open: Dict[int, int] = {}
        # The loop itself reads when it needs a record to stand in.
        self._lock = threading.Lock()

    def name(self, file: int) -> str:
        """The file's path, for errors."""
        path = self._index.files[file][0]
        return os.path.join(self._place, path) if path else self._place

    def read(self, file: int, offset: int, size: int) -> bytes:
        """Raises DataError where the file is not what was indexed, or cannot be read."""
        try:
            with self._lock:
                return self._read(self._descriptor(file), file, offset, size)
        except OSError as error:
            raise DataError(f"cannot read {self.name(file)}: {error.strerror}") from error

    def _read(self, descriptor: int, file: int, offset: int, size: int) -> bytes:
        parts, got = [], 0
        while got < size:
            part = os.pread(descriptor, size - got, offset + got)
            if not part:
                raise DataError(
                    f"{self.name(file)} has changed: it ends at byte {offset + got}, within what "
                    "was indexed"
                )
            parts.append(part)
            got += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _descriptor(self, file: int) -> int:
        if file in self._open:
            return self._open[file]
        while len(self._open) >= self.FILES_OPEN_MAX:
            os.close(self._open.pop(next(iter(self._open))))
        # The set's own path may be a link; within it none is followed.
        follow = 0 if self._index.files[file][0] == "" else os.O_NOFOLLOW
        descriptor = os.open(self.name(file), os.O_RDONLY | os.O_CLOEXEC | follow)
        self._open[file] = descriptor
        size, indexed = os.fstat(descriptor).st_size, self._index.files[file][1]
        if size != indexed:
            raise DataError(
                f"{self.name(file)} has changed: it has {size} bytes, and had {indexed} when it "
                "was indexed"
            )
        return descriptor


class RemoteSource:
    """Files that the agent reads for this process."""

    def __init__(self, url: str, index: Index) -> None:
        self._url = url.rstrip("/")
        self._index = index
        self._seen: Set[int] = set()

    def name(self, file: int) -> str:
        """The file's URL, for errors."""
        path = self._index.files[file][0]
        return f"{self._url}/{path}" if path else self._url

    def read(self, file: int, offset: int, size: int) -> bytes:
        """Raises DataError as :meth:`LocalSource.read` does.

        Storage that is away for a while is waited for: training cannot go on without.
        """
        parts = []
        while size or not parts:
            part = min(size, PIECE_BYTES_MAX)
            parts.append(self._piece(file, offset, part))
            offset += part
            size -= part
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _piece(self, file: int, offset: int, size: int) -> bytes:
        path, indexed = self._index.files[file]
        first = file not in self._seen
        request = {"op": "read", "file": path, "from": offset, "bytes": size, "whole": first}
        deadline = time.monotonic() + STORAGE_AWAY_S_MAX
        while True:
            try:
                answer, content = gateway.ask(request)
                break
            except gateway.StorageAway as error:
                if time.monotonic() >= deadline:
                    raise DataError(f"cannot read {self.name(file)}: {error}") from error
                time.sleep(STORAGE_RETRY_S)
            except (gateway.NotWhole, gateway.GatewayRefused) as error:
                raise DataError(f"{self.name(file)} has changed: {error}") from error
        if first and answer["length"] != indexed:
            raise DataError(
                f"{self.name(file)} has changed: it has {answer['length']} bytes, and had "
                f"{indexed} when it was indexed"
            )
        self._seen.add(file)
        return content


def open_dataset(
    settings: Settings, pause: Callable[[float], None], place: Optional[str] = None,
    format: str = "recordio", record_bytes: Optional[int] = None,
    chunk_bytes: int = indexing.CHUNK_BYTES, shuffle_bytes: int = SHUFFLE_BYTES,
    ahead_bytes: int = AHEAD_BYTES,
) -> Dataset:
    """The data set of a job, or of a script that runs alone.

    ``place`` (a file or a folder), ``format`` (one of :data:`optimus.index.FORMATS`),
    ``record_bytes`` and ``chunk_bytes`` are for the script alone. ``shuffle_bytes``: how
    much of a chunk is shuffled at once; the same in all generations. ``ahead_bytes``: how
    much may be read ahead of the loop. ``pause(seconds)`` passes the time until the agent
    has the index, and ends the process where the agent wants that.

    Raises DataError where the set is damaged, empty or not there, and SettingsError where
    nobody names one.
    """
    if not settings.distributed:
        if place is None:
            raise SettingsError("name the file or folder of the data set")
        index = indexing.scan(place, format, record_bytes, chunk_bytes)
        text = index.encode()
        source: Union[LocalSource, RemoteSource] = LocalSource(place, index)
    else:
        if settings.data is None:
            raise SettingsError(
                "the job has no data set: add [data] to its file, or update an agent before "
                "protocol 3, which brings none"
            )
        assert settings.directory is not None, "it is distributed"
        text = _await(settings.directory, pause)
        index = Index.decode(text)
        source = _source(settings.data, index)
    return Dataset(index, source, zlib.crc32(text), shuffle_bytes, ahead_bytes)


def check_same(
    before: Optional[Dict[str, Any]], source: Union[int, Dataset], shuffle: bool
) -> None:
    """Raises SettingsError unless a checkpoint's ``data`` is of this set in this order."""
    if not isinstance(source, Dataset):
        if before is not None:
            raise SettingsError("the checkpoint's epochs are of a data set; give it to the loop")
        return
    for name, value in source.to_json(shuffle).items():
        was = None if before is None else before.get(name)
        if was != value:
            raise SettingsError(
                f"the checkpoint is of another data set or another order of it: {name} was {was} "
                f"and is {value}"
            )


def _source(spec: str, index: Index) -> Union["LocalSource", "RemoteSource"]:
    try:
        url = json.loads(spec)["url"]
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"OPTIMUS_DATA is {spec!r}, which is not understood") from error
    if not url.startswith("file://"):
        return RemoteSource(url, index)
    # As everywhere in Optimus, the path is taken as it stands: no %20 for a space.
    return LocalSource(url[len("file://"):], index)


def _await(directory: str, pause: Callable[[float], None]) -> bytes:
    """The index, once the agent has it; raises DataError with the agent's words."""
    while True:
        for name, wrong in (("data-index.json", False), ("data-error.txt", True)):
            try:
                with open(os.path.join(directory, name), "rb") as file:
                    text = file.read()
            except FileNotFoundError:
                continue
            if wrong:
                raise DataError(text.decode("utf-8", "replace").strip())
            return text
        pause(POLL_S)
