"""Runs a training script, unchanged, until a file names the last epoch.

So jobs train for as long as a test needs them, and end all workers at one epoch. Batches come
no faster than from a slow disk: several hosts share the processors of the machine under test.
usage: until.py FILE SCRIPT [ARGUMENT...]
"""

import runpy
import sys
import time
from pathlib import Path

from optimus import job

asked = Path(sys.argv[1])
whole = job.Job.epochs
record = job.Job.record

# Seconds from one batch to the next.
PACE = 0.05


def last() -> float:
    try:
        return float(asked.read_text())
    except (OSError, ValueError):
        return float("inf")


def epochs(self, *args, **named):
    for epoch in whole(self, *args, **named):
        yield epoch
        if epoch.number >= last():
            asked.with_suffix(".done").touch()
            return


def paced(self, loss):
    record(self, loss)
    time.sleep(PACE)


job.Job.epochs = epochs
job.Job.record = paced
script = sys.argv[2]
sys.argv = sys.argv[2:]
sys.path.insert(0, str(Path(script).parent))
runpy.run_path(script, run_name="__main__")
