"""A process that is killed in mid-save, at any point, leaves the checkpoint before whole."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import unittest
from typing import Any, Optional

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, PACKAGE)

import numpy  # noqa: E402

from optimus import checkpoint, packing  # noqa: E402

POINTS = 50
WATCHED = ("checkpoint.py", "packing.py")


def save(folder: str, step: int) -> None:
    """What rank 0 and two servers write for one checkpoint, its manifest last."""
    os.mkdir(folder)
    parts = []
    for name in (checkpoint.PARAMETERS, checkpoint.server_states(0), checkpoint.server_states(1)):
        values = {f"a{i}": numpy.full(1000, step + i, numpy.float32) for i in range(3)}
        parts.append(packing.write_arrays(folder, name, values.items())[0])
    checkpoint.write_json(folder, checkpoint.MANIFEST, {
        "schema": checkpoint.SCHEMA, "step": step, "servers": 2,
        "parts": [part.to_json() for part in parts],
    })


def newest_whole(base: str) -> Optional[int]:
    """The step of the newest checkpoint that proves itself; the rest is passed over."""
    for name in sorted(os.listdir(base), reverse=True):
        folder = os.path.join(base, name)
        try:
            manifest = checkpoint.Manifest(folder)
            for part in manifest.document["parts"]:
                arrays = checkpoint.read_arrays(folder, manifest.part(part["file"]))
                for index in range(3):
                    assert (arrays[f"a{index}"] == manifest.document["step"] + index).all()
            return manifest.document["step"]
        except (checkpoint.CheckpointDamaged, checkpoint.CheckpointAway):
            continue
    return None


class Trace:
    """Counts the lines run in the code that writes, and may end this process at one."""

    def __init__(self, die_at: Optional[int] = None) -> None:
        self.lines = 0
        self._die_at = die_at

    def __call__(self, frame: Any, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.endswith(WATCHED):
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self._die_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


class Killed(unittest.TestCase):
    def setUp(self) -> None:
        self.base = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.base)
        save(os.path.join(self.base, "g1-c1"), 100)

    def killed_at(self, line: int) -> None:
        child = os.fork()
        if child == 0:
            sys.settrace(Trace(line))
            save(os.path.join(self.base, "g1-c2"), 200)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        self.assertTrue(os.WIFSIGNALED(status), f"it lived on past line {line}")

    def test_at_fifty_points_the_last_complete_checkpoint_is_found(self) -> None:
        trace = Trace()
        sys.settrace(trace)
        save(os.path.join(self.base, "count"), 1)
        sys.settrace(None)
        shutil.rmtree(os.path.join(self.base, "count"))
        self.assertGreater(trace.lines, 2 * POINTS)
        found = []
        for point in range(POINTS):
            self.killed_at(1 + point * (trace.lines - 1) // (POINTS - 1))
            found.append(newest_whole(self.base))
            shutil.rmtree(os.path.join(self.base, "g1-c2"))
        # Up to the rename of its manifest the one before counts, from then on the new one.
        self.assertEqual(found, sorted(found))
        self.assertEqual({found[0], found[-1]}, {100, 200})
        self.assertEqual(found[POINTS // 2], 100)


if __name__ == "__main__":
    unittest.main()
