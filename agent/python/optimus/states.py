"""Optimizer states of the servers: to files, and back onto any number of servers.

An updater keeps, for each key, a state that its optimizer made: None, an array of the
key's (flat) slice, or a tuple of such. A server writes its slices with the block that
each belongs to and the range of elements that it covers; on restart a server collects
for every range that it now holds the pieces that the old servers had, in order. So it
does not matter by which layout the blocks lay before, and lie now.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Tuple

import mxnet as mx
import numpy

from . import layout
from .checkpoint import (
    CheckpointDamaged, CheckpointUnfit, Manifest, read_verified, server_states, server_table,
    write_json,
)
from .packing import open_arrays, write_arrays

SCHEMA = "optimus.server/1"

# Settings, not progress: a restarted script says itself what it wants them to be.
_NOT_PROGRESS = ("lr", "rescale_grad", "num_update", "begin_num_update")


# A larger state is written in several pieces: a server that owns a part of it later need
# not read, and prove, the rest.
PIECE_ELEMENTS_MAX = 1 << 20


class StateError(Exception):
    """A state cannot be saved or mapped; the text says which."""


class Piece(NamedTuple):
    """Elements [start, stop) of the state of a block, as one old server wrote them."""

    start: int
    stop: int
    updates: int
    template: Any
    arrays: List[str]
    source: Mapping[str, numpy.ndarray]


def numbers(optimizer: Any) -> Dict[str, float]:
    """The plain numbers among an optimizer's attributes (Nadam, say, evolves one)."""
    return {
        name: value
        for name, value in vars(optimizer).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
        and name not in _NOT_PROGRESS
    }


def update_counts(optimizer: Any) -> Dict[int, int]:
    """How often each key was updated on this (single-device) server; the live dictionary."""
    return optimizer._all_index_update_counts.setdefault(0, {})


def carry_progress(old: Any, new: Any) -> None:
    """Let optimizer ``new`` go on where ``old`` stands: counts, and with them Adam's t."""
    new._all_index_update_counts = old._all_index_update_counts
    new._index_update_count = old._index_update_count
    new.num_update = old.num_update


def save(
    updater: Any, initial: Mapping[str, float], folder: str, rank: int, servers: int,
    placed: layout.Layout,
) -> None:
    """Write a server's states, by block and range of elements.

    ``initial``: the optimizer's numbers when it was set; those that have changed since
    are saved. Raises StateError or OSError.
    """
    arrays: Dict[str, numpy.ndarray] = {}
    entries = []
    counts = update_counts(updater.optimizer)
    for key, state in sorted(updater.states.items()):
        origin = placed.origin(key, rank)
        if origin is None:
            raise StateError(f"server {rank} holds key {key}, which belongs to another server")
        count = origin.stop - origin.start
        leaves: List[numpy.ndarray] = []
        template = _flatten(state, leaves)
        for leaf in leaves:
            if leaf.size != count:
                raise StateError(
                    f"state of key {key} has {leaf.size} elements for {count} parameters"
                )
        for start, stop in _pieces_of(origin.start, origin.stop):
            names = []
            for leaf in leaves:
                names.append(f"a{len(arrays)}")
                arrays[names[-1]] = leaf.reshape(-1)[start - origin.start:stop - origin.start]
            entries.append({
                "key": origin.block, "size": origin.size, "start": start, "stop": stop,
                "updates": counts.get(key, 0), "template": template, "arrays": names,
                "dtypes": [str(leaf.dtype) for leaf in leaves],
            })
    part, places = write_arrays(folder, server_states(rank), arrays.items())
    evolved = {
        name: value for name, value in numbers(updater.optimizer).items()
        if initial.get(name) != value
    }
    # The table comes last: its presence says that this server's part is complete.
    write_json(folder, server_table(rank), {
        "schema": SCHEMA, "rank": rank, "servers": servers, "part": part.to_json(),
        "places": places,
        "optimizer": {
            "name": type(updater.optimizer).__name__,
            "num_update": updater.optimizer.num_update,
            "numbers": evolved,
        },
        "entries": entries,
    })


def load(
    updater: Any, manifest: Manifest, rank: int, placed: layout.Layout
) -> None:
    """Give a fresh updater the states of a checkpoint that this server now owns.

    Raises CheckpointDamaged when a part is damaged, CheckpointUnfit when the optimizer
    is another one.
    """
    tables = [_read_table(manifest, old) for old in manifest.server_ranks()]
    optimizer = updater.optimizer
    for table in tables:
        saved = table["optimizer"]
        if saved["name"] != type(optimizer).__name__:
            raise CheckpointUnfit(
                f"the checkpoint was written with the optimizer {saved['name']}, "
                f"the job now uses {type(optimizer).__name__}; was the script changed?"
            )
        optimizer.num_update = max(optimizer.num_update, saved["num_update"])
    # Where servers differ (they should not) the first one speaks for all.
    for name, value in (tables[0]["optimizer"]["numbers"] if tables else {}).items():
        setattr(optimizer, name, value)
    counts = update_counts(optimizer)
    for span, block, pieces in _pieces(manifest, tables, rank, placed):
        updater.states[span.key] = _assemble(block, span, pieces)
        updater.states_synced[span.key] = True
        counts[span.key] = max(piece.updates for piece in pieces)


def _read_table(manifest: Manifest, rank: int) -> Dict[str, Any]:
    name = server_table(rank)
    try:
        table = json.loads(read_verified(manifest.folder, manifest.part(name)))
        if table["schema"] != SCHEMA:
            raise ValueError(f"unknown schema {table['schema']!r}")
        return table
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointDamaged(f"{name} is not understood: {error}") from error


def _pieces(
    manifest: Manifest, tables: List[Dict[str, Any]], rank: int, placed: layout.Layout
) -> Iterator[Tuple[layout.Span, int, List[Piece]]]:
    """(span, block, overlapping pieces in order) for all that this server holds.

    Opens the arrays only of those old servers that had something we hold.
    """
    sources: Dict[int, Mapping[str, numpy.ndarray]] = {}
    found: Dict[layout.Span, Tuple[int, List[Piece]]] = {}
    for table in tables:
        for entry in table["entries"]:
            block = entry["key"]
            for span in placed.held(block, entry["size"], rank):
                if entry["stop"] <= span.start or entry["start"] >= span.stop:
                    continue
                old = table["rank"]
                if entry["arrays"] and old not in sources:
                    sources[old] = open_arrays(
                        manifest.folder, manifest.part(server_states(old)), table.get("places")
                    )
                found.setdefault(span, (block, []))[1].append(Piece(
                    entry["start"], entry["stop"], entry["updates"], entry["template"],
                    entry["arrays"], sources.get(old, {}),
                ))
    for span, (block, pieces) in sorted(found.items()):
        yield span, block, sorted(pieces, key=lambda piece: piece.start)


def _assemble(block: int, span: layout.Span, pieces: List[Piece]) -> Any:
    """The state of elements [span) of a block from pieces that must cover them."""
    reached = span.start
    for piece in pieces:
        if piece.start > reached or piece.template != pieces[0].template:
            break
        reached = piece.stop
    if reached < span.stop:
        raise CheckpointDamaged(
            f"the states of block {block} do not cover its elements from {reached}"
        )
    leaves = []
    for number in range(len(pieces[0].arrays)):
        parts = []
        for piece in pieces:
            start, stop = max(piece.start, span.start), min(piece.stop, span.stop)
            array = piece.source[piece.arrays[number]]
            parts.append(array[start - piece.start:stop - piece.start])
        leaf = parts[0] if len(parts) == 1 else numpy.concatenate(parts)
        leaves.append(mx.nd.array(leaf, dtype=leaf.dtype))
    return _build(pieces[0].template, iter(leaves))


def _pieces_of(start: int, stop: int) -> List[Tuple[int, int]]:
    """Elements [start, stop), cut into pieces; of no elements one piece."""
    starts = list(range(start, stop, PIECE_ELEMENTS_MAX)) or [start]
    return list(zip(starts, starts[1:] + [stop]))


def _flatten(state: Any, leaves: List[numpy.ndarray]) -> Any:
    """The JSON shape of a state; its arrays are appended to ``leaves`` in order."""
    if state is None or isinstance(state, (int, float)):
        return state
    if isinstance(state, mx.nd.NDArray):
        leaves.append(state.asnumpy())
        return "array"
    if isinstance(state, (tuple, list)):
        return [type(state).__name__] + [_flatten(item, leaves) for item in state]
    raise StateError(f"a state of type {type(state).__name__} cannot be saved")


def _build(template: Any, leaves: Iterator[Any]) -> Any:
    """The state of a JSON shape; the inverse of :func:`_flatten`."""
    if template == "array":
        return next(leaves)
    if isinstance(template, list):
        items = [_build(item, leaves) for item in template[1:]]
        return tuple(items) if template[0] == "tuple" else items
    return template
