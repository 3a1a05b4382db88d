"""A worker's side of a checkpoint: stop at the named step, save, hold or go on.

No barrier of the store is entered here: a worker that died would leave the others in
it for ever. Workers meet by files in the checkpoint's folder instead, or by marks that
their agents carry, and keep reading the agent's orders meanwhile, so that any wait can
be called off.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, NoReturn, Optional, Set, Tuple

from . import gateway
from .checkpoint import Part
from .control import Control, Request
from .environment import Settings
from .process import describe
from .report import Reporter

POLL_S = 0.02
REPEAT_S = 1.0
# How long after a checkpoint that does not hold rank 0 repeats that it is saved.
SAVED_REPEAT_S = 5.0
ERROR_TEXT_MAX = 500
# How often another node's mark is looked for.
MARKS_REST_S_MIN = 0.02
MARKS_REST_S_MAX = 0.5

DONE = "done"


class Withdrawn(Exception):
    """The wait at a checkpoint is over without one: called off, or a later step named."""


# Where a worker stands: `step`, `epoch`, `loss_sum` and `samples` (of its part of the
# unfinished epoch), `progress` (the sampler's, as JSON), `finished`.
Standing = Dict[str, Any]


class Holder:
    """Obeys the checkpoint requests of one worker."""

    def __init__(
        self,
        settings: Settings,
        rank: int,
        control: Control,
        reporter: Reporter,
        leaving: threading.Event,
        leave: Callable[[], NoReturn],
        save: Callable[[Request, Dict[int, Standing]], Callable[[], Dict[str, Any]]],
    ) -> None:
        """``save(request, standings by rank)`` writes the parts (rank 0 only).

        It returns what completes the checkpoint, with no worker's help, and gives the
        fields of the `saved` report. Both raise when they cannot.
        """
        self._sync = settings.mode == "sync"
        self._workers = settings.workers
        self._rank = rank
        self._control = control
        self._reporter = reporter
        self._leaving = leaving
        self._leave = leave
        self._save = save
        self._handled: Set[int] = set()
        self._missed: Set[Tuple[int, int]] = set()
        self._saved: Optional[Tuple[float, float, Dict[str, Any]]] = None
        self._completing: Optional[_Completion] = None

    def at_boundary(self, standing: Callable[[], Standing], step: int, finished: bool) -> None:
        """Obey a request, if there is one for this point between two steps."""
        self._look_at_completion()
        self._repeat_saved()
        request = self._control.poll()
        if request is None or request.released or request.id in self._handled:
            return
        if self._sync and not finished:
            if request.at_step is None or step < request.at_step:
                return
            if step > request.at_step:
                self._miss(request.id, request.at_step, step)
                return
        self._hold(request, standing())

    def blocked_past(self, control: Control, step: int) -> Optional[Tuple[int, int]]:
        """(checkpoint, at_step) when the named step is before ``step``, which has begun.

        For the sentry's thread: the workers that did stop there push no more, so this
        worker may now be waiting in C for ever unless the master hears of it.
        """
        request = control.poll()
        if (
            self._sync and request is not None and request.at_step is not None
            and not request.released and request.id not in self._handled and request.at_step < step
        ):
            return request.id, request.at_step
        return None

    def _miss(self, checkpoint: int, at_step: int, step: int) -> None:
        if (checkpoint, at_step) not in self._missed:
            self._missed.add((checkpoint, at_step))
            self._reporter.send("missed", checkpoint=checkpoint, step=step)

    def _hold(self, request: Request, standing: Standing) -> None:
        visit = _Visit(request, self._rank, standing)
        try:
            visit.arrive()
            saved = self._meet(visit)
            self._handled.add(request.id)
            if request.hold:
                self._until_released(visit, saved)
            elif saved is not None:
                self._keep_saying(saved)
        except Withdrawn:
            visit.withdraw()
        except Exception as error:  # pylint: disable=broad-except
            # No checkpoint is no reason to lose the training that it was meant to keep.
            self._handled.add(request.id)
            visit.withdraw()
            self._reporter.send(
                "failed", checkpoint=request.id, error=_words(error)
            )

    def _meet(self, visit: "_Visit") -> Optional[Dict[str, Any]]:
        """Wait for all workers and the save. Rank 0 gets the fields of its report."""
        repeat = _Repeat()
        while True:
            if repeat.due():
                visit.check()
                self._report_reached(visit)
            if self._rank == 0:
                standings = visit.all_standing(self._workers)
                if standings is not None:
                    return self._save_for_all(visit, standings)
            elif visit.done():
                return None
            self._wait(visit.request, visit.standing["finished"])

    def _save_for_all(
        self, visit: "_Visit", standings: Dict[int, Standing]
    ) -> Dict[str, Any]:
        try:
            complete = self._save(visit.request, standings)
            if visit.remote:
                # Storage may take its time: until then orders are heard, and where the
                # workers may go on, they do.
                self._completing = _Completion(visit.request.id, complete)
                if not visit.request.hold:
                    visit.tell_done(None)
                    return None
                saved = self._completed(visit, self._completing)
            else:
                saved = complete()
        except Withdrawn:
            raise
        except Exception as error:
            visit.tell_done(_words(error))
            raise
        visit.tell_done(None)
        self._reporter.send("saved", **saved)
        return saved

    def _completed(self, visit: "_Visit", completing: "_Completion") -> Dict[str, Any]:
        """Wait for the end of a completion while the workers stand still."""
        self._completing = None
        repeat = _Repeat()
        while not completing.over.wait(POLL_S):
            self._wait(visit.request, finished=True)
            if repeat.due():
                self._report_reached(visit)
        return completing.result()

    def _keep_saying(self, saved: Dict[str, Any]) -> None:
        now = time.monotonic()
        self._saved = (now + SAVED_REPEAT_S, now + REPEAT_S, saved)

    def _look_at_completion(self) -> None:
        """Tell of a checkpoint that was completed while training went on."""
        completing = self._completing
        if completing is None or not completing.over.is_set():
            return
        self._completing = None
        try:
            saved = completing.result()
        except Exception as error:  # pylint: disable=broad-except
            self._reporter.send(
                "failed", checkpoint=completing.checkpoint, error=_words(error)
            )
        else:
            self._reporter.send("saved", **saved)
            self._keep_saying(saved)

    def _until_released(self, visit: "_Visit", saved: Optional[Dict[str, Any]]) -> None:
        repeat = _Repeat()
        repeat.due()
        while True:
            try:
                self._wait(visit.request, finished=True)
            except Withdrawn:
                return  # released, or overtaken by another request: train on
            if repeat.due():
                self._report_reached(visit)
                if saved is not None:
                    self._reporter.send("saved", **saved)

    def _wait(self, request: Request, finished: bool) -> None:
        """One short wait; raises Withdrawn when this worker must not wait any longer."""
        if self._leaving.wait(POLL_S):
            self._leave()
        present = self._control.poll()
        if present is None or present.id != request.id or present.released:
            self._handled.add(request.id)
            raise Withdrawn
        if not finished and present.at_step != request.at_step:
            # Someone had passed the step already; a later one is named. Training on is
            # what lets that one through.
            raise Withdrawn

    def _report_reached(self, visit: "_Visit") -> None:
        fields = {name: visit.standing[name] for name in ("step", "epoch", "loss_sum", "samples")}
        self._reporter.send("reached", checkpoint=visit.request.id, **fields)

    def _repeat_saved(self) -> None:
        if self._saved is not None:
            until, next_time, saved = self._saved
            now = time.monotonic()
            if now >= next_time:
                self._reporter.send("saved", **saved)
                self._saved = None if now >= until else (until, now + REPEAT_S, saved)


class _Completion:
    """The end of a checkpoint on a thread of its own."""

    def __init__(self, checkpoint: int, complete: Callable[[], Dict[str, Any]]) -> None:
        self.checkpoint = checkpoint
        self.over = threading.Event()
        self._complete = complete
        self._saved: Optional[Dict[str, Any]] = None
        self._error: Optional[Exception] = None
        threading.Thread(target=self._run, name="optimus-complete", daemon=True).start()

    def _run(self) -> None:
        try:
            self._saved = self._complete()
        except Exception as error:  # pylint: disable=broad-except
            self._error = error
        self.over.set()

    def result(self) -> Dict[str, Any]:
        """Once it is over: the fields of the report. Raises what went wrong."""
        if self._error is not None:
            raise self._error
        assert self._saved is not None, "it is over without an error"
        return self._saved


class _Visit:
    """One worker's stay at one checkpoint, and its marks there."""

    def __init__(self, request: Request, rank: int, standing: Standing) -> None:
        self.request = request
        self.standing = standing
        self.remote = gateway.is_remote(request.directory)
        self._marks: Any = _Marks(request) if self.remote else _Files(request.directory)
        self._own = f"reached-{rank}"
        self._at_step = request.at_step

    def arrive(self) -> None:
        """Leave this worker's mark. Raises OSError or the gateway's errors."""
        self._marks.write(self._own, dict(self.standing, checkpoint=self.request.id))

    def withdraw(self) -> None:
        """Take the mark away, if it is there."""
        self._marks.remove(self._own)

    def check(self) -> None:
        """Raises OSError when the mark has vanished: someone took the folder away."""
        self._marks.check(self._own)

    def all_standing(self, workers: int) -> Optional[Dict[int, Standing]]:
        """All workers' standings by rank, once all are here; None before."""
        standings = {}
        names = [f"reached-{rank}" for rank in range(workers)]
        for rank, standing in enumerate(self._marks.read(names)):
            if standing is None or standing["checkpoint"] != self.request.id:
                return None
            # A mark of an earlier named step may not have been taken away yet.
            if self._at_step is not None and standing["step"] != self.standing["step"]:
                return None
            standings[rank] = standing
        return standings

    def tell_done(self, error: Optional[str]) -> None:
        """Rank 0: let the others go on. Silent when the folder cannot be written."""
        try:
            self._marks.write(DONE, {"checkpoint": self.request.id, "error": error})
        except (OSError, gateway.StorageAway, gateway.GatewayRefused):
            pass  # the others see the folder's loss, or the master's release

    def done(self) -> bool:
        """Whether rank 0 has saved; raises RuntimeError when it could not."""
        outcome = next(iter(self._marks.read([DONE])))
        if outcome is None or outcome["checkpoint"] != self.request.id:
            return False
        if outcome["error"] is not None:
            raise RuntimeError(f"rank 0 could not save: {outcome['error']}")
        return True


class _Files:
    """Marks as files of a folder that all workers reach."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def write(self, name: str, document: Dict[str, Any]) -> None:
        _replace(self._path(name), document)

    def remove(self, name: str) -> None:
        try:
            os.remove(self._path(name))
        except OSError:
            pass

    def check(self, name: str) -> None:
        os.stat(self._path(name))

    def read(self, names: List[str]) -> Iterator[Optional[Dict[str, Any]]]:
        return (_read(self._path(name)) for name in names)


class _Marks:
    """Marks that the workers' agents carry. One that was made never changes."""

    def __init__(self, request: Request) -> None:
        self._checkpoint = request.id
        # A worker that was called off for a later step comes with another mark.
        self._step = "" if request.at_step is None else f"-{request.at_step}"
        self._found: Dict[str, Dict[str, Any]] = {}
        self._next = 0.0
        self._rest_s = MARKS_REST_S_MIN

    def write(self, name: str, document: Dict[str, Any]) -> None:
        gateway.mark(self._checkpoint, name + self._step, json.dumps(document))

    def remove(self, name: str) -> None:
        pass

    def check(self, name: str) -> None:
        pass

    def read(self, names: List[str]) -> List[Optional[Dict[str, Any]]]:
        missing = [name for name in names if name not in self._found]
        if missing and time.monotonic() >= self._next:
            texts = gateway.marks(self._checkpoint, [name + self._step for name in missing])
            for name in missing:
                if name + self._step in texts:
                    self._found[name] = json.loads(texts[name + self._step])
            # Storage is asked less often the longer this takes.
            self._next = time.monotonic() + self._rest_s
            self._rest_s = min(self._rest_s * 1.25, MARKS_REST_S_MAX)
        return [self._found.get(name) for name in names]


class _Repeat:
    """Says when something is to be sent again; the first time at once."""

    def __init__(self) -> None:
        self._next = 0.0

    def due(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + REPEAT_S
        return True


def _words(error: Exception) -> str:
    # The gateway's texts are storage's own.
    own = isinstance(error, (gateway.StorageAway, gateway.GatewayRefused))
    return (str(error) if own else describe(error))[:ERROR_TEXT_MAX]


def _replace(path: str, document: Dict[str, Any]) -> None:
    temporary = f"{path}.tmp-{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(document, file)
    os.rename(temporary, path)


def _read(path: str) -> Optional[Dict[str, Any]]:
    try:
        with open(path, "rb") as file:
            return json.loads(file.read())
    except FileNotFoundError:
        return None


def saved_report(
    checkpoint: int, document: Dict[str, Any], manifest: Part, bytes_max: int
) -> Dict[str, Any]:
    """Fields of the `saved` report: all parts, or the manifest alone when they do not fit."""
    fields = {
        "checkpoint": checkpoint,
        "step": document["step"],
        "epoch": document["epoch"],
        "epoch_position": document["epoch_position"],
    }
    parts = document["parts"] + [manifest.to_json()]
    if len(json.dumps(parts)) > bytes_max:
        parts = [manifest.to_json()]
    return dict(fields, parts=parts)
