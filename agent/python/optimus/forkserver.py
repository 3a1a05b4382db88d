"""The fork server of a job: one process that has imported MXNet, and forks each task.

The import is by far the longest part of a task's start. The agent starts this module with the
job's own interpreter, once for a job and a number of threads, long before the tasks are
wanted if it can, and then orders them one by one::

    python -m optimus.forkserver        with the agent's end of a socket pair as its stdin

An order is a length (4 bytes, big-endian) and JSON: ``id``, ``environment``, ``directory`` and
``command``; with its first byte come the descriptors of the task's output and of its gate.
Answers are lines of JSON: ``ready`` or ``unusable`` once, then ``forked``, ``failed`` and
``ended``. A forked task waits at its gate until the agent has moved it to the task's control
group, and runs nothing where the gate is closed instead.

A task must not be able to tell that it was forked. It has its own process group, exactly its
own environment, also in ``/proc/PID/environ``, where the agent finds its tasks again, and its
script runs as ``__main__`` to an end like any other. It outlives this process, which ends with
the agent.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import threading
from typing import Any, Dict, List, NamedTuple, NoReturn, Optional, Tuple

# The priority of an import that nobody waits for yet. It takes a second of a core, and must be
# over within the three that a rescale is announced ahead, also beside training on all cores.
NICE = 2
SETUP_S_MAX = 5.0
ERROR_TEXT_MAX = 500
PR_SET_NAME = 15
COMMAND_NAME_MAX = 15


class Orphaned(Exception):
    """The agent is gone: nothing may be started for it any more."""


class Order(NamedTuple):
    """One task to fork; ``output`` is the descriptor of its stdout and stderr.

    The task runs nothing before a byte comes out of ``gate``. An agent of an older version
    gives none while the package is being replaced.
    """

    id: int
    environment: Dict[str, str]
    directory: str
    command: List[str]
    script: int
    output: int
    gate: Optional[int]


class Agent:
    """The agent's end of the line."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def fileno(self) -> int:
        return self._line.fileno()

    def tell(self, **fields: Any) -> None:
        """Raises Orphaned when the agent is gone."""
        try:
            self._line.sendall(json.dumps(fields).encode("utf-8") + b"\n")
        except OSError as error:
            raise Orphaned from error

    def order(self) -> Order:
        """The next order; blocks. Raises Orphaned."""
        head, ancillary, _, _ = self._line.recvmsg(4, socket.CMSG_SPACE(8))
        descriptors = [
            int.from_bytes(data[at:at + 4], sys.byteorder) for level, kind, data in ancillary
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS
            for at in range(0, len(data), 4)
        ]
        head += self._exactly(4 - len(head))
        fields = json.loads(self._exactly(int.from_bytes(head, "big")))
        gate = descriptors[1] if len(descriptors) > 1 else None
        return Order(output=descriptors[0], gate=gate, **fields)

    def _exactly(self, count: int) -> bytes:
        content = b""
        while len(content) < count:
            more = self._line.recv(count - len(content))
            if not more:
                raise Orphaned
            content += more
        return content

    def check(self) -> None:
        """Raises Orphaned when the agent is gone, even if orders of it are still unread."""
        poll = select.poll()
        poll.register(self._line, select.POLLRDHUP)
        if poll.poll(0):
            raise Orphaned

    def close(self) -> None:
        self._line.close()


class Block:
    """Where the kernel finds this process's arguments and environment, to be overwritten."""

    def __init__(self) -> None:
        """Raises OSError or ValueError when the kernel does not say."""
        with open("/proc/self/stat", "rb") as file:
            # Fields 48 to 51 of proc(5); the name, field 2, may hold blanks itself.
            fields = file.read().rpartition(b")")[2].split()
        arguments, arguments_end, environment, environment_end = map(int, fields[45:49])
        self._arguments = (arguments, arguments_end - arguments)
        self._environment = (environment, environment_end - environment)
        if min(*self._arguments, *self._environment) <= 0:
            raise ValueError("the kernel does not tell where the environment lies")

    def show(self, command: List[str], environment: Dict[str, str]) -> None:
        """Let ``/proc`` show them from now on; what does not fit is left out, the mark never.

        Nothing may use the old environment any more: the memory is the same.
        """
        first = ("OPTIMUS_TASK", "OPTIMUS_DIR")
        names = [*first, *(name for name in environment if name not in first)]
        entries = [os.fsencode(f"{name}={environment[name]}") for name in names]
        self._put(self._environment, entries, whole=2)
        self._put(self._arguments, [os.fsencode(word) for word in command], whole=0)

    @staticmethod
    def _put(place: Tuple[int, int], entries: List[bytes], whole: int) -> None:
        """The first ``whole`` entries must fit. Raises ValueError."""
        address, size = place
        content = b""
        for number, entry in enumerate(entries):
            if len(content) + len(entry) + 1 > size:
                if number < whole:
                    raise ValueError("the task's mark does not fit the environment's block")
                break
            content += entry + b"\0"
        ctypes.memset(address, 0, size)
        ctypes.memmove(address, content, len(content))


def preload() -> None:
    """Import what every task imports, and run nothing of it."""
    import numpy  # noqa: F401  pylint: disable=unused-import
    import mxnet  # noqa: F401  pylint: disable=unused-import

    from . import server, states, store, trainer  # noqa: F401  pylint: disable=unused-import


def _preload_aside(low: bool) -> Optional[str]:
    """Import in a thread, so that the agent's end is seen meanwhile; returns what went wrong.

    A thread's low priority stays with it, a process's could not be taken back.
    """
    outcome: List[Optional[str]] = []

    def run() -> None:
        try:
            if low:
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
            preload()
            outcome.append(None)
        except BaseException as error:  # pylint: disable=broad-except
            outcome.append(f"{type(error).__name__}: {error}"[:ERROR_TEXT_MAX])
        finally:
            os.close(done)

    waiting, done = os.pipe()
    thread = threading.Thread(target=run, name="optimus-preload")
    thread.start()
    poll = select.poll()
    poll.register(waiting, select.POLLIN)
    poll.register(0, select.POLLRDHUP)
    if all(descriptor != waiting for descriptor, _ in poll.poll()):
        os._exit(0)
    thread.join()
    os.close(waiting)
    return outcome[0]


def _opened_gpus() -> bool:
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("/dev/nvidia"):
                return True
        except OSError:
            continue
    return False


class Server:
    """Forks what the agent orders, and tells how it ended."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._block = Block()
        self._waker, self._wake = socket.socketpair()
        for end in (self._waker, self._wake):
            end.setblocking(False)

    def run(self) -> int:
        """Serve until the agent is gone. Returns in a forked task, with its exit status."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        self._agent.tell(ready=True, gpus=_opened_gpus())
        gc.collect()
        # A collection in a child would touch, and so copy, what all of them share.
        gc.freeze()
        while True:
            ready, _, _ = select.select([self._agent, self._waker], [], [])
            if self._waker in ready:
                self._drain()
            self._reap()
            if self._agent in ready:
                order = self._agent.order()
                self._agent.check()
                status = self._fork(order)
                if status is not None:
                    return status

    def _drain(self) -> None:
        try:
            while self._waker.recv(4096):
                pass
        except BlockingIOError:
            pass

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSIGNALED(status):
                self._agent.tell(ended=pid, signal=os.WTERMSIG(status))
            else:
                self._agent.tell(ended=pid, code=os.WEXITSTATUS(status))

    def _fork(self, order: Order) -> Optional[int]:
        """Fork a task and tell of it; returns in the task alone, with its exit status."""
        told, tell = os.pipe()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        pid = os.fork()
        if pid == 0:
            os.close(told)
            self._begin(order, tell)
            return _run(order)
        os.close(tell)
        for descriptor in (order.output, order.gate):
            if descriptor is not None:
                os.close(descriptor)
        ready, _, _ = select.select([told], [], [], SETUP_S_MAX)
        # One that ends first leaves nothing to read, and shows in the end as any other.
        words = os.read(told, ERROR_TEXT_MAX) if ready else b"not set up in time"
        os.close(told)
        if words != b"ok":
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self._agent.tell(failed=order.id, error=words.decode("utf-8", "replace"))
            return None
        self._agent.tell(forked=order.id, pid=pid)
        return None

    def _begin(self, order: Order, tell: int) -> None:
        """In the child: become the task, as far as the agent can see it."""
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for name in list(os.environ):
                del os.environ[name]
            os.environ.update(order.environment)
            self._block.show(order.command, order.environment)
            # Only once it can be found by its mark: an agent that came meanwhile has looked.
            self._agent.check()
            self._agent.close()
            self._waker.close()
            self._wake.close()
            for descriptor in (1, 2):
                os.dup2(order.output, descriptor)
            os.close(order.output)
            os.chdir(order.directory)
            _name(order.environment)
            os.write(tell, b"ok")
            os.close(tell)
            _pass(order.gate)
        except BaseException as error:  # pylint: disable=broad-except
            os.write(tell, f"{type(error).__name__}: {error}".encode("utf-8")[:ERROR_TEXT_MAX])
            os._exit(1)


def _pass(gate: Optional[int]) -> None:
    """Wait until the task may begin; ends the process where it may not."""
    if gate is None:
        return
    if not os.read(gate, 1):
        os._exit(1)
    os.close(gate)


def _name(environment: Dict[str, str]) -> None:
    """The short name that ``ps`` and ``top`` show: j12-worker0."""
    words = [environment.get(f"OPTIMUS_{name}", "") for name in ("JOB", "ROLE", "INDEX")]
    name = f"{words[0]}-{words[1]}{words[2]}"[:COMMAND_NAME_MAX]
    ctypes.CDLL(None).prctl(PR_SET_NAME, os.fsencode(name), 0, 0, 0)


def _run(order: Order) -> int:
    """Run the task's script as a fresh interpreter would; returns the exit status."""
    import importlib.machinery
    import tempfile
    import types

    import numpy

    numpy.random.seed()
    # What modules have noted of a start that was another one's.
    tempfile.tempdir = None
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].ORIGINAL_DIR = os.getcwd()  # type: ignore
    script = order.command[order.script]
    sys.argv = order.command[order.script:]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = list(order.command)
    sys.path[0] = os.path.dirname(os.path.realpath(script))
    loader = importlib.machinery.SourceFileLoader("__main__", script)
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __file__=script, __loader__=loader, __builtins__=sys.modules["builtins"],
        __cached__=None, __annotations__={},
    )
    sys.modules["__main__"] = main
    try:
        with open(script, "rb") as file:
            source = file.read()
    except OSError as error:
        print(
            f"{sys.executable}: can't open file {script!r}: [Errno {error.errno}] "
            f"{error.strerror}", file=sys.stderr,
        )
        return 2
    try:
        code = compile(source, script, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        sys.excepthook(type(error), error.with_traceback(None), None)
        return 1
    try:
        exec(code, main.__dict__)
        return 0
    except SystemExit as end:
        return _status(end.code)
    except BaseException as error:  # pylint: disable=broad-except
        # This function's own frame is none of the script's business.
        trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 130 if isinstance(error, KeyboardInterrupt) else 1


def _status(code: Any) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def main() -> int:
    """Serve; returns in forked tasks alone."""
    low = sys.argv[1:2] == ["low"]
    failure = _preload_aside(low)
    agent = Agent(socket.socket(fileno=os.dup(0)))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        if failure is not None:
            agent.tell(unusable=failure)
            _end(1)
        return Server(agent).run()
    except Orphaned:
        _end(0)


def _end(status: int) -> NoReturn:
    # Tasks live on; nothing here has anything to finish.
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
