"""A training script's view of its job: see :class:`Job`."""

from __future__ import annotations

import atexit
import os
import time
from collections import deque
from typing import (
    TYPE_CHECKING, Any, Callable, Deque, Dict, Iterator, List, NoReturn, Optional, Sequence, Tuple,
    Union,
)

from . import assignment, data, process, sampler, saving
from .checkpoint import Manifest
from .control import Control, Request
from .environment import Settings, SettingsError
from .hold import Holder, Standing
from .rates import RateWatch, rate_of
from .report import Reporter

if TYPE_CHECKING:
    from .store import Store
    from .trainer import Trainer

FINISHED_REPEAT_S = 1.0
# Each epoch's report is sent again with this many later ones, in case it was lost.
EPOCH_REPORTS_KEPT = 8


class Epoch:
    """One pass over the data; iterate over it to get this worker's batches.

    ``number`` counts from 0. ``loss`` is the mean over the samples that this worker
    has trained on in this epoch since its process began.
    """

    def __init__(self, number: int, run: Callable[[int], Iterator[sampler.Batch]]) -> None:
        self.number = number
        self.loss_sum = 0.0
        self.samples = 0
        self._run = run

    @property
    def loss(self) -> float:
        return self.loss_sum / self.samples if self.samples else float("nan")

    def __iter__(self) -> Iterator[sampler.Batch]:
        return self._run(self.number)


class Job:
    """One worker of a training job, or a script that runs alone.

    Made by :func:`optimus.init`. The pieces of a script, in their order::

        trainer = job.trainer(net, "sgd", {...}, input_shape=(1, 1, 16, 16))
        for epoch in job.epochs(len(images)):
            for batch in epoch:
                x, y = batch.take(images, labels)
                with autograd.record():
                    loss = loss_of(net(x), y)       # one loss for each sample
                loss.backward()
                trainer.step()
                job.record(loss)
        job.finish()

    The boundary between two steps is where the loop asks for the next batch: there the
    step is reported and checkpoints are taken. Nothing else needs to be called.
    """

    def __init__(self, settings: Settings, seed: int) -> None:
        self.settings = settings
        self.seed = seed
        self.rank = 0
        self._reporter = Reporter(settings.directory, settings.role, settings.index)
        self._resume: Optional[Manifest] = None
        self._store: Optional["Store"] = None
        self._trainer: Optional["Trainer"] = None
        self._sampler: Optional[sampler.Sampler] = None
        self._kept: Dict[str, Callable[[], Dict[str, Any]]] = {}
        self._sentry: Optional[process.Sentry] = None
        self._holder: Optional[Holder] = None
        self._watched: Optional[Control] = None
        self._epoch: Optional[Epoch] = None
        self._rates = RateWatch()
        self._epoch_reports: Deque[Dict[str, Any]] = deque(maxlen=EPOCH_REPORTS_KEPT)
        self._batch: Optional[sampler.Batch] = None
        self._began = 0.0
        # Instants of this process's beginning: here, before and after the store, at the loop.
        self._marks = [time.monotonic()]
        self._loss: Any = None
        self._missed_next = 0.0
        self._finished = False
        if settings.distributed:
            self._watch()
            if settings.resume is not None:
                self._resume = Manifest(settings.resume)

    # -- what a script asks about -----------------------------------------------------

    @property
    def distributed(self) -> bool:
        """Whether the script runs under Optimus."""
        return self.settings.distributed

    @property
    def workers(self) -> int:
        """Number of workers of this generation."""
        return self.settings.workers

    @property
    def step(self) -> int:
        """Finished steps: the job's if synchronous, this worker's if asynchronous."""
        if self._sampler is None:
            return 0
        return self._sampler.step - (self._batch is not None)

    @property
    def batch_size(self) -> int:
        """The most samples that this worker gets in one step."""
        return self.settings.worker_batch_max

    @property
    def gradient_scale(self) -> float:
        """What the sum of the samples' gradients is multiplied by in an update.

        For ``rescale_grad`` in scripts with an optimizer of their own;
        :meth:`trainer` and :meth:`kvstore` see to it themselves.
        """
        return 1.0 / self.settings.samples_per_update

    # -- what a script sets up --------------------------------------------------------

    def trainer(
        self, model: Any, optimizer: Any, optimizer_params: Optional[dict] = None,
        input_shape: Optional[Sequence[int]] = None, **options: Any,
    ) -> "Trainer":
        """A Gluon trainer for a block (or its parameters); the block must be initialised.

        ``input_shape``: shape of one batch of input, needed where layers infer their
        sizes. On return all workers hold the same parameters, restored if resuming.
        """
        from . import trainer

        self._trainer = trainer.Trainer(
            self.kvstore(), self.settings.samples_per_update,
            trainer.parameters(model, input_shape), optimizer, optimizer_params, **options,
        )
        return self._trainer

    def kvstore(self) -> Optional["Store"]:
        """The job's store, for ``Module.init_optimizer`` or use by hand; None alone.

        It waits for all processes of the job. Initialising a parameter in it restores
        its value, and setting the optimizer restores the optimizer's states.
        Where the master assigns blocks to servers, what was initialised gets its value
        with the first push or pull, at the latest when the loop begins.
        """
        if self._store is None and self.distributed:
            self._store = self._open_store()
        return self._store

    def keep(
        self, name: str, get: Callable[[], Dict[str, Any]], put: Callable[[Dict[str, Any]], None]
    ) -> None:
        """Keep further arrays in checkpoints, such as a Module's auxiliary states.

        ``get`` returns arrays (numpy's or MXNet's) by name, and is asked on rank 0 when
        a checkpoint is taken. ``put`` is called with numpy arrays, at once and on all
        workers, if the job was resumed and they are in its checkpoint.
        """
        self._kept[name] = get
        if self._resume is not None:
            arrays = saving.read_kept(self._resume, name)
            if arrays:
                put(arrays)

    def dataset(self, place: Optional[str] = None, **options: Any) -> data.Dataset:
        """The job's data set, for :meth:`epochs`: see :class:`optimus.data.Dataset`.

        ``place`` and ``options`` are those of :func:`optimus.data.open_dataset`; what names
        the set is for the script alone: under Optimus the job file's [data] takes its place.
        """
        return data.open_dataset(self.settings, self._pause, place, **options)

    def set_learning_rate(self, learning_rate: float) -> None:
        """Change the learning rate from the next step on, on the servers too.

        Synchronous jobs: call it on all workers between the same two steps.
        Asynchronous: the call of the worker with rank 0 counts. The rate is part of
        checkpoints. Raises RuntimeError when there is no optimizer that it could reach.
        """
        target = self._store if self._store is not None else self._trainer
        if target is None:
            raise RuntimeError(
                "make the trainer first; a Module that runs alone has its own optimizer"
            )
        target.set_learning_rate(learning_rate)

    # -- the training loop ------------------------------------------------------------

    def epochs(self, source: Union[int, data.Dataset], shuffle: bool = True) -> Iterator[Epoch]:
        """The epochs still to be trained; each gives this worker's batches.

        ``source``: the number of samples of an epoch, or what :meth:`dataset` returned; the
        same in all generations. Raises SettingsError when it is another than the
        checkpoint's.
        """
        loop = self._begin(source, shuffle)
        self._boundary()
        while loop.epoch < self.settings.epochs_max:
            epoch = self._epoch
            assert epoch is not None, "set when the loop begins and whenever an epoch ends"
            yield epoch
            if loop.epoch == epoch.number:
                raise RuntimeError(
                    f"epoch {epoch.number} was left before its end; call job.finish() to stop early"
                )

    def batches(
        self, source: Union[int, data.Dataset], shuffle: bool = True
    ) -> Iterator[sampler.Batch]:
        """The batches of all epochs, for scripts that do nothing between epochs."""
        for epoch in self.epochs(source, shuffle):
            yield from epoch

    def record(self, loss: Any) -> None:
        """Say what the step's loss was: one for each sample, or their mean.

        ``loss``: MXNet array of any shape, or a number. It is read when the step ends.
        """
        self._loss = loss

    def finish(self) -> None:
        """Training is over: hold for the final checkpoint.

        Alone it returns. Under Optimus it never does: the agent ends the process.
        """
        if self._finished:
            return
        self._finished = True
        if self._batch is not None:
            self._end_step(boundary=False)
        if not self.distributed:
            return
        if self._sampler is None or self._sentry is None:
            process.fail(self._reporter, "finished without training: job.epochs() was never used")
        next_report = 0.0
        while True:
            if time.monotonic() >= next_report:
                next_report = time.monotonic() + FINISHED_REPEAT_S
                self._reporter.send("finished", step=self.step)
            self._boundary()
            if self._sentry.leaving.wait(0.02):
                process.leave(self._reporter)

    # -- beginning --------------------------------------------------------------------

    def _watch(self) -> None:
        directory = self.settings.directory
        assert directory is not None, "only a distributed worker is watched"
        # Two readers of one file: the sentry's thread must not share the main thread's.
        self._watched = Control(directory)
        self._sentry = process.Sentry(
            self._reporter, tick=self._tick, patience_s=process.LEAVE_S_MAX
        )
        process.end_on_exception(self._reporter, self._sentry)
        atexit.register(self._at_exit, os.getpid())
        self._reporter.hello()

    def _open_store(self) -> "Store":
        from .store import Store

        settings = self.settings
        self._marks.append(time.monotonic())
        store = Store(
            settings.mode, self.gradient_scale, self._resume, settings.servers,
            self._assign if settings.assigned else None,
        )
        # Once more, to run before what importing MXNet has registered by now.
        atexit.register(self._at_exit, os.getpid())
        self.rank = store.rank
        self._marks.append(time.monotonic())
        self._reporter.set_rank(self.rank)
        return store

    def _assign(self, sizes: List[int]) -> List[assignment.Parts]:
        directory = self.settings.directory
        assert directory is not None, "only a distributed worker waits for an assignment"
        reporter = self._reporter if self.rank == 0 else None
        return assignment.wait(directory, reporter, sizes, self._pause)

    def _pause(self, seconds: float) -> None:
        assert self._sentry is not None, "a distributed worker has a sentry"
        if self._sentry.leaving.wait(seconds):
            self._leave()
        self._reporter.flush_stale()

    def _begin(self, source: Union[int, data.Dataset], shuffle: bool) -> sampler.Sampler:
        if self._sampler is not None:
            raise RuntimeError("a job has one training loop: job.epochs() was called twice")
        settings = self.settings
        if self.distributed:
            store = self.kvstore()
            assert store is not None, "a distributed job has a store"
            if store.optimizer is None:
                raise RuntimeError("make the trainer (or the Module's optimizer) before the loop")
            store.open()
            if self.rank == 0:
                self._reporter.repeat(assignment.reports(store.block_sizes()))
            import mxnet as mx

            mx.random.seed(_mixed(self.seed, self._restored_step(), self.rank))
        progress = self._progress(source, shuffle)
        if isinstance(source, data.Dataset):
            self._sampler = source.loop(settings, self.seed, self.rank, progress, shuffle)
        else:
            kind = sampler.SyncSampler if settings.mode == "sync" else sampler.AsyncSampler
            self._sampler = kind(
                source, self.seed, self.rank, settings.workers, progress,
                settings.global_batch, settings.worker_batch, shuffle,
            )
        self._epoch = Epoch(self._sampler.epoch, self._run_epoch)
        self._marks.append(time.monotonic())
        self._reporter.hello(samples_per_epoch=self._sampler.samples)
        self._make_holder()
        return self._sampler

    def _restored_step(self) -> int:
        return int(self._resume.document["step"]) if self._resume is not None else 0

    def _progress(self, source: Union[int, data.Dataset], shuffle: bool) -> sampler.Progress:
        if self._resume is None:
            return sampler.Progress()
        data.check_same(self._resume.document.get("data"), source, shuffle)
        samples = source.records if isinstance(source, data.Dataset) else source
        before = self._resume.document["samples_per_epoch"]
        if before != samples:
            raise SettingsError(f"the checkpoint's epochs have {before} samples, these {samples}")
        progress = sampler.Progress.from_json(self._resume.document["progress"])
        if self.settings.mode == "async":
            progress.step = sampler.worker_step(progress.step, self.rank, self.workers)
        return progress

    def _make_holder(self) -> None:
        if self._sentry is None:
            return
        assert self.settings.directory is not None, "a distributed worker has a folder"
        self._holder = Holder(
            self.settings, self.rank, Control(self.settings.directory), self._reporter,
            self._sentry.leaving, self._leave, self._save,
        )

    # -- steps ------------------------------------------------------------------------

    def _run_epoch(self, number: int) -> Iterator[sampler.Batch]:
        loop = self._sampler
        assert loop is not None, "an epoch comes from the loop"
        while loop.epoch == number:
            if loop.epoch_over:  # no share of it for this worker
                self._end_epoch()
                self._boundary()
                continue
            batch = loop.next_batch()
            if self._store is not None:
                self._store.dropping = batch.samples == 0
            self._loss = None
            self._batch = batch
            self._began = time.monotonic()
            yield batch
            self._end_step()

    def _end_step(self, boundary: bool = True) -> None:
        batch, epoch, loop = self._batch, self._epoch, self._sampler
        assert batch is not None and epoch is not None and loop is not None, "a step has begun"
        waited_s = self._store.take_waited_s() if self._store is not None else 0.0
        loss = _mean(self._loss)
        duration_s = time.monotonic() - self._began
        self._batch = None
        if batch.samples:
            epoch.loss_sum += loss * batch.samples
            epoch.samples += batch.samples
        self._reporter.step((
            batch.step, batch.epoch, loss, round(duration_s, 6),
            round(max(0.0, duration_s - waited_s), 6), batch.samples,
        ))
        if self._marks:
            self._tell_begun()
        self._tell_rate(batch.step)
        if loop.epoch_over:
            self._end_epoch()
        if boundary:
            self._reporter.flush_stale()
            self._boundary()

    def _tell_begun(self) -> None:
        # At once: the first step ends a pause, and whoever counts it waits for the report.
        marks, self._marks = [*self._marks, time.monotonic()], []
        parts = [round(later - earlier, 6) for earlier, later in zip(marks, marks[1:])]
        if len(parts) == 4:
            self._reporter.send("begun", parts_s=parts)

    def _tell_rate(self, step: int) -> None:
        # All workers have the same one, and asynchronously only rank 0's counts.
        if self._store is None or self.rank != 0:
            return
        news = self._rates.note(step, rate_of(self._store.optimizer))
        if news is not None:
            # With every later hello again, in case this one is lost.
            self._reporter.hello(learning_rate_step=news[0], learning_rate=news[1])

    def _end_epoch(self) -> None:
        loop, epoch = self._sampler, self._epoch
        assert loop is not None and epoch is not None, "an epoch has begun"
        self._epoch_reports.append({
            "epoch": epoch.number, "step": loop.step, "loss_sum": epoch.loss_sum,
            "samples": epoch.samples,
        })
        for report in self._epoch_reports:
            self._reporter.send("epoch", **report)
        loop.next_epoch()
        self._epoch = Epoch(loop.epoch, self._run_epoch)

    # -- between steps ----------------------------------------------------------------

    def _boundary(self) -> None:
        if self._holder is None or self._sentry is None:
            return
        if self._sentry.leaving.is_set():
            self._leave()
        self._holder.at_boundary(self._standing, self.step, self._finished)

    def _leave(self) -> NoReturn:
        # The store is not freed: its barrier waits for the scheduler, which had the
        # same signal and is gone.
        process.leave(self._reporter)

    def _standing(self) -> Standing:
        loop, epoch = self._sampler, self._epoch
        assert loop is not None and epoch is not None, "a worker stands in its loop"
        progress = loop.progress()
        return {
            "step": progress.step, "epoch": epoch.number, "loss_sum": epoch.loss_sum,
            "samples": epoch.samples, "progress": progress.to_json(), "finished": self._finished,
        }

    def _save(
        self, request: Request, standings: Dict[int, Standing]
    ) -> Callable[[], Dict[str, Any]]:
        assert self._store is not None and self._sampler is not None, "rank 0 has trained"
        return saving.save(
            self.settings, self.seed, self._store, self._sampler, self._kept, request, standings
        )

    def _tick(self) -> None:
        """On the sentry's thread, ten times a second."""
        self._reporter.flush_stale()
        batch, holder = self._batch, self._holder
        if batch is None or holder is None or self._watched is None:
            return
        missed: Optional[Tuple[int, int]] = holder.blocked_past(self._watched, batch.step)
        if missed is not None and time.monotonic() >= self._missed_next:
            self._missed_next = time.monotonic() + 1.0
            self._reporter.send("missed", checkpoint=missed[0], step=batch.step - 1)

    def _at_exit(self, owner: int) -> None:
        if os.getpid() != owner or self._finished:
            return
        loop = self._sampler
        if loop is None or loop.epoch < self.settings.epochs_max:
            process.fail(self._reporter, "the script ended before its training loop was over")
        self.finish()


def _mean(loss: Any) -> float:
    """The mean of a recorded loss; nan when none was recorded or it is no number."""
    try:
        if hasattr(loss, "asnumpy"):
            return float(loss.asnumpy().mean(dtype="float64"))
        return float("nan") if loss is None else float(loss)
    except (TypeError, ValueError):
        return float("nan")


def _mixed(seed: int, step: int, rank: int) -> int:
    """A seed for one worker's own randomness (dropout, say) from ``step`` on."""
    return (seed * 1_000_003 + step * 8_191 + rank * 131) % 2**31
