"""Which samples a worker trains on in which step.

Every epoch has one permutation of its samples, a function of (seed, epoch) alone.
A *position* counts along that permutation, so "what is left of an epoch" is a set of
ranges of positions, whatever the number of workers was so far.

* Synchronous: step after step takes the next global batch of positions and cuts it
  into one contiguous slice for each worker. With a fixed global batch the samples of
  a step are a function of the step alone.
* Asynchronous: what is left of each epoch is cut into one contiguous share for each
  worker, who goes through it at its own speed. After a checkpoint the ranges that
  nobody has consumed are shared out anew.

Either way every sample of an epoch is used exactly once, across any rescale.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Tuple

if TYPE_CHECKING:
    import numpy

Range = Tuple[int, int]  # positions [start, stop)


@dataclass
class Progress:
    """How far the job is.

    ``step``: finished updates: of the job when synchronous, of this worker when
    asynchronous. ``left``: for the epoch that is being trained (and, asynchronously,
    any later ones that some worker has begun) the positions not consumed; an epoch
    that is missing there is untouched.
    """

    step: int = 0
    epoch: int = 0
    left: Dict[int, List[Range]] = field(default_factory=dict)

    def epoch_left(self, epoch: int, samples: int) -> List[Range]:
        """The positions of ``epoch`` still to be trained, in order."""
        return self.left.get(epoch, [(0, samples)])

    def to_json(self) -> Dict[str, Any]:
        """JSON form; the inverse of :meth:`from_json`."""
        left = [[epoch, [list(part) for part in self.left[epoch]]] for epoch in sorted(self.left)]
        return {"step": self.step, "epoch": self.epoch, "left": left}

    @classmethod
    def from_json(cls, document: Dict[str, Any]) -> "Progress":
        """Raises KeyError, TypeError or ValueError on a malformed document."""
        left = {
            int(epoch): [(int(start), int(stop)) for start, stop in parts]
            for epoch, parts in document["left"]
        }
        return cls(step=int(document["step"]), epoch=int(document["epoch"]), left=left)


@dataclass(frozen=True)
class Batch:
    """One worker's part of one step.

    ``indices``: int64 array of shape (n,), n >= 1, indices into the data set.
    ``samples``: how many of them count: n, or 0 when this worker has no share of a
    small batch. It then computes on one stand-in sample, and its gradient is dropped.
    ``records``: of a :class:`optimus.data.Dataset`, the n records themselves.
    """

    step: int
    epoch: int
    indices: "numpy.ndarray"
    samples: int
    records: List[bytes] = field(default_factory=list)

    def take(self, *arrays: "numpy.ndarray") -> List[Any]:
        """The batch's rows of numpy arrays, as MXNet arrays of shape (n, ...)."""
        import mxnet as mx

        return [mx.nd.array(array[self.indices], dtype=array.dtype) for array in arrays]


class Sampler:
    """Hands out a worker's batches one by one, from a given progress on.

    ``data``: what tells the data set and its order, where they are the job's; goes into
    checkpoints.
    """

    data: Optional[Dict[str, Any]] = None

    def __init__(
        self,
        samples: int,
        seed: int,
        rank: int,
        workers: int,
        progress: Progress,
        global_batch: Optional[int],
        worker_batch: Optional[int],
        shuffle: bool = True,
    ) -> None:
        """``samples``: of one epoch. Exactly one of the two batch sizes is given."""
        if samples < 1:
            raise ValueError("an epoch needs at least one sample")
        self.samples = samples
        self._seed = seed
        self._shuffle = shuffle
        self._rank = rank
        self._workers = workers
        self._global_batch = global_batch
        self._worker_batch = worker_batch
        self._progress = progress
        self._order: Tuple[int, Optional["numpy.ndarray"]] = (-1, None)
        self.step = progress.step
        self.epoch = progress.epoch
        self._left: List[Range] = []
        self._enter(progress.epoch)

    @property
    def epoch_over(self) -> bool:
        """Whether nothing of the present epoch is left for this worker."""
        return not self._left

    def next_batch(self) -> Batch:
        """The next batch of the present epoch, which must not be over. Consumes it."""
        positions, samples = self._next_positions()
        self.step += 1
        return Batch(self.step, self.epoch, self._permutation()[positions], samples)

    def next_epoch(self) -> None:
        """Go on to the next epoch, once the present one is over."""
        assert self.epoch_over, "an epoch is left only when it is over"
        self._enter(self.epoch + 1)

    def progress(self) -> Progress:
        """How far this worker is; an epoch that is over counts as the next one begun."""
        if self.epoch_over:
            # The next epoch may have been begun by others before a checkpoint: what is
            # left of it for us is then a part, which is named; untouched needs no name.
            share = self._share(self.epoch + 1)
            return Progress(self.step, self.epoch + 1, {self.epoch + 1: share})
        return Progress(self.step, self.epoch, {self.epoch: list(self._left)})

    def share_of(self, epoch: int, rank: int) -> List[Range]:
        """The positions that ``rank`` was given of ``epoch`` when this generation began."""
        left = self._progress.epoch_left(epoch, self.samples)
        total = _length(left)
        return cut(left, total * rank // self._workers, total * (rank + 1) // self._workers)

    def begun_epochs(self) -> List[int]:
        """Epochs of which a part was consumed before this generation."""
        return list(self._progress.left)

    def _enter(self, epoch: int) -> None:
        self.epoch = epoch
        self._left = self._share(epoch)

    def _share(self, epoch: int) -> List[Range]:
        raise NotImplementedError

    def _next_positions(self) -> Tuple["numpy.ndarray", int]:
        raise NotImplementedError

    def _permutation(self) -> "numpy.ndarray":
        """The present epoch's permutation: int64 array of shape (samples,)."""
        import numpy

        epoch, order = self._order
        if epoch != self.epoch or order is None:
            if self._shuffle:
                # RandomState, not default_rng: its stream is frozen for ever, so that a
                # checkpoint resumes in the same order under another numpy.
                random = numpy.random.RandomState([self._seed % 2**32, self.epoch])
                order = random.permutation(self.samples).astype(numpy.int64)
            else:
                order = numpy.arange(self.samples, dtype=numpy.int64)
            self._order = (self.epoch, order)
        return order


class SyncSampler(Sampler):
    """All workers walk through one epoch together, a slice of each global batch each."""

    def _share(self, epoch: int) -> List[Range]:
        return list(self._progress.epoch_left(epoch, self.samples))

    def _next_positions(self) -> Tuple["numpy.ndarray", int]:
        size = self._global_batch or (self._worker_batch or 0) * self._workers
        total = min(size, _length(self._left))
        batch, self._left = cut(self._left, 0, total), cut(self._left, total)
        start, stop = total * self._rank // self._workers, total * (self._rank + 1) // self._workers
        if start == stop:
            # Fewer samples than workers: stand in with one that does not count, because
            # synchronous servers wait for a push of everyone.
            return _positions(cut(batch, 0, 1)), 0
        return _positions(cut(batch, start, stop)), stop - start


class AsyncSampler(Sampler):
    """Each worker walks through its own share of each epoch."""

    def _share(self, epoch: int) -> List[Range]:
        return self.share_of(epoch, self._rank)

    def _next_positions(self) -> Tuple["numpy.ndarray", int]:
        total = min(self._step_size(), _length(self._left))
        batch, self._left = cut(self._left, 0, total), cut(self._left, total)
        return _positions(batch), total

    def _step_size(self) -> int:
        """The samples of this worker's step, as long as it has so many."""
        if self._worker_batch is not None:
            return self._worker_batch
        assert self._global_batch is not None
        spare = self._rank < self._global_batch % self._workers
        return max(1, self._global_batch // self._workers + spare)


def merge(workers: Dict[int, Progress], sampler: Sampler) -> Progress:
    """The asynchronous job's progress from that of all its workers, by rank.

    ``step`` is the total of the workers' steps. What is left of an epoch is what its
    workers have left, the whole share for those that have not come to it yet.
    """
    first = min(progress.epoch for progress in workers.values())
    # Also the epochs that some worker had begun before this generation, even if nobody
    # has come to them since.
    last = max([progress.epoch for progress in workers.values()] + sampler.begun_epochs())
    left: Dict[int, List[Range]] = {}
    for epoch in range(first, last + 1):
        parts: List[Range] = []
        for rank, progress in sorted(workers.items()):
            if progress.epoch == epoch:
                parts += progress.left[epoch]
            elif progress.epoch < epoch:
                parts += sampler.share_of(epoch, rank)
        left[epoch] = join(parts)
    return Progress(sum(progress.step for progress in workers.values()), first, left)


def worker_step(total: int, rank: int, workers: int) -> int:
    """A worker's own step number when an asynchronous job resumes after ``total`` steps."""
    return total // workers + (rank < total % workers)


def cut(ranges: Iterable[Range], start: int, stop: Optional[int] = None) -> List[Range]:
    """The sub-ranges that hold elements [start, stop) of the ranges laid end to end."""
    parts: List[Range] = []
    offset = 0
    for low, high in ranges:
        first = max(low, low + start - offset)
        last = high if stop is None else min(high, low + stop - offset)
        if first < last:
            parts.append((first, last))
        offset += high - low
    return parts


def join(ranges: Iterable[Range]) -> List[Range]:
    """The same positions in order, touching ranges made one."""
    joined: List[Range] = []
    for low, high in sorted(ranges):
        if joined and joined[-1][1] == low:
            joined[-1] = (joined[-1][0], high)
        elif low < high:
            joined.append((low, high))
    return joined


def _length(ranges: Iterable[Range]) -> int:
    return sum(high - low for low, high in ranges)


def _positions(ranges: List[Range]) -> "numpy.ndarray":
    import numpy

    return numpy.concatenate([numpy.arange(low, high, dtype=numpy.int64) for low, high in ranges])
