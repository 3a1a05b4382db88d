"""An agent for tests: starts the processes of one generation and speaks the contract.

It runs real MXNet processes on the loopback interface. Nothing here sleeps to give
something time: every wait is for a condition and has a limit.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EXAMPLES = os.path.join(PACKAGE, "examples")
WAIT_S_MAX = 60.0
# Small enough that the probe's larger arrays are cut into slices.
BIGARRAY_BOUND = 1000

Report = Dict[str, Any]


def await_true(condition: Callable[[], Any], what: str, limit_s: float = WAIT_S_MAX) -> Any:
    """The first true value of the condition; AssertionError naming ``what`` at the limit."""
    deadline = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"no {what} within {limit_s:.0f} s")
        time.sleep(0.005)


def checkpoint(
    folder: str, at_step: Optional[int], then: str = "hold", number: int = 7,
    released: bool = False,
) -> Dict[str, Any]:
    """The order for a checkpoint, as control.json has it."""
    return {
        "id": number, "at_step": at_step, "directory": folder, "then": then, "released": released,
    }


def scattered(sizes: Sequence[int], servers: int) -> List[List[List[int]]]:
    """An assignment that no rule would make: parts (server, elements) of each block.

    Blocks go round the servers, larger ones in three uneven parts, of which with one
    server or two at least two meet.
    """
    blocks = []
    for number, size in enumerate(sizes):
        elements = [size] if size < 50 else [size // 7, size // 2, size - size // 7 - size // 2]
        blocks.append([[(number + i) % servers, count] for i, count in enumerate(elements)])
    return blocks


class Node:
    """The agent's side of one node: a folder with the socket and control.json."""

    def __init__(self, receive: Callable[[Report], None]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="optimus-test-")
        self.directory = self._folder.name
        self._receive = receive
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(os.path.join(self.directory, "report.sock"))
        self.control(None)
        threading.Thread(target=self._run, daemon=True).start()

    def control(self, checkpoint: Optional[Dict[str, Any]]) -> None:
        """Replace control.json."""
        path = os.path.join(self.directory, "control.json")
        with open(path + ".tmp", "w", encoding="utf-8") as file:
            json.dump({"checkpoint": checkpoint}, file)
        os.rename(path + ".tmp", path)

    def assign(self, blocks: List[List[List[int]]]) -> None:
        """Write assignment.json."""
        path = os.path.join(self.directory, "assignment.json")
        with open(path + ".tmp", "w", encoding="utf-8") as file:
            json.dump({"schema": "optimus.layout/1", "blocks": blocks}, file)
        os.rename(path + ".tmp", path)

    def close(self) -> None:
        """Stop receiving; the folder goes away."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.sendto(b"", os.path.join(self.directory, "report.sock"))
        self._folder.cleanup()

    def _run(self) -> None:
        with self._socket:
            while True:
                message = self._socket.recv(65536)
                if not message:
                    return
                self._receive(json.loads(message, parse_constant=_refuse))


class Generation:
    """All processes of one generation of a job, with their reports and outputs."""

    def __init__(
        self,
        script: str,
        arguments: Sequence[str] = (),
        servers: int = 1,
        workers: int = 1,
        mode: str = "sync",
        epochs_max: int = 1000,
        resume: Optional[str] = None,
        number: int = 1,
        nodes: int = 1,
        environment: Optional[Dict[str, str]] = None,
        assigned: bool = False,
        ports: Optional[Dict[str, int]] = None,
        **batch: int,
    ) -> None:
        """``batch``: ``global_batch`` or ``worker_batch``.

        Worker i is on node i modulo ``nodes``; each node has its own folder.
        ``assigned``: blocks lie as :func:`scattered` says, not by MXNet's rule.
        """
        self.reports: List[Report] = []
        self.ports = dict(ports or {})
        self._servers = servers
        self._assigned = assigned
        self._sizes: Dict[int, int] = {}
        self._changed = threading.Condition()
        self.nodes = [Node(self._received) for _ in range(nodes)]
        self.directory = self.nodes[0].directory
        self.processes: Dict[str, subprocess.Popen] = {}
        common = {
            **os.environ,
            "PYTHONPATH": PACKAGE, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1",
            "EXAMPLES": EXAMPLES,
            "MXNET_KVSTORE_BIGARRAY_BOUND": str(BIGARRAY_BOUND),
            "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_NODE_HOST": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(_free_port()),
            "DMLC_NUM_WORKER": str(workers), "DMLC_NUM_SERVER": str(servers),
            "OPTIMUS_JOB": "j1", "OPTIMUS_GENERATION": str(number), "OPTIMUS_MODE": mode,
            "OPTIMUS_SERVERS": str(servers), "OPTIMUS_WORKERS": str(workers),
            "OPTIMUS_EPOCHS_MAX": str(epochs_max),
            **{f"OPTIMUS_{name.upper()}": str(size) for name, size in batch.items()},
            **({"OPTIMUS_ASSIGNMENT": "wait"} if assigned else {}),
            **(environment or {}),
        }
        if resume is not None:
            common["OPTIMUS_RESUME"] = resume
        command = [sys.executable, os.path.join(EXAMPLES, script), *arguments]
        tasks = [("scheduler", 1), ("server", servers), ("worker", workers)]
        for role, count in tasks:
            for index in range(count):
                self._start(command, role, index, common)

    def __enter__(self) -> "Generation":
        return self

    def __exit__(self, *_: Any) -> None:
        self.kill()
        for node in self.nodes:
            node.close()

    def _start(self, command: List[str], role: str, index: int, common: Dict[str, str]) -> None:
        name = f"{role}{index}"
        node = self.nodes[index % len(self.nodes)]
        environment = {
            **common, "OPTIMUS_ROLE": role, "OPTIMUS_INDEX": str(index),
            "OPTIMUS_DIR": node.directory,
        }
        if role != "scheduler":
            # As an agent does: in a chosen order, where the test has chosen ports.
            self.ports.setdefault(name, _free_port())
            environment["PORT"] = str(self.ports[name])
        with open(os.path.join(self.directory, f"{name}.out"), "wb") as out, \
                open(os.path.join(self.directory, f"{name}.err"), "wb") as err:
            self.processes[name] = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True,
            )

    def _received(self, report: Report) -> None:
        with self._changed:
            self.reports.append(report)
            if report["t"] == "blocks" and self._assigned:
                self._assign(report)
            self._changed.notify_all()

    def _assign(self, report: Report) -> None:
        self._sizes.update(enumerate(report["sizes"], report["first"]))
        if len(self._sizes) == report["of"]:
            sizes = [size for _, size in sorted(self._sizes.items())]
            for node in self.nodes:
                node.assign(scattered(sizes, self._servers))

    # -- what the agent tells -----------------------------------------------------------

    def control(self, checkpoint: Optional[Dict[str, Any]]) -> None:
        """Replace control.json on all nodes."""
        for node in self.nodes:
            node.control(checkpoint)

    def request(
        self, folder: str, at_step: Optional[int], then: str = "hold", number: int = 7,
        released: bool = False,
    ) -> None:
        """Ask for a checkpoint into ``folder``."""
        self.control(checkpoint(folder, at_step, then, number, released))

    # -- what the processes say ---------------------------------------------------------

    def seen(self, kind: str, **fields: Any) -> List[Report]:
        """All reports of a type so far that have the given fields."""
        with self._changed:
            return [
                report for report in self.reports
                if report["t"] == kind and all(report.get(k) == v for k, v in fields.items())
            ]

    def wait_for(self, kind: str, count: int = 1, **fields: Any) -> List[Report]:
        """Reports as of :meth:`seen`, from ``count`` different tasks at least."""
        def enough() -> Optional[List[Report]]:
            found = self.seen(kind, **fields)
            tasks = {(report["role"], report["i"]) for report in found}
            if len(tasks) < count:
                # Whoever reports an error ends: the report may still lie in the socket then.
                if kind != "error":
                    self.check_alive(kind)
                return None
            return found

        with self._changed:
            found = self._changed.wait_for(enough, timeout=WAIT_S_MAX)
        assert found, f"no {count} reports {kind} {fields}; output:\n{self.errors()}"
        return found

    def wait_for_step(self, step: int, workers: int = 1) -> None:
        """Until that many workers have reported a step from ``step`` on."""
        def enough() -> bool:
            self.check_alive(f"step {step}")
            return sum(1 for last in self.last_steps().values() if last >= step) >= workers

        with self._changed:
            arrived = self._changed.wait_for(enough, timeout=WAIT_S_MAX)
        assert arrived, f"step {step} not reached; output:\n{self.errors()}"

    def last_steps(self) -> Dict[int, int]:
        """The last reported step of each worker, by index."""
        return {
            report["i"]: report["steps"][-1][0] for report in self.seen("steps")
        }

    def check_alive(self, awaited: str) -> None:
        """Raises when a process has ended that a wait for ``awaited`` depends on."""
        # Expected ends are of tests that wait for them and not for reports.
        for name, process in self.processes.items():
            if process.poll() not in (None, 0) and not self.seen("error"):
                raise AssertionError(
                    f"{name} ended with {process.returncode} before {awaited}:\n{self.errors()}"
                )

    def output(self, name: str) -> str:
        """What a task has printed to stdout."""
        return self._read(f"{name}.out")

    def errors(self) -> str:
        """What all tasks have printed to stderr."""
        return "".join(f"-- {name}\n{self._read(f'{name}.err')}" for name in self.processes)

    def _read(self, name: str) -> str:
        with open(os.path.join(self.directory, name), encoding="utf-8") as file:
            return file.read()

    # -- ends ---------------------------------------------------------------------------

    def terminate(self, limit_s: float = 10.0) -> Dict[str, int]:
        """SIGTERM to all as an agent does; exit statuses once all are gone."""
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        return self.wait(limit_s)

    def wait(self, limit_s: float = WAIT_S_MAX, names: Sequence[str] = ()) -> Dict[str, int]:
        """Exit statuses once the named processes (or all) are gone."""
        deadline = time.monotonic() + limit_s
        statuses = {}
        for name in names or self.processes:
            process = self.processes[name]
            try:
                statuses[name] = process.wait(max(0.01, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{name} still lives after {limit_s:.0f} s") from None
        return statuses

    def kill(self) -> None:
        """SIGKILL to whatever still lives."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def free_ports(count: int) -> List[int]:
    """Ports that nobody holds, all different."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _refuse(constant: str) -> None:
    raise AssertionError(f"a report holds {constant}, which is not JSON")
