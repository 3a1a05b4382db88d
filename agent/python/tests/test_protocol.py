"""Checkpoints, holds, ends and faults, as an agent sees them: real processes."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
import unittest
from typing import Callable

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from fake_agent import Generation, await_true, checkpoint  # noqa: E402

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scripts")
# Slow enough that a test can name a step ahead.
STEPS = ["--step-ms", "4"]


class Protocol(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name

    def folder(self, name: str) -> str:
        path = os.path.join(self.root, name)
        os.mkdir(path)
        return path

    def assert_trains_on(self, generation: Generation, workers: int) -> None:
        now = max(generation.last_steps().values())
        generation.wait_for_step(now + 20, workers)

    def test_continue_saves_and_trains_on(self) -> None:
        with Generation("linear_probe.py", STEPS, 2, 2, global_batch=60) as job:
            for number in (1, 2):
                folder = self.folder(f"c{number}")
                job.request(folder, at_step=40 * number, then="continue", number=number)
                saved = job.wait_for("saved", checkpoint=number)[0]
                self.assertEqual(saved["step"], 40 * number)
                names = {part["file"] for part in saved["parts"]}
                self.assertEqual(names, {
                    "parameters.npz", "checkpoint.json", "server-0.npz", "server-0.json",
                    "server-1.npz", "server-1.json",
                })
                for part in saved["parts"]:
                    size = os.path.getsize(os.path.join(folder, part["file"]))
                    self.assertEqual(size, part["bytes"])
                job.wait_for_step(40 * number + 20, workers=2)
            self.assertEqual(job.seen("failed"), [])
            for report in job.wait_for("epoch", count=2, epoch=1):
                self.assertGreater(report["samples"], 400)
            self.assertEqual(
                sum({r["i"]: r["samples"] for r in job.seen("epoch", epoch=1)}.values()), 1000
            )

    def test_hold_waits_for_the_release(self) -> None:
        with Generation("linear_probe.py", STEPS, 1, 2, global_batch=60) as job:
            folder = self.folder("c")
            job.request(folder, at_step=30)
            job.wait_for("saved")
            job.wait_for("reached", count=2, step=30)
            # Repeated while it holds, so that a restarted agent learns of it.
            await_true(lambda: len(job.seen("saved")) >= 2, "second saved report", 5)
            self.assertEqual(set(job.last_steps().values()), {30})
            job.request(folder, at_step=30, released=True)
            self.assert_trains_on(job, workers=2)

    def test_a_missed_step_is_named_anew(self) -> None:
        with Generation("linear_probe.py", STEPS, 1, 2, global_batch=60) as job:
            job.wait_for_step(20, workers=2)
            folder = self.folder("c")
            job.request(folder, at_step=5)
            job.wait_for("missed", count=2, checkpoint=7)
            target = max(job.last_steps().values()) + 40
            job.request(folder, at_step=target)
            self.assertEqual(job.wait_for("saved")[0]["step"], target)

    def test_a_worker_blocked_past_the_step_says_so_and_frees_the_others(self) -> None:
        arguments = [*STEPS, "--print-samples"]
        with Generation("linear_probe.py", arguments, 1, 2, global_batch=60, nodes=2) as job:
            job.wait_for_step(10, workers=2)
            folder = self.folder("c")
            first = max(job.last_steps().values()) + 40
            # Only one node has the order: its worker stops, the other one goes past the
            # step and blocks inside MXNet, waiting for a push that does not come.
            job.nodes[0].control(checkpoint(folder, first))
            job.wait_for("reached", step=first, i=0)
            await_true(lambda: job.output("worker1").count("samples") > first, "next step")
            job.nodes[1].control(checkpoint(folder, first))
            missed = job.wait_for("missed", checkpoint=7, i=1)[0]
            self.assertEqual(missed["step"], first)
            self.assertEqual(job.seen("saved"), [])
            job.request(folder, at_step=first + 30)
            self.assertEqual(job.wait_for("saved")[0]["step"], first + 30)
            job.wait_for("reached", count=2, step=first + 30)

    def test_a_request_that_is_called_off_lets_the_workers_go(self) -> None:
        with Generation("linear_probe.py", STEPS, 1, 2, global_batch=60, nodes=2) as job:
            job.wait_for_step(10, workers=2)
            first = max(job.last_steps().values()) + 40
            job.nodes[0].control(checkpoint(self.folder("c"), first))
            job.wait_for("reached", step=first, i=0)
            job.control(None)
            self.assert_trains_on(job, workers=2)

    def test_a_checkpoint_that_cannot_be_written_does_not_stop_training(self) -> None:
        broken = self.folder("broken")
        os.mkdir(os.path.join(broken, "server-0.json"))  # no file can take this name
        folders = [os.path.join(self.root, "not-there"), "/proc", broken]
        with Generation("linear_probe.py", STEPS, 1, 2, global_batch=60) as job:
            for number, folder in enumerate(folders, start=1):
                target = max(job.last_steps().values(), default=0) + 40
                job.request(folder, target, number=number)
                failed = job.wait_for("failed", count=2, checkpoint=number)
                self.assertTrue(all(report["error"] for report in failed))
                job.request(folder, target, number=number, released=True)
                self.assert_trains_on(job, workers=2)
            self.assertEqual(job.seen("saved"), [])

    def test_a_folder_that_vanishes_during_the_wait_is_noticed(self) -> None:
        with Generation("linear_probe.py", STEPS, 1, 2, global_batch=60, nodes=2) as job:
            job.wait_for_step(10, workers=2)
            folder = self.folder("c")
            first = max(job.last_steps().values()) + 40
            job.nodes[0].control(checkpoint(folder, first))
            job.wait_for("reached", step=first, i=0)
            shutil.rmtree(folder)
            job.wait_for("failed", checkpoint=7, i=0)
            self.assert_trains_on(job, workers=2)

    def test_the_last_checkpoint_is_taken_from_finished_workers(self) -> None:
        with Generation("linear_probe.py", [], 1, 2, global_batch=60, epochs_max=2) as job:
            finished = job.wait_for("finished", count=2)
            self.assertEqual({report["step"] for report in finished}, {34})
            folder = self.folder("c")
            job.request(folder, at_step=10_000)
            saved = job.wait_for("saved")[0]
            self.assertEqual((saved["step"], saved["epoch"], saved["epoch_position"]), (34, 2, 0))
            self.assertEqual(set(job.terminate().values()), {0})
        with Generation(
            "linear_probe.py", [], 1, 1, global_batch=60, epochs_max=2, resume=folder
        ) as again:
            self.assertEqual(again.wait_for("finished")[0]["step"], 34)


class Ends(unittest.TestCase):
    def test_sigterm_leaves_no_process(self) -> None:
        with Generation("linear_probe.py", STEPS, 2, 2, global_batch=60) as job:
            job.wait_for_step(5, workers=2)
            began = time.monotonic()
            self.assertEqual(set(job.terminate(limit_s=5).values()), {0})
            self.assertLess(time.monotonic() - began, 4)

    def test_sigterm_ends_a_worker_that_is_blocked_in_a_pull(self) -> None:
        with Generation("linear_probe.py", STEPS, 1, 2, global_batch=60) as job:
            job.wait_for_step(5, workers=2)
            job.processes["server0"].send_signal(signal.SIGSTOP)
            before = -1

            def stands() -> bool:
                nonlocal before
                before, last = sum(job.last_steps().values()), before
                return before == last

            # Two readings further apart than the longest delay of a report.
            for _ in range(60):
                if stands():
                    break
                time.sleep(0.5)
            else:
                self.fail("the workers trained on without a server for 30 s")
            for name in ("worker0", "worker1"):
                job.processes[name].terminate()
            statuses = job.wait(limit_s=5, names=("worker0", "worker1"))
            self.assertEqual(set(statuses.values()), {0})

    def test_an_exception_is_reported_and_ends_the_process(self) -> None:
        arguments = [*STEPS, "--raise-at", "6"]
        with Generation("linear_probe.py", arguments, 1, 2, global_batch=60) as job:
            errors = job.wait_for("error", count=2)
            self.assertIn("ValueError: failing in step 6 as asked", errors[0]["error"])
            statuses = job.wait(limit_s=10, names=("worker0", "worker1"))
            self.assertEqual(set(statuses.values()), {1})
            self.assertIn("Traceback", job.errors())

    def test_a_script_that_ends_too_early_says_so(self) -> None:
        with Generation(os.path.join(SCRIPTS, "too_short.py"), [], 1, 1, global_batch=60) as job:
            error = job.wait_for("error", role="worker")[0]
            self.assertIn("ended before its training loop", error["error"])
            self.assertEqual(job.wait(10, names=("worker0",)), {"worker0": 1})

    def test_an_exception_in_a_thread_ends_the_process_too(self) -> None:
        script = os.path.join(SCRIPTS, "too_short.py")
        with Generation(script, ["thread"], 1, 1, global_batch=60) as job:
            error = job.wait_for("error", role="worker")[0]
            self.assertIn("KeyError: 'lost'", error["error"])
            self.assertEqual(job.wait(10, names=("worker0",)), {"worker0": 1})

    def test_a_forked_child_is_not_the_worker(self) -> None:
        script = os.path.join(SCRIPTS, "too_short.py")
        with Generation(script, ["fork"], 1, 1, global_batch=60) as job:
            await_true(lambda: "child ended by signal 15" in job.output("worker0"), "child's end")
            self.assertIsNone(job.processes["worker0"].poll())
            self.assertEqual(job.terminate()["worker0"], 0)


class Damage(unittest.TestCase):
    """A checkpoint with one damaged part is refused by the process that reads the part."""

    folder: tempfile.TemporaryDirectory

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        with Generation("linear_probe.py", STEPS, 2, 1, global_batch=60) as job:
            job.request(cls.folder.name, at_step=5)
            job.wait_for("saved")

    @classmethod
    def tearDownClass(cls) -> None:
        cls.folder.cleanup()

    def refused(self, name: str, damage: Callable[[str], None], by: str) -> None:
        with tempfile.TemporaryDirectory() as root:
            copy = os.path.join(root, "c")
            shutil.copytree(self.folder.name, copy)
            damage(os.path.join(copy, name))
            with Generation("linear_probe.py", STEPS, 1, 1, global_batch=60, resume=copy) as job:
                error = job.wait_for("error", role=by)[0]
                self.assertIn(name, error["error"])
                self.assertEqual(job.wait(10, names=(f"{by}0",)), {f"{by}0": 3})

    def test_parameters(self) -> None:
        self.refused("parameters.npz", _flip_a_byte, "worker")

    def test_states(self) -> None:
        self.refused("server-1.npz", _flip_a_byte, "server")

    def test_missing_states(self) -> None:
        self.refused("server-0.json", os.remove, "server")

    def test_manifest(self) -> None:
        self.refused("checkpoint.json", lambda path: os.truncate(path, 40), "worker")

    def test_another_optimizer(self) -> None:
        with Generation(
            "linear_probe.py", ["--optimizer", "adam"], 1, 1, global_batch=60,
            resume=self.folder.name,
        ) as job:
            error = job.wait_for("error", role="server")[0]
            self.assertIn("SGD", error["error"])
            # Not 3: the checkpoint is whole, and must not be given up for the script.
            self.assertEqual(job.wait(10, names=("server0",)), {"server0": 1})

    def test_another_model(self) -> None:
        with Generation(
            "linear_probe.py", ["--hidden", "8"], 1, 1, global_batch=60, resume=self.folder.name,
        ) as job:
            error = job.wait_for("error", role="worker")[0]
            self.assertIn("does not fit the model", error["error"])
            self.assertEqual(job.wait(10, names=("worker0",)), {"worker0": 1})


def _flip_a_byte(path: str) -> None:
    with open(path, "r+b") as file:
        file.seek(300)
        byte = file.read(1)[0]
        file.seek(300)
        file.write(bytes([byte ^ 0x10]))


if __name__ == "__main__":
    unittest.main()
