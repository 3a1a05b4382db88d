"""What the agent tells a process of a job, read from the environment once.

Imports nothing but the standard library: the scheduler role lives on this
module alone and must start in a fraction of a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Optional

ROLES = ("scheduler", "server", "worker")
MODES = ("sync", "async")
# Where blocks of parameters lie: by MXNet's rule, or as the master assigns them.
ASSIGNMENTS = ("stock", "wait")


class SettingsError(ValueError):
    """A variable of the environment is missing or makes no sense; the text names it."""


@dataclass(frozen=True)
class Settings:
    """One process of one generation of a job.

    Exactly one of ``global_batch`` (samples of one update, shared by all workers)
    and ``worker_batch`` (samples of each worker) is set. ``assigned``: the workers wait
    for the master to say on which server each block of parameters lies.
    """

    job: str
    generation: int
    role: str
    index: int
    servers: int
    workers: int
    mode: str
    epochs_max: int
    global_batch: Optional[int] = None
    worker_batch: Optional[int] = None
    directory: Optional[str] = None
    resume: Optional[str] = None
    data: Optional[str] = None
    assigned: bool = False

    @property
    def distributed(self) -> bool:
        """Whether an agent started this process (else the script runs alone)."""
        return self.directory is not None

    @property
    def samples_per_update(self) -> float:
        """By how many samples a pushed gradient sum is divided before it is applied.

        Synchronous: the servers add up the pushes of all workers, so the divisor is
        the whole update's number of samples. Asynchronous: each push is an update of
        its own, so the divisor is one worker's share. The number is a constant of
        the generation, because the servers learn the gradient scale only once.
        """
        if self.global_batch is not None:
            share = 1 if self.mode == "sync" else self.workers
            return self.global_batch / share
        assert self.worker_batch is not None
        return float(self.worker_batch * (self.workers if self.mode == "sync" else 1))

    @property
    def worker_batch_max(self) -> int:
        """The largest number of samples that one worker gets in one step."""
        if self.worker_batch is not None:
            return self.worker_batch
        assert self.global_batch is not None
        return -(-self.global_batch // self.workers)


def alone(global_batch: Optional[int], worker_batch: Optional[int], epochs_max: int) -> Settings:
    """Settings of a script that runs without Optimus: one process, no servers."""
    if (global_batch is None) == (worker_batch is None):
        raise SettingsError("give exactly one of global_batch and worker_batch")
    if (global_batch or worker_batch or 0) < 1 or epochs_max < 1:
        raise SettingsError("batch and epochs_max must be at least 1")
    return Settings(
        job="alone", generation=0, role="worker", index=0, servers=0, workers=1, mode="sync",
        epochs_max=epochs_max, global_batch=global_batch, worker_batch=worker_batch,
    )


def read(environ: Mapping[str, str]) -> Optional[Settings]:
    """Settings from the agent's variables, or None outside Optimus (no OPTIMUS_JOB).

    Raises SettingsError naming the first variable that is missing or wrong.
    """
    if not environ.get("OPTIMUS_JOB"):
        return None
    global_batch = _count(environ, "OPTIMUS_GLOBAL_BATCH", optional=True)
    worker_batch = _count(environ, "OPTIMUS_WORKER_BATCH", optional=True)
    if (global_batch is None) == (worker_batch is None):
        raise SettingsError(
            "exactly one of OPTIMUS_GLOBAL_BATCH and OPTIMUS_WORKER_BATCH is needed"
        )
    return Settings(
        job=environ["OPTIMUS_JOB"],
        generation=_required(environ, "OPTIMUS_GENERATION", minimum=0),
        role=_choice(environ, "OPTIMUS_ROLE", ROLES),
        index=_required(environ, "OPTIMUS_INDEX", minimum=0),
        servers=_required(environ, "OPTIMUS_SERVERS"),
        workers=_required(environ, "OPTIMUS_WORKERS"),
        mode=_choice(environ, "OPTIMUS_MODE", MODES),
        epochs_max=_required(environ, "OPTIMUS_EPOCHS_MAX"),
        global_batch=global_batch,
        worker_batch=worker_batch,
        directory=_text(environ, "OPTIMUS_DIR"),
        resume=environ.get("OPTIMUS_RESUME") or None,
        data=environ.get("OPTIMUS_DATA") or None,
        assigned=_choice(environ, "OPTIMUS_ASSIGNMENT", ASSIGNMENTS, "stock") == "wait",
    )


def _text(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise SettingsError(f"{name} is not set")
    return value


def _choice(
    environ: Mapping[str, str], name: str, choices: tuple, default: Optional[str] = None
) -> str:
    value = environ.get(name) or default or _text(environ, name)
    if value not in choices:
        raise SettingsError(f"{name} is {value!r}, not one of {', '.join(choices)}")
    return value


def _count(
    environ: Mapping[str, str], name: str, optional: bool = False, minimum: int = 1
) -> Optional[int]:
    if optional and not environ.get(name):
        return None
    value = _text(environ, name)
    if not value.isdecimal() or int(value) < minimum:
        raise SettingsError(f"{name} is {value!r}, not a whole number from {minimum}")
    return int(value)


def _required(environ: Mapping[str, str], name: str, minimum: int = 1) -> int:
    value = _count(environ, name, minimum=minimum)
    assert value is not None, "only an optional count can be None"
    return value
