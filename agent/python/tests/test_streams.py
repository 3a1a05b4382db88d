"""A data set streamed to real processes: every record counted over rescales and faults."""

from __future__ import annotations

import glob
import json
import os
import sys
import tempfile
import unittest
from typing import Dict, Iterator, List, Optional, Tuple

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from fake_agent import EXAMPLES, Generation, await_true  # noqa: E402
from optimus import index  # noqa: E402
from test_rescale import global_losses, run_alone  # noqa: E402

COUNT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scripts", "count_records.py")


class Streams(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        self.counted = self.folder("counted")

    def folder(self, name: str) -> str:
        path = os.path.join(self.root, name)
        os.mkdir(path)
        return path

    def numbered(self, count: int, files: int, chunk_bytes: int) -> None:
        """A data set of lines with their numbers, and its index as an agent brings it."""
        place = self.folder("set")
        for number, part in enumerate(np.array_split(np.arange(count), files)):
            with open(os.path.join(place, f"part-{number}"), "w", encoding="ascii") as file:
                file.write("\n".join(map(str, part.tolist())) + "\n")
        self.url = f"file://{place}"
        self.index = index.scan(place, "lines", None, chunk_bytes)

    def generation(self, **options: object) -> Generation:
        """One generation of the counting script; the index is there from the beginning."""
        started = Generation(
            COUNT, [self.counted, "0"], environment={"OPTIMUS_DATA": json.dumps({"url": self.url})},
            **options,  # type: ignore[arg-type]
        )
        for node in started.nodes:
            path = os.path.join(node.directory, "data-index.json")
            with open(path + ".tmp", "wb") as file:
                file.write(self.index.encode())
            os.rename(path + ".tmp", path)
        return started

    def train(
        self, generations: List[Tuple[Tuple[int, int], Optional[int]]], losses: bool = False,
        **options: object,
    ) -> None:
        """Generations of the given shapes, each stopped by a checkpoint at a step.

        ``losses``: the loss, tens at the beginning, must not jump where the next one goes on.
        """
        resume = None
        before: Optional[float] = None
        for number, (shape, stop) in enumerate(generations, start=1):
            servers, workers = shape
            with self.generation(
                servers=servers, workers=workers, number=number, resume=resume, **options
            ) as running:
                if stop is not None:
                    resume = self.folder(f"c{number}")
                    sync = options.get("mode", "sync") == "sync"
                    if not sync:
                        running.wait_for_step(stop, workers)
                    running.request(resume, at_step=stop if sync else None, number=number)
                if before is not None:
                    first = self.tenth_losses(running, workers)[0]
                    self.assertLess(first, 2 * before + 0.1)
                if stop is None:
                    running.wait_for("finished", count=workers)
                    continue
                running.wait_for("saved")
                if losses:
                    before = self.tenth_losses(running, workers)[-1]
                self.assertEqual(set(running.terminate().values()), {0})

    def tenth_losses(self, running: Generation, workers: int) -> List[float]:
        """Mean loss of every ten steps that all workers have reported, in order."""
        def enough() -> List[float]:
            found = global_losses(running)
            last = min(running.last_steps().values(), default=0)
            steps = [step for step in sorted(found) if step <= last]
            return [
                sum(found[step] for step in steps[at:at + 10]) / 10
                for at in range(0, len(steps) - 9, 10)
            ]

        await_true(lambda: len(running.last_steps()) == workers and enough(), "ten steps")
        return enough()

    def rows(self) -> Iterator[Tuple[int, int, int, np.ndarray]]:
        """Generation, step, epoch and numbers of every step of every worker."""
        for path in glob.glob(os.path.join(self.counted, "*")):
            generation = int(os.path.basename(path)[1:].split("-")[0])
            content = np.fromfile(path, dtype=np.int64)
            at = 0
            while at < len(content):
                step, epoch, count = content[at:at + 3].tolist()
                yield generation, step, epoch, content[at + 3:at + 3 + count]
                at += 3 + count

    def assert_each_once(self, count: int, epochs: int, lost_from: int = 1 << 60) -> None:
        """``lost_from``: the first step of generation 1 that led nowhere."""
        found: Dict[int, List[np.ndarray]] = {}
        for generation, step, epoch, numbers in self.rows():
            if generation > 1 or step < lost_from:
                found.setdefault(epoch, []).append(numbers)
        self.assertEqual(sorted(found), list(range(epochs)))
        for parts in found.values():
            times = np.bincount(np.concatenate(parts), minlength=count)
            self.assertEqual((len(times), times.min(), times.max()), (count, 1, 1))

    def test_a_million_records_once_per_epoch_over_three_rescales(self) -> None:
        self.numbered(1_000_000, files=3, chunk_bytes=256 << 10)
        # 200 steps an epoch: two of the three fall within an epoch, one on its end.
        self.train(
            [((1, 1), 90), ((2, 2), 200), ((1, 3), 330), ((1, 2), None)],
            losses=True, global_batch=5000, epochs_max=2,
        )
        self.assert_each_once(1_000_000, epochs=2)

    def test_asynchronous_workers_read_each_record_once(self) -> None:
        self.numbered(60_000, files=2, chunk_bytes=64 << 10)
        self.train(
            [((1, 4), 20), ((1, 2), 30), ((1, 3), None)],
            worker_batch=200, epochs_max=3, mode="async",
        )
        self.assert_each_once(60_000, epochs=3)

    def test_after_a_kill_each_once_along_the_line_that_led_on(self) -> None:
        """What was read after the last checkpoint is read again by those that go on."""
        self.numbered(20_000, files=1, chunk_bytes=16 << 10)
        saved = self.folder("c1")
        batch = 100
        with self.generation(servers=1, workers=2, global_batch=batch, epochs_max=2) as killed:
            killed.request(saved, at_step=60, then="continue", number=1)
            killed.wait_for("saved")
            killed.wait_for_step(75, workers=2)
            killed.kill()
        with self.generation(
            servers=1, workers=3, number=2, resume=saved, global_batch=batch, epochs_max=2
        ) as resumed:
            resumed.wait_for("finished", count=3)
        self.assert_each_once(20_000, epochs=2, lost_from=61)
        first = [step for generation, step, _, _ in self.rows() if generation == 1]
        self.assertGreater(max(first), 60)

    def test_fewer_records_than_workers_and_batch(self) -> None:
        self.numbered(2, files=1, chunk_bytes=1)
        self.train([((1, 3), 2), ((1, 1), None)], global_batch=60, epochs_max=4)
        self.assert_each_once(2, epochs=4)

    def test_a_set_that_cannot_be_read_ends_the_job_and_says_so(self) -> None:
        self.numbered(10, files=1, chunk_bytes=1)
        self.index.files = [("gone", self.index.files[0][1])]
        with self.generation(servers=1, workers=1, global_batch=5, epochs_max=1) as job:
            error = job.wait_for("error", role="worker")[0]["error"]
        self.assertIn("/set/gone", error)

    def test_the_example_trains_alone_on_a_file(self) -> None:
        script = os.path.join(EXAMPLES, "digits_records.py")
        file = os.path.join(self.root, "digits.rec")
        run_alone(script, ["--write", file, "--samples", "700"])
        output = run_alone(script, ["--data", file, "--epochs", "4", "--global-batch", "64"])
        losses = [float(line.split()[-1]) for line in output.splitlines()]
        self.assertEqual(len(losses), 4)
        self.assertLess(losses[-1], losses[0])


if __name__ == "__main__":
    unittest.main()
