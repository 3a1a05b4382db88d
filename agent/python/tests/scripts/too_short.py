"""A script that never trains: it ends at once, or fails in a thread, or forks."""

import os
import signal
import sys
import threading

import optimus

job = optimus.init(global_batch=4)


def fail() -> None:
    raise KeyError("lost")


if sys.argv[1:] == ["thread"]:
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
elif sys.argv[1:] == ["fork"]:
    child = os.fork()
    if child == 0:
        while True:
            signal.pause()
    os.kill(child, signal.SIGTERM)
    print(f"child ended by signal {os.WTERMSIG(os.waitpid(child, 0)[1])}")
    while True:
        signal.pause()
