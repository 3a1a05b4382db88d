"""Which server holds which part of which block, and under which key.

A *block* is one array of the script. Its number is what the stock servers know it by:
the script's own integer key, or the turn of a string key at initialisation. Servers see
flat arrays only. Two layouts exist, and a checkpoint does not depend on which one was
used: it names blocks and ranges of their elements.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

BIGARRAY_BOUND_VARIABLE = "MXNET_KVSTORE_BIGARRAY_BOUND"
BIGARRAY_BOUND_DEFAULT = 1_000_000
# The largest that libmxnet reads from the variable: nothing is cut behind our back.
BIGARRAY_BOUND_MAX = 2_147_483_647
KEY_MULTIPLIER = 9973
# libmxnet multiplies in 32 bits with a sign: KEY_MULTIPLIER * key must stay below 2^31.
KEY_MAX = 215_329


class Slice(NamedTuple):
    """Elements [start, stop) of a flat array, on one server."""

    server: int
    start: int
    stop: int


class Span(NamedTuple):
    """Elements [start, stop) of a block, which a server holds under ``key``."""

    key: int
    start: int
    stop: int


class Origin(NamedTuple):
    """Of which block a server's array is a part: elements [start, stop) of ``size``."""

    block: int
    size: int
    start: int
    stop: int


class LayoutError(ValueError):
    """An assignment cannot be used; the text says why."""


def bigarray_bound(environ: Mapping[str, str]) -> int:
    """The bound, in elements, that libmxnet reads from this environment."""
    return int(environ.get(BIGARRAY_BOUND_VARIABLE) or BIGARRAY_BOUND_DEFAULT)


def slices(key: int, size: int, servers: int, bound: int) -> List[Slice]:
    """Where the stock worker puts the ``size`` elements of integer key ``key``, in order.

    An array under the bound lies whole on one server; a larger one is cut into as many
    nearly equal slices as there are servers.
    """
    if size < bound:
        return [Slice(key * KEY_MULTIPLIER % servers, 0, size)]
    edges = [_round(size / servers * index) for index in range(servers + 1)]
    return [Slice(index, edges[index], edges[index + 1]) for index in range(servers)]


class StockLayout:
    """The rule of the stock worker."""

    def __init__(self, servers: int, bound: int, sizes: Mapping[int, int]) -> None:
        """``sizes``: elements of each block; may be empty where only :meth:`held` is used."""
        self._servers = servers
        self._bound = bound
        self._sizes = dict(sizes)

    def held(self, block: int, size: int, rank: int) -> List[Span]:
        """What server ``rank`` holds of a block."""
        parts = slices(block, size, self._servers, self._bound)
        return [Span(block, part.start, part.stop) for part in parts if part.server == rank]

    def origin(self, key: int, rank: int) -> Optional[Origin]:
        """What server ``rank`` holds under ``key``; None when it should hold nothing."""
        size = self._sizes.get(key)
        spans = [] if size is None else self.held(key, size, rank)
        return Origin(key, size, spans[0].start, spans[0].stop) if spans else None

    def to_json(self) -> Dict[str, Any]:
        """For :func:`from_json`."""
        return {"bound": self._bound, "sizes": self._sizes}


# (key, server, elements) of each part of a block, in the order of its elements.
Parts = Sequence[Tuple[int, int, int]]


class AssignedLayout:
    """Each part of each block on the server that it was assigned to."""

    def __init__(self, parts: Mapping[int, Parts]) -> None:
        """``parts``: of each block, by its number."""
        self._parts = {block: [tuple(part) for part in parts] for block, parts in parts.items()}
        self._spans: Dict[Tuple[int, int], List[Span]] = {}
        self._origins: Dict[int, Tuple[int, Origin]] = {}
        for block, found in self._parts.items():
            size, start = sum(elements for _, _, elements in found), 0
            for key, server, elements in found:
                stop = start + elements
                self._spans.setdefault((block, server), []).append(Span(key, start, stop))
                self._origins[key] = (server, Origin(block, size, start, stop))
                start = stop

    def held(self, block: int, size: int, rank: int) -> List[Span]:
        """What server ``rank`` holds of a block, in the order of its elements."""
        del size  # known from the parts
        return self._spans.get((block, rank), [])

    def origin(self, key: int, rank: int) -> Optional[Origin]:
        """What server ``rank`` holds under ``key``; None when it should hold nothing."""
        server, origin = self._origins.get(key, (None, None))
        return origin if server == rank else None

    def to_json(self) -> Dict[str, Any]:
        """For :func:`from_json`."""
        return {"parts": self._parts}


Layout = Union[StockLayout, AssignedLayout]


def from_json(document: Mapping[str, Any], servers: int) -> Layout:
    """The layout of a decoded document; JSON has turned its numbers of blocks into text."""
    if "parts" in document:
        return AssignedLayout({int(block): p for block, p in document["parts"].items()})
    sizes = {int(block): size for block, size in document["sizes"].items()}
    return StockLayout(servers, document["bound"], sizes)


class Keys:
    """Gives out keys that the stock worker sends to a chosen server.

    It sends key k to server k * 9973 mod p. 9973 is prime, so the keys of server s are
    those with k = s * 9973^-1 (mod p).
    """

    def __init__(self, servers: int) -> None:
        """Raises LayoutError when the stock rule cannot reach each server."""
        self._servers = servers
        self._given = [0] * servers
        if servers % KEY_MULTIPLIER == 0:
            raise LayoutError(f"keys cannot be chosen for {servers} servers")
        self._inverse = pow(KEY_MULTIPLIER, -1, servers) if servers > 1 else 0

    def next(self, server: int) -> int:
        """A key of that server which was not given before; raises LayoutError at the last."""
        if not 0 <= server < self._servers:
            raise LayoutError(f"a part is assigned to server {server} of {self._servers}")
        key = server * self._inverse % self._servers + self._servers * self._given[server]
        self._given[server] += 1
        if key > KEY_MAX:
            raise LayoutError(
                f"server {server} holds {self._given[server]} parts, more than there are keys for"
            )
        return key

    def of(self, parts: Iterable[Tuple[int, int]]) -> List[Tuple[int, int, int]]:
        """(key, server, elements) of a block's parts (server, elements)."""
        return [(self.next(server), server, elements) for server, elements in parts]


def _round(value: float) -> int:
    # C's round() takes halves away from zero, Python's to the even neighbour.
    return math.floor(value + 0.5)
