"""The agent's orders to a worker: the file control.json, replaced by rename."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple, Optional, Tuple


class Request(NamedTuple):
    """A checkpoint that the master wants.

    ``at_step``: the global step after which all synchronous workers stop; None means
    after the present step (asynchronous). ``hold``: wait for the release afterwards.
    """

    id: int
    at_step: Optional[int]
    directory: str
    hold: bool
    released: bool


class Control:
    """Reads control.json, parsing it only when it has changed."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, "control.json")
        self._seen: Optional[Tuple[int, int, int]] = None
        self._request: Optional[Request] = None

    def poll(self) -> Optional[Request]:
        """The present request, or None. Costs one stat() when nothing has changed.

        A file that is missing or cannot be understood changes nothing: the last good
        order stands, since the agent may be restarting.
        """
        try:
            status = os.stat(self._path)
            # The inode alone can be reused by the next file.
            identity = (status.st_ino, status.st_mtime_ns, status.st_size)
            if identity != self._seen:
                with open(self._path, "rb") as file:
                    self._request = parse(json.loads(file.read()))
                self._seen = identity
        except (OSError, ValueError, TypeError, KeyError):
            pass
        return self._request


def parse(document: Any) -> Optional[Request]:
    """The request in a decoded control.json; raises ValueError, TypeError or KeyError."""
    checkpoint = document["checkpoint"]
    if checkpoint is None:
        return None
    if not isinstance(checkpoint, dict):
        raise TypeError("checkpoint is neither null nor an object")
    at_step = checkpoint.get("at_step")
    then = checkpoint["then"]
    if then not in ("continue", "hold"):
        raise ValueError(f"unknown continuation {then!r}")
    return Request(
        id=int(checkpoint["id"]),
        at_step=None if at_step is None else int(at_step),
        directory=str(checkpoint["directory"]),
        hold=then == "hold",
        released=bool(checkpoint.get("released", False)),
    )
