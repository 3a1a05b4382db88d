"""What goes into a checkpoint, and who writes it: rank 0, with the servers' help."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Tuple

from . import gateway, sampler as sampling
from .checkpoint import (
    MANIFEST, PARAMETERS, SCHEMA, Manifest, Part, described, server_table, write_json,
)
from .control import Request
from .environment import Settings
from .hold import Standing, saved_report
from .packing import Place, open_arrays, write_arrays
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
) -> Callable[[], Dict[str, Any]]:
    """Write the parts of a checkpoint; all workers stand still meanwhile. Runs on rank 0.

    Returns what completes it, and may take as long as storage does: it needs no worker any
    more, writes the manifest, and returns the fields of the `saved` report. Both raise when
    any part cannot be written.
    """
    # The scheduler's process comes by here as well, and has no use for it.
    from concurrent.futures import ThreadPoolExecutor

    target = gateway.target(request.directory, request.id)
    pulled = store.pull_parameters()
    # The servers answer the pulls, then write their states while the parameters arrive here
    # and are written.
    with ThreadPoolExecutor(1) as beside:
        states = beside.submit(store.save_states, request.directory, request.id)
        part, places, table = _save_parameters(target.folder, pulled, kept)
        states.result()
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
        "optimizer": store.optimizer_document(),
        "parameters": table,
        "places": places,
        "random": {"seed": seed},
    }
    if loop.data is not None:
        manifest["data"] = loop.data
    return lambda: _complete(target, request.id, settings.servers, part, manifest)


def _complete(
    target: Any, checkpoint: int, servers: int, parameters: Part, manifest: Dict[str, Any]
) -> Dict[str, Any]:
    target.store([parameters.file])
    parts = [parameters]
    num_update = 0
    for rank in range(servers):
        # A server that failed has left no table (and has reported why).
        content = target.read(server_table(rank))
        document = json.loads(content)
        parts += [described(server_table(rank), content), Part(**document["part"])]
        num_update = max(num_update, document["optimizer"]["num_update"])
    manifest["optimizer"]["num_update"] = num_update
    manifest["parts"] = [part.to_json() for part in parts]
    written = write_json(target.folder, MANIFEST, manifest)
    target.store([MANIFEST])
    return saved_report(checkpoint, manifest, written, PARTS_BYTES_MAX)


def read_kept(manifest: Manifest, name: str) -> Dict[str, "numpy.ndarray"]:
    """The arrays that were kept under ``name``; empty when there are none."""
    wanted = [entry for entry in manifest.document["parameters"] if entry.get("kept") == name]
    if not wanted:
        return {}
    arrays = open_arrays(
        manifest.folder, manifest.part(PARAMETERS), manifest.document.get("places")
    )
    return {entry["key"]: arrays[entry["array"]] for entry in wanted}


def _save_parameters(
    folder: str, pulled: Mapping[Any, Any], kept: Mapping[str, Callable[[], Dict[str, Any]]]
) -> Tuple[Part, Dict[str, Place], List[Dict[str, Any]]]:
    """Write parameters.npz; returns its part and places, and the table that names its arrays.

    An array of ``pulled`` is waited for only when its turn comes.
    """
    table: List[Dict[str, Any]] = []

    def entered(key: Any, array: Any, kept_as: str = "") -> Tuple[str, "numpy.ndarray"]:
        # Names of parameters may hold anything; names inside an npz are file names.
        name = f"a{len(table)}"
        entry = {"key": key, "array": name, "shape": list(array.shape)}
        table.append(dict(entry, kept=kept_as) if kept_as else entry)
        return name, array.asnumpy() if hasattr(array, "asnumpy") else array

    def arrays() -> Iterator[Tuple[str, "numpy.ndarray"]]:
        for key, value in pulled.items():
            yield entered(key, value)
        for name, get in kept.items():
            for key, value in get().items():
                yield entered(key, value, name)

    part, places = write_arrays(folder, PARAMETERS, arrays())
    return part, places, table


def _progress(
    settings: Settings, loop: sampling.Sampler, standings: Mapping[int, Standing]
) -> sampling.Progress:
    workers = {
        rank: sampling.Progress.from_json(standing["progress"])
        for rank, standing in standings.items()
    }
    # Synchronous workers all stand at the same point.
    return workers[0] if settings.mode == "sync" else sampling.merge(workers, loop)
