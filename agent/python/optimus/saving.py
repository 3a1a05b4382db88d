"""What goes into a checkpoint, and who writes it: rank 0, with the servers' help."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Tuple

from . import sampler as sampling
from .checkpoint import (
    MANIFEST, PARAMETERS, SCHEMA, Manifest, Part, describe, read_arrays, read_verified,
    server_table, write_arrays, write_json,
)
from .control import Request
from .environment import Settings
from .hold import Standing, saved_report
from .report import DATAGRAM_BYTES_MAX

if TYPE_CHECKING:
    import numpy

    from .store import Store

# Leaves room for the other fields of the report.
PARTS_BYTES_MAX = DATAGRAM_BYTES_MAX - 512


def save(
    settings: Settings, seed: int, store: "Store", loop: sampling.Sampler,
    kept: Mapping[str, Callable[[], Dict[str, Any]]], request: Request,
    standings: Mapping[int, Standing],
) -> Dict[str, Any]:
    """Write a whole checkpoint; all workers stand still meanwhile. Runs on rank 0.

    Returns the fields of the `saved` report. Raises when any part cannot be written.
    """
    folder = request.directory
    parts, table = _save_parameters(folder, store, kept)
    store.save_states(folder, request.id)
    num_update = 0
    for rank in range(settings.servers):
        # A server that failed has left no table (and has reported why).
        described = describe(folder, server_table(rank))
        document = json.loads(read_verified(folder, described))
        parts += [described, Part(**document["part"])]
        num_update = max(num_update, document["optimizer"]["num_update"])
    progress = _progress(settings, loop, standings)
    left = sum(high - low for low, high in progress.epoch_left(progress.epoch, loop.samples))
    manifest = {
        "schema": SCHEMA,
        "job": settings.job,
        "generation": settings.generation,
        "checkpoint": request.id,
        "mode": settings.mode,
        "step": progress.step,
        "epoch": progress.epoch,
        "epoch_position": loop.samples - left,
        "samples_per_epoch": loop.samples,
        "steps_per_worker": {str(rank): standings[rank]["step"] for rank in sorted(standings)},
        "progress": progress.to_json(),
        "servers": settings.servers,
        "workers": settings.workers,
        "optimizer": dict(store.optimizer_document(), num_update=num_update),
        "parameters": table,
        "random": {"seed": seed},
        "parts": [part.to_json() for part in parts],
    }
    if loop.data is not None:
        manifest["data"] = loop.data
    written = write_json(folder, MANIFEST, manifest)
    return saved_report(request.id, manifest, written, PARTS_BYTES_MAX)


def read_kept(manifest: Manifest, name: str) -> Dict[str, "numpy.ndarray"]:
    """The arrays that were kept under ``name``; empty when there are none."""
    wanted = [entry for entry in manifest.document["parameters"] if entry.get("kept") == name]
    if not wanted:
        return {}
    arrays = read_arrays(manifest.folder, manifest.part(PARAMETERS))
    return {entry["key"]: arrays[entry["array"]] for entry in wanted}


def _save_parameters(
    folder: str, store: "Store", kept: Mapping[str, Callable[[], Dict[str, Any]]]
) -> Tuple[List[Part], List[Dict[str, Any]]]:
    """Write parameters.npz; returns its part and the table that names its arrays."""
    arrays: Dict[str, "numpy.ndarray"] = {}
    table: List[Dict[str, Any]] = []

    def add(key: Any, array: Any, kept_as: str = "") -> None:
        # Names of parameters may hold anything; names inside an npz are file names.
        name = f"a{len(arrays)}"
        arrays[name] = array.asnumpy() if hasattr(array, "asnumpy") else array
        entry = {"key": key, "array": name, "shape": list(array.shape)}
        table.append(dict(entry, kept=kept_as) if kept_as else entry)

    for key, value in store.parameters().items():
        add(key, value)
    for name, get in kept.items():
        for key, value in get().items():
            add(key, value, name)
    return [write_arrays(folder, PARAMETERS, arrays)], table


def _progress(
    settings: Settings, loop: sampling.Sampler, standings: Mapping[int, Standing]
) -> sampling.Progress:
    workers = {
        rank: sampling.Progress.from_json(standing["progress"])
        for rank, standing in standings.items()
    }
    # Synchronous workers all stand at the same point.
    return workers[0] if settings.mode == "sync" else sampling.merge(workers, loop)
