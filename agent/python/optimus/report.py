"""Reports to the agent: one JSON object a datagram, never blocking, never raising.

The agent may be slow, restarting or gone. Training must not notice: every failure
to send is swallowed and counted. What matters is sent again by the callers.
"""

from __future__ import annotations

import json
import math
import os
import socket
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

VERSION = 1
DATAGRAM_BYTES_MAX = 8192
# A JSON line of one step takes about 100 bytes at worst, so this many fit one datagram.
STEPS_PER_DATAGRAM_MAX = 64
STEPS_DELAY_S_MAX = 0.2
HELLO_PERIOD_S = 5.0
# How often reports that nothing answers are sent, in case one is lost.
REPEATS = 3
# A longer path does not fit the address of a Unix socket (108 bytes with its NUL).
SOCKET_PATH_BYTES_MAX = 107

Step = Tuple[int, int, float, float, float, int]


class Reporter:
    """Sends the reports of one process. Safe to call from any thread."""

    def __init__(self, directory: Optional[str], role: str, index: int) -> None:
        """``directory`` holds the agent's ``report.sock``; None sends nothing at all."""
        self.sent = 0
        self.dropped = 0
        self._base: Dict[str, Any] = {"v": VERSION, "role": role, "i": index}
        self._lock = threading.RLock()
        self._steps: List[Step] = []
        self._steps_since = 0.0
        self._hello: Dict[str, Any] = {"pid": os.getpid(), "rank": None}
        self._hello_sent = 0.0
        self._repeated: List[Tuple[str, Dict[str, Any]]] = []
        self._repeats = 0
        self._socket: Optional[socket.socket] = None
        self._address = ""
        if directory is not None:
            try:
                self._address = _socket_address(directory)
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)
            except OSError:
                self.dropped += 1

    def hello(self, **fields: Any) -> None:
        """Introduce this process, and remember the fields for the repetitions."""
        with self._lock:
            self._hello.update(fields)
            self._say_hello()

    def set_rank(self, rank: int) -> None:
        """From now on every report carries the store's rank beside the task's index."""
        with self._lock:
            self._base["rank"] = rank
        self.hello(rank=rank)

    def step(self, step: Step) -> None:
        """Queue one (step, epoch, loss, duration_s, compute_s, samples); sends in batches."""
        with self._lock:
            if not self._steps:
                self._steps_since = time.monotonic()
            self._steps.append(step)
            if len(self._steps) >= STEPS_PER_DATAGRAM_MAX:
                self.flush()

    def flush_stale(self) -> None:
        """Send queued steps that have waited long enough, and the periodic hello."""
        now = time.monotonic()
        with self._lock:
            if self._steps and now - self._steps_since >= STEPS_DELAY_S_MAX:
                self.flush()
            if now - self._hello_sent >= HELLO_PERIOD_S:
                self._say_hello()

    def flush(self) -> None:
        """Send all queued steps now."""
        with self._lock:
            steps, self._steps = self._steps, []
            if not steps or self._send("steps", {"steps": steps}):
                return
            if len(steps) < STEPS_PER_DATAGRAM_MAX:
                # The agent does not keep up just now: they go with the next ones.
                self._steps = steps

    def send(self, kind: str, **fields: Any) -> bool:
        """Send one report after the steps queued before it; True when it left.

        A report that does not fit a datagram is not sent (and counted as dropped).
        """
        with self._lock:
            self.flush()
            return self._send(kind, fields)

    def repeat(self, reports: List[Tuple[str, Dict[str, Any]]]) -> None:
        """Send reports (kind, fields) now, and with the next hellos again."""
        with self._lock:
            self._repeated, self._repeats = reports, REPEATS
            self._send_repeated()

    def _send_repeated(self) -> None:
        if self._repeats > 0:
            self._repeats -= 1
            for kind, fields in self._repeated:
                self._send(kind, fields)

    def close(self) -> None:
        """Send no more."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def _say_hello(self) -> None:
        self._hello_sent = time.monotonic()
        self._send("hello", self._hello)
        self._send_repeated()

    def _send(self, kind: str, fields: Dict[str, Any]) -> bool:
        if self._socket is None:
            return False
        try:
            message = encode(dict(self._base, t=kind, **fields))
            if len(message) > DATAGRAM_BYTES_MAX:
                raise ValueError("report exceeds a datagram")
            self._socket.sendto(message, self._address)
        except Exception:  # pylint: disable=broad-except  (a report must never fail training)
            self.dropped += 1
            return False
        self.sent += 1
        return True


def encode(report: Dict[str, Any]) -> bytes:
    """JSON bytes of a report; non-finite numbers become "nan", "inf" or "-inf"."""
    try:
        text = json.dumps(report, allow_nan=False, separators=(",", ":"))
    except ValueError:
        # Only here the slow walk is needed: nearly all reports are finite.
        text = json.dumps(_finite(report), allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def _socket_address(directory: str) -> str:
    path = os.path.join(directory, "report.sock")
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
        return path
    # Reach a deep folder through an open descriptor; it stays open as long as we live.
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return f"/proc/self/fd/{descriptor}/report.sock"
