"""What a worker can ask of all servers, as text in a command of MXNet's own kind.

The stock server gets its optimizer, a pickle in ASCII, by the same way; ours are told
from that by their prefix, with which no pickle begins.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Optional

# The kind of command that MXNet hands to a server's Python controller.
HEAD_CONTROLLER = 0
PREFIX = b"optimus "

SAVE = "save"
LOAD = "load"
LEARNING_RATE = "learning_rate"


def encode(command: str, **fields: Any) -> str:
    """Text of a command."""
    return PREFIX.decode() + json.dumps(dict(fields, command=command), separators=(",", ":"))


def decode(body: bytes) -> Optional[Dict[str, Any]]:
    """The fields of one of our commands, or None for anything else."""
    return json.loads(body[len(PREFIX):]) if body.startswith(PREFIX) else None
