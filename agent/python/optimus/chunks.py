"""Which records of a chunked data set a worker trains on in which step.

Every epoch lays the chunks out one behind the other, in an order that is a function of
(seed, epoch), and shuffles the records of each *window* of a chunk by a function of
(seed, epoch, chunk, window). A position counts along that line, as in :mod:`sampler`,
so that "what is left of an epoch" is again a set of ranges, whatever the number of
workers was so far. What is left of each chunk goes round-robin to the workers whenever
a generation begins: each reads its pieces as one stream, from front to back.

Shares are equal: whoever has its share passes the rest of a chunk on to the next, so a
chunk that is dealt out last is split. Synchronous workers so make the same number of
steps, each with its part of the global batch; only the last step of an epoch may leave
a worker without a record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Dict, List, NamedTuple, Sequence, Tuple

from .index import Index
from .sampler import AsyncSampler, Batch, Progress, Range, Sampler, cut, join

if TYPE_CHECKING:
    import numpy

# What the places of one record take in memory, beside its bytes.
PLACE_BYTES = 24


class Window(NamedTuple):
    """Successive blocks of a chunk, whose records are shuffled among each other.

    ``start``, ``stop``: the records, counted within the chunk. ``first_block``,
    ``last_block``: the blocks [first, last) of the chunk that hold them.
    """

    start: int
    stop: int
    first_block: int
    last_block: int


class Segment(NamedTuple):
    """Records of one window, as positions within it: [start, stop)."""

    chunk: int
    window: Window
    start: int
    stop: int


class Layout:
    """The order of a data set's records, in every epoch."""

    def __init__(self, index: Index, seed: int, shuffle: bool, window_bytes: int) -> None:
        self.index = index
        self._seed = seed % 2**32
        self._shuffle = shuffle
        self._window_bytes = window_bytes
        self._windows: Dict[int, List[Window]] = {}

    def order(self, epoch: int) -> List[int]:
        """The chunks in the order of an epoch."""
        import numpy

        count = len(self.index.chunks)
        if not self._shuffle:
            return list(range(count))
        return numpy.random.RandomState([self._seed, epoch]).permutation(count).tolist()

    def chunks(self, epoch: int) -> List[Tuple[int, int, int]]:
        """Chunk, first position and end, in the order of an epoch."""
        spans, position = [], 0
        for chunk in self.order(epoch):
            stop = position + self.index.counts[chunk]
            spans.append((chunk, position, stop))
            position = stop
        return spans

    def pieces(self, epoch: int, ranges: Sequence[Range]) -> List[Range]:
        """Ranges of positions, in order, cut where chunks meet."""
        pieces = []
        spans = iter(self.chunks(epoch))
        _, start, stop = next(spans)
        for low, high in ranges:
            while low < high:
                while stop <= low:
                    _, start, stop = next(spans)
                pieces.append((low, min(high, stop)))
                low = min(high, stop)
        return pieces

    def segments(self, epoch: int, ranges: Sequence[Range]) -> List[Segment]:
        """Ranges of positions, in any order, as parts of windows."""
        import bisect

        spans = self.chunks(epoch)
        starts = [start for _, start, _ in spans]
        segments = []
        for low, high in ranges:
            while low < high:
                chunk, first, last = spans[bisect.bisect_right(starts, low) - 1]
                end = min(high, last)
                for window in self.windows(chunk):
                    start = max(low - first, window.start)
                    stop = min(end - first, window.stop)
                    if start < stop:
                        within = (start - window.start, stop - window.start)
                        segments.append(Segment(chunk, window, *within))
                low = end
        return segments

    def windows(self, chunk: int) -> List[Window]:
        """The windows of a chunk; each is a block at least."""
        if chunk in self._windows:
            return self._windows[chunk]
        windows: List[Window] = []
        first, start, stop, held = 0, 0, 0, 0
        blocks = self.index.chunks[chunk]
        for number, block in enumerate(blocks):
            size = block.bytes + PLACE_BYTES * block.records
            if held and held + size > self._window_bytes:
                windows.append(Window(start, stop, first, number))
                first, start, held = number, stop, 0
            stop += block.records
            held += size
        windows.append(Window(start, stop, first, len(blocks)))
        self._windows[chunk] = windows
        return windows

    def shuffled(self, epoch: int, segment: Segment) -> "numpy.ndarray":
        """Where the segment's records stand in their window: int64 array."""
        import numpy

        window = segment.window
        count = window.stop - window.start
        if not self._shuffle:
            return numpy.arange(segment.start, segment.stop, dtype=numpy.int64)
        key = [self._seed, epoch, segment.chunk, window.first_block]
        order = numpy.random.RandomState(key).permutation(count)
        return order[segment.start:segment.stop].astype(numpy.int64)


def deal(pieces: Sequence[Range], shares: Sequence[int]) -> List[List[Range]]:
    """Give pieces out round-robin until each has its share; the shares add up to them."""
    dealt: List[List[Range]] = [[] for _ in shares]
    room = list(shares)
    turn = 0
    for low, high in pieces:
        while low < high:
            while not room[turn]:
                turn = (turn + 1) % len(room)
            size = min(high - low, room[turn])
            dealt[turn].append((low, low + size))
            room[turn] -= size
            low += size
            turn = (turn + 1) % len(room)
    return dealt


def parts(total: int, workers: int) -> List[int]:
    """``total`` in ``workers`` parts that differ by one at most."""
    return [total * (rank + 1) // workers - total * rank // workers for rank in range(workers)]


# Called with an epoch and a number of records: the next ones of the worker's stream, and
# which ones they are. With no record: one that stands in.
Take = Callable[[int, int], Tuple["numpy.ndarray", List[bytes]]]


class Chunked(Sampler):
    """What both modes share: records come from a stream that was dealt out before."""

    layout: Layout
    take: Take

    def stream(self, epoch: int) -> List[Range]:
        """What this worker reads of an epoch, in order. May be called from another thread."""
        raise NotImplementedError

    def _advance(self) -> int:
        """Consume a step's share; returns its size."""
        raise NotImplementedError

    def next_batch(self) -> Batch:
        samples = self._advance()
        self.step += 1
        indices, records = self.take(self.epoch, samples)
        return Batch(self.step, self.epoch, indices, samples, records)

    def _deal(self, epoch: int, shares: Callable[[int], List[int]]) -> List[List[Range]]:
        left = join(self._progress.epoch_left(epoch, self.samples))
        total = sum(high - low for low, high in left)
        return deal(self.layout.pieces(epoch, left), shares(total))


class SyncChunks(Chunked):
    """All workers go through their streams in step; together they make a global batch."""

    def __init__(self, layout: Layout, *arguments: object) -> None:
        self.layout = layout
        self._dealt: List[List[Range]] = []
        self._rest = 0
        self._taken: List[int] = []
        super().__init__(*arguments)  # type: ignore[arg-type]

    @property
    def epoch_over(self) -> bool:
        return not self._rest

    def stream(self, epoch: int) -> List[Range]:
        return self._deal(epoch, self._shares)[self._rank]

    def progress(self) -> Progress:
        if self.epoch_over:
            left = self._progress.epoch_left(self.epoch + 1, self.samples)
            return Progress(self.step, self.epoch + 1, {self.epoch + 1: list(left)})
        left = [
            part for dealt, taken in zip(self._dealt, self._taken) for part in cut(dealt, taken)
        ]
        return Progress(self.step, self.epoch, {self.epoch: join(left)})

    @property
    def _size(self) -> int:
        return self._global_batch or (self._worker_batch or 0) * self._workers

    def _shares(self, total: int) -> List[int]:
        """What each worker's steps add up to, from the parts of full batches and a last one."""
        full, rest = divmod(total, self._size)
        each, last = parts(self._size, self._workers), parts(rest, self._workers)
        return [full * size + more for size, more in zip(each, last)]

    def _enter(self, epoch: int) -> None:
        self.epoch = epoch
        self._dealt = self._deal(epoch, self._shares)
        self._rest = sum(high - low for dealt in self._dealt for low, high in dealt)
        self._taken = [0] * self._workers

    def _advance(self) -> int:
        total = min(self._size, self._rest)
        self._rest -= total
        sizes = parts(total, self._workers)
        self._taken = [taken + size for taken, size in zip(self._taken, sizes)]
        return sizes[self._rank]


class AsyncChunks(Chunked, AsyncSampler):
    """Each worker goes through its own stream at its own speed."""

    def __init__(self, layout: Layout, *arguments: object) -> None:
        self.layout = layout
        super().__init__(*arguments)  # type: ignore[arg-type]

    def stream(self, epoch: int) -> List[Range]:
        return self.share_of(epoch, self._rank)

    def share_of(self, epoch: int, rank: int) -> List[Range]:
        return self._deal(epoch, lambda total: parts(total, self._workers))[rank]

    def _advance(self) -> int:
        size = min(self._step_size(), sum(high - low for low, high in self._left))
        self._left = cut(self._left, size)
        return size
