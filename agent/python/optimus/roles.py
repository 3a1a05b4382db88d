"""The roles that run no training script: ps-lite's scheduler, and the servers."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from typing import NoReturn

from . import process
from .environment import Settings
from .report import Reporter


def run(settings: Settings) -> NoReturn:
    """Run a scheduler or server until it ends, then end the process."""
    reporter = Reporter(settings.directory, settings.role, settings.index)
    # Neither role has anything to finish: no patience after SIGTERM.
    sentry = process.Sentry(reporter, tick=reporter.flush_stale, period_s=1.0)
    process.end_on_exception(reporter, sentry)
    reporter.hello()
    if settings.role == "scheduler":
        _run_scheduler()
    else:
        from . import server

        server.run(settings, reporter)
    process.leave(reporter)


def _run_scheduler() -> None:
    """ps-lite's scheduler, by three calls of libmxnet.so.

    It needs nothing of Python's MXNet, whose import takes ten times as long as all
    the rest of the scheduler's start. Falls back to the import where the library is
    not found beside the package or lacks a call.
    """
    os.environ["DMLC_ROLE"] = "scheduler"
    try:
        library = ctypes.CDLL(_library_path())
        create, serve = library.MXKVStoreCreate, library.MXKVStoreRunServer
        last_error = library.MXGetLastError
    except (OSError, AttributeError, ImportError):
        # The import itself runs the scheduler to its end, and exits.
        import mxnet  # noqa: F401  pylint: disable=unused-import

        return
    last_error.restype = ctypes.c_char_p
    store = ctypes.c_void_p()
    controller = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    ignore = controller(lambda head, body, _: None)
    if create(b"dist", ctypes.byref(store)) != 0 or serve(store, ignore, None) != 0:
        raise RuntimeError(f"the parameter server scheduler failed: {last_error().decode()}")


def _library_path() -> str:
    # Finds the package without running it. Raises ImportError when there is none.
    found = importlib.util.find_spec("mxnet")
    if found is None or found.origin is None:
        raise ImportError("mxnet is not installed")
    return os.path.join(os.path.dirname(found.origin), "libmxnet.so")
