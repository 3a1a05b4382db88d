"""Optimus in a training script: what an MXNet script imports to be a job.

The same script is started for every process of a job, and runs alone, unchanged,
when no agent started it::

    import optimus                                  # before mxnet
    job = optimus.init(global_batch=256, epochs_max=30)
    import mxnet as mx

``init`` never returns in the processes that serve: they run their role instead. See
:class:`optimus.job.Job` for the rest of a script, and for the reason why a loss must
be one number for each sample.

A data set that the job's file names in [data] comes to its workers chunk by chunk, every
record once in an epoch, however often the job is rescaled::

    data = job.dataset("data/train.rec", format="recordio")   # the arguments: alone only
    for epoch in job.epochs(data):
        for batch in epoch:
            x, y = decode(batch.records)                      # a list of bytes

See :class:`optimus.data.Dataset`, :mod:`optimus.index` for the formats, and the example
``digits_records.py``.

Importing this package imports neither numpy nor MXNet.
"""

from __future__ import annotations

import os
from typing import Optional

from . import environment
from .environment import SettingsError
from .job import Job

__all__ = ["Job", "SettingsError", "init"]

_job: Optional[Job] = None


def init(
    global_batch: Optional[int] = None, worker_batch: Optional[int] = None,
    epochs_max: int = 1, seed: int = 0,
) -> Job:
    """Join the job that this process was started for; call it once, in the main thread.

    ``global_batch`` (samples of one update), ``worker_batch`` (samples of one worker's
    step) and ``epochs_max`` are for the script alone: under Optimus the job's own
    settings take their place. ``seed`` decides the order of the samples.

    An optimizer or schedule class of the script's own must be defined before the call
    (or in a module), because the servers unpickle it and never get further than here.

    Raises SettingsError when the environment or the arguments make no sense.
    """
    global _job
    if _job is not None:
        raise RuntimeError("optimus.init() was called twice")
    settings = environment.read(os.environ)
    if settings is None:
        settings = environment.alone(global_batch, worker_batch, epochs_max)
    if settings.role != "worker":
        from . import roles

        roles.run(settings)
    _job = Job(settings, seed)
    return _job
