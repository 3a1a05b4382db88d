"""The way to storage that this machine cannot reach by itself: through the agent.

A checkpoint lies either in a folder of this machine (``/srv/ckpt/…``), where processes
read and write by themselves, or elsewhere (``hdfs://…``). There the agent serves its
tasks over ``files.sock`` in the generation's folder: what they wrote into a spool folder
of their node it stores, and what they want to read it brings.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from typing import Any, Dict, List, Sequence, Tuple

SOCKET = "files.sock"
# A longer path does not fit the address of a Unix socket (108 bytes with its NUL).
SOCKET_PATH_BYTES_MAX = 107
# A part of any size must fit; an agent that ends closes the connection, and a checkpoint
# that takes too long is called off by the master.
ANSWER_S_MAX = 3600.0
# An agent that restarts is back within seconds.
AGENT_AWAY_S_MAX = 60.0
AGENT_RETRY_S = 0.25


class StorageAway(Exception):
    """Storage cannot be used for now; the text is its own. Later it may be well."""


class NotWhole(Exception):
    """A file is missing in storage, or is not what was written."""


class GatewayRefused(Exception):
    """The agent does not do what was asked, and would not later either."""


def is_remote(folder: str) -> bool:
    """Whether a checkpoint's folder is reached through the agent."""
    return "://" in folder


def path_of(folder: str, name: str) -> str:
    """A file of this machine with the content of a file of a published checkpoint.

    Raises NotWhole where there is none, or another than was written.
    """
    if not is_remote(folder):
        return os.path.join(folder, name)
    return ask({"op": "fetch", "directory": folder, "file": name})[0]["path"]


class LocalTarget:
    """A checkpoint that is written to a folder of this machine, and is there at once."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def store(self, names: Sequence[str]) -> None:
        """Files that were written to ``folder`` are stored when this returns."""

    def hand_over(self, names: Sequence[str]) -> None:
        """The same, without waiting for it; in this order."""

    def read(self, name: str) -> bytes:
        """A small file that some process stored. Raises OSError."""
        with open(os.path.join(self.folder, name), "rb") as file:
            return file.read()


class SpooledTarget:
    """A checkpoint that is written to a spool folder of this node and stored by the agent."""

    def __init__(self, checkpoint: int) -> None:
        """Raises StorageAway or GatewayRefused, as do all methods."""
        self._base = {"checkpoint": checkpoint}
        self.folder = ask(dict(self._base, op="spool"))[0]["path"]

    def store(self, names: Sequence[str]) -> None:
        ask(dict(self._base, op="put", files=list(names), wait=True))

    def hand_over(self, names: Sequence[str]) -> None:
        ask(dict(self._base, op="put", files=list(names), wait=False))

    def read(self, name: str) -> bytes:
        """Waits until the file is stored, or the checkpoint is called off."""
        return ask(dict(self._base, op="get", file=name))[1]


def target(directory: str, checkpoint: int) -> Any:
    """Where to write the checkpoint of that number: a LocalTarget or a SpooledTarget."""
    return SpooledTarget(checkpoint) if is_remote(directory) else LocalTarget(directory)


def mark(checkpoint: int, name: str, text: str) -> None:
    """Leave a text for the other workers at this checkpoint; it never changes again."""
    ask({"op": "mark", "checkpoint": checkpoint, "name": name}, text.encode("utf-8"))


def marks(checkpoint: int, names: List[str]) -> Dict[str, str]:
    """The texts that were left under these names so far."""
    return ask({"op": "marks", "checkpoint": checkpoint, "names": names})[0]["marks"]


def ask(header: Dict[str, Any], body: bytes = b"") -> Tuple[Dict[str, Any], bytes]:
    """One request, with its answer. Every request may be repeated without harm.

    Raises StorageAway, GatewayRefused, or NotWhole.
    """
    deadline = time.monotonic() + AGENT_AWAY_S_MAX
    while True:
        try:
            answer, content = _exchange(header, body)
            break
        except (OSError, EOFError) as error:
            # Restarting, most likely: the next life of the agent serves the same folder.
            if time.monotonic() >= deadline:
                raise StorageAway(f"the agent does not answer: {error}") from error
            time.sleep(AGENT_RETRY_S)
    if answer.get("ok") is True:
        return answer, content
    kind, words = answer.get("kind"), str(answer.get("error"))
    if kind in ("missing", "damaged"):
        raise NotWhole(words)
    raise StorageAway(words) if kind == "unavailable" else GatewayRefused(words)


def _exchange(header: Dict[str, Any], body: bytes) -> Tuple[Dict[str, Any], bytes]:
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    descriptor = os.open(os.environ["OPTIMUS_DIR"], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            stream.settimeout(ANSWER_S_MAX)
            # Through the descriptor: a deep folder's path does not fit the address.
            stream.connect(f"/proc/self/fd/{descriptor}/{SOCKET}")
            stream.sendall(struct.pack(">II", len(text), len(body)) + text + body)
            lengths = struct.unpack(">II", _read(stream, 8))
            answer, content = (_read(stream, length) for length in lengths)
    finally:
        os.close(descriptor)
    return json.loads(answer), content


def _read(stream: socket.socket, length: int) -> bytes:
    content = bytearray()
    while len(content) < length:
        block = stream.recv(min(1 << 20, length - len(content)))
        if not block:
            raise EOFError("the connection was closed")
        content += block
    return bytes(content)
