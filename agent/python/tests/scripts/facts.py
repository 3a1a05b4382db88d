"""Prints what a script can see of its own start, as JSON; ends as its first argument says."""

import atexit
import json
import multiprocessing.process
import os
import pickle
import signal
import sys
import threading


class Own:
    """Pickles only where this module is really ``__main__``."""


facts = {
    "name": __name__,
    "file": __file__,
    "spec": repr(__spec__),
    "argv": sys.argv,
    "path": sys.path,
    "directory": os.getcwd(),
    "environment": dict(os.environ),
    "pickled": type(pickle.loads(pickle.dumps(Own()))).__name__,
    "leads": os.getpgid(0) == os.getpid(),
    "threads": [thread.name for thread in threading.enumerate()],
    "main thread": threading.current_thread() is threading.main_thread(),
    "handlers": [str(signal.getsignal(number)) for number in (
        signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE, signal.SIGINT
    )],
    "wakeup": signal.set_wakeup_fd(-1),
    "nice": os.nice(0),
    "descriptors": sorted(
        int(name) for name in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{name}") and "/dev/" not in os.readlink(
            f"/proc/self/fd/{name}"
        )
    ),
    "original directory": multiprocessing.process.ORIGINAL_DIR,
    "stdin": os.readlink("/proc/self/fd/0"),
}
for name in ("environ", "cmdline"):
    with open(f"/proc/self/{name}", "rb") as file:
        words = [os.fsdecode(word) for word in file.read().split(b"\0") if word]
        facts[f"kernel's {name}"] = sorted(words)
print(json.dumps(facts, sort_keys=True))
atexit.register(lambda: print("at exit"))


def late() -> None:
    threading.main_thread().join()
    print("a thread that was waited for")


threading.Thread(target=late).start()


def deep(what: str) -> None:
    if what == "raise":
        raise ValueError("as told")
    if what == "signal":
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "words":
        sys.exit("some words")
    sys.exit(int(what) if what else None)


deep(sys.argv[1])
