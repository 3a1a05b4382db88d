"""Which server holds which part of which array: the rule of the stock worker.

An array under the bound lives whole on one server; a larger one is cut into as many
nearly equal slices as there are servers. Servers see flat arrays only.
"""

from __future__ import annotations

import math
from typing import List, Mapping, NamedTuple, Optional, Tuple

BIGARRAY_BOUND_VARIABLE = "MXNET_KVSTORE_BIGARRAY_BOUND"
BIGARRAY_BOUND_DEFAULT = 1_000_000
KEY_MULTIPLIER = 9973


class Slice(NamedTuple):
    """Elements [start, stop) of a flat array, on one server."""

    server: int
    start: int
    stop: int


def bigarray_bound(environ: Mapping[str, str]) -> int:
    """The bound, in elements, that libmxnet reads from this environment."""
    return int(environ.get(BIGARRAY_BOUND_VARIABLE) or BIGARRAY_BOUND_DEFAULT)


def slices(key: int, size: int, servers: int, bound: int) -> List[Slice]:
    """Where the ``size`` elements of integer key ``key`` live, in order of elements."""
    if size < bound:
        return [Slice(key * KEY_MULTIPLIER % servers, 0, size)]
    edges = [_round(size / servers * index) for index in range(servers + 1)]
    return [Slice(index, edges[index], edges[index + 1]) for index in range(servers)]


def owned(key: int, size: int, servers: int, bound: int, rank: int) -> Optional[Tuple[int, int]]:
    """The elements [start, stop) of a key that server ``rank`` holds, or None."""
    for part in slices(key, size, servers, bound):
        if part.server == rank:
            return part.start, part.stop
    return None


def _round(value: float) -> int:
    # C's round() takes halves away from zero, Python's to the even neighbour.
    return math.floor(value + 0.5)
