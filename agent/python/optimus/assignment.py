"""How a worker learns where its blocks are to lie: it asks, and the master answers.

Rank 0 reports the sizes of the job's blocks, in the order of their initialisation; the
agent of each worker writes what the master answers to ``assignment.json`` in the
generation's folder, as::

    {"schema": "optimus.layout/1", "blocks": [[[server, elements], ...], ...]}

where a block's parts are in the order of its elements. Where the master knew the blocks
from an earlier generation, the file is there before the worker asks.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from .layout import LayoutError
from .report import Reporter

FILE = "assignment.json"
SCHEMA = "optimus.layout/1"
# A worker that waits for the answer reports its blocks again and again: a datagram may
# be lost, and the agent may restart.
REPEAT_S = 1.0
POLL_S = 0.01
# So many sizes, of at most 20 digits each, fit one datagram beside the other fields.
SIZES_PER_DATAGRAM = 350
# Most blocks of which anybody makes an assignment.
BLOCKS_MAX = 16_384

# (server, elements) of each part of a block.
Parts = List[Tuple[int, int]]


def reports(sizes: Sequence[int]) -> List[Tuple[str, Dict[str, Any]]]:
    """Kind and fields of the reports of the elements of each block; none of too many."""
    if len(sizes) > BLOCKS_MAX:
        return []
    return [
        ("blocks", {
            "first": first, "of": len(sizes),
            "sizes": list(sizes[first:first + SIZES_PER_DATAGRAM]),
        })
        for first in range(0, len(sizes), SIZES_PER_DATAGRAM)
    ]


def wait(
    directory: str, reporter: Optional[Reporter], sizes: Sequence[int], pause: Callable[[float], Any]
) -> List[Parts]:
    """The parts of each block, as soon as the master has assigned them.

    ``reporter`` is given on rank 0 alone. ``pause(seconds)`` must not return where this
    process is to end. Raises LayoutError when the answer is for other blocks.
    """
    if len(sizes) > BLOCKS_MAX:
        raise LayoutError(
            f"the model has {len(sizes)} blocks of parameters, more than {BLOCKS_MAX}: "
            'submit it with assignment = "mxnet"'
        )
    next_report = 0.0
    path = os.path.join(directory, FILE)
    while True:
        # First: the master keeps what is reported, even where the answer below is refused.
        if reporter is not None and time.monotonic() >= next_report:
            next_report = time.monotonic() + REPEAT_S
            for kind, fields in reports(sizes):
                reporter.send(kind, **fields)
        try:
            with open(path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            pause(POLL_S)
            continue
        return fitting(parse(content), sizes)


def parse(content: bytes) -> List[Parts]:
    """The blocks' parts in the bytes of the file; raises LayoutError."""
    try:
        document = json.loads(content)
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema {document['schema']!r} is not {SCHEMA!r}")
        return [[(int(s), int(elements)) for s, elements in parts] for parts in document["blocks"]]
    except (ValueError, KeyError, TypeError) as error:
        raise LayoutError(f"{FILE} is not understood: {error}") from error


def fitting(blocks: List[Parts], sizes: Sequence[int]) -> List[Parts]:
    """``blocks`` again; raises LayoutError unless they are parts of blocks of these sizes."""
    remedy = "was the script changed? Submit it as a job of its own"
    if len(blocks) != len(sizes):
        raise LayoutError(
            f"the model has {len(sizes)} blocks of parameters, "
            f"and the assignment was made for {len(blocks)}: {remedy}"
        )
    for number, (parts, size) in enumerate(zip(blocks, sizes)):
        assigned = sum(elements for _, elements in parts)
        if assigned != size or not parts or any(e < 1 for _, e in parts) and size > 0:
            raise LayoutError(
                f"block {number} of the model has {size} parameters, "
                f"and the assignment was made for {assigned}: {remedy}"
            )
    return blocks
