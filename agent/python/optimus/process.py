"""Life and death of a process: signals, uncaught exceptions, exits.

MXNet's own endings hang: its destructors wait at a barrier for processes that are
gone. So every way out of here is os._exit.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import traceback
from typing import Any, Callable, NoReturn, Optional

from .checkpoint import CheckpointDamaged
from .report import Reporter

EXIT_OK = 0
EXIT_ERROR = 1
# The checkpoint cannot be trusted: starting the same task again would not help.
EXIT_DAMAGED = 3

ERROR_TEXT_MAX = 2000
LEAVE_S_MAX = 2.0


def leave(reporter: Reporter, code: int = EXIT_OK) -> NoReturn:
    """End this process at once, after what was printed and reported has left."""
    reporter.flush()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # pylint: disable=broad-except  (a closed pipe must not keep us alive)
            pass
    os._exit(code)


def fail(reporter: Reporter, error: str, code: int = EXIT_ERROR) -> NoReturn:
    """Report an error to the agent and to stderr, then end this process."""
    try:
        print(f"optimus: {error}", file=sys.stderr)
    except Exception:  # pylint: disable=broad-except
        pass
    reporter.send("error", error=error[:ERROR_TEXT_MAX])
    leave(reporter, code)


def describe(error: BaseException) -> str:
    """An exception as `Type: text`, or its type alone when it has no text."""
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    return text or type(error).__name__


class Sentry:
    """Watches over a process whose main thread may sit in C for ever.

    A Python signal handler runs only between two bytecodes of the main thread, and
    never while that thread waits for a dead server. The interpreter's C handler still
    writes the signal's number to the wake-up descriptor, so a thread that reads there
    sees every SIGTERM. The same thread calls ``tick`` now and then.
    """

    def __init__(
        self,
        reporter: Reporter,
        tick: Optional[Callable[[], None]] = None,
        period_s: float = 0.1,
        patience_s: float = 0.0,
    ) -> None:
        """``patience_s``: how long after SIGTERM the main thread may go on by itself.

        Must be made in the main thread, where alone signal handlers can be set.
        """
        self.leaving = threading.Event()
        self._reporter = reporter
        self._tick = tick
        self._period_s = period_s if tick is not None else None
        self._patience_s = patience_s
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        os.register_at_fork(
            before=_hold_signals, after_in_parent=_release_signals, after_in_child=_forget_signals
        )
        threading.Thread(target=self._run, name="optimus-sentry", daemon=True).start()

    def _run(self) -> None:
        while not self._terminated():
            if self._tick is not None:
                try:
                    self._tick()
                except Exception:  # pylint: disable=broad-except  (the watch must go on)
                    traceback.print_exc()
        self.leaving.set()
        # Not a sleep for luck: the main thread leaves by itself if it gets to a step
        # boundary in time; this is the limit.
        threading.Event().wait(self._patience_s)
        leave(self._reporter)

    def _terminated(self) -> bool:
        ready, _, _ = select.select([self._receiver], [], [], self._period_s)
        if not ready:
            return False
        try:
            return signal.SIGTERM in self._receiver.recv(4096)
        except BlockingIOError:
            return False


# A forked child (a data loader's) shares the wake-up descriptor: its own SIGTERM must not
# look like ours, and must kill it. The signal waits while the child still has our handler.
_fork = threading.local()


def _hold_signals() -> None:
    _fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _fork.mask)


def _forget_signals() -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _release_signals()


def end_on_exception(reporter: Reporter, sentry: Sentry) -> None:
    """Make an uncaught exception, in any thread, report itself and end the process.

    MXNet would otherwise wait in its destructor, and with it the whole job.
    """
    owner = os.getpid()
    previous = sys.excepthook
    previous_thread = threading.excepthook

    def ended(error: BaseException) -> None:
        if os.getpid() != owner:
            return
        if sentry.leaving.is_set():
            leave(reporter)
        damaged = isinstance(error, CheckpointDamaged)
        fail(reporter, describe(error), EXIT_DAMAGED if damaged else EXIT_ERROR)

    def hook(kind: Any, error: BaseException, trace: Any) -> None:
        previous(kind, error, trace)
        ended(error)

    def thread_hook(arguments: Any) -> None:
        previous_thread(arguments)
        if not issubclass(arguments.exc_type, SystemExit):
            ended(arguments.exc_value or arguments.exc_type())

    sys.excepthook = hook
    threading.excepthook = thread_hook
