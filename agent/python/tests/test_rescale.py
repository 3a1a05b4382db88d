"""Rescaled jobs train on as if nothing had happened: real processes, every step compared."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from typing import Dict, List, Sequence, Tuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from fake_agent import EXAMPLES, PACKAGE, Generation  # noqa: E402

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scripts")
TOLERANCE = 1e-4
SAMPLES = 1000
BATCH = 64
PRINT = ("--print-steps", "--print-samples")


def losses(output: str) -> Dict[int, float]:
    """Full-data loss after each step that a probe has printed."""
    found = re.findall(r"^step (\d+) loss (\S+)$", output, re.M)
    return {int(step): float(loss) for step, loss in found}


def samples(outputs: List[str]) -> Dict[int, Counter]:
    """How often each sample was trained on, by epoch."""
    used: Dict[int, Counter] = {}
    for epoch, indices in re.findall(r"^samples (\d+) (\S+)$", "".join(outputs), re.M):
        used.setdefault(int(epoch), Counter()).update(map(int, indices.split(",")))
    return used


def global_losses(generation: Generation) -> Dict[int, float]:
    """Mean loss of each step's whole batch, from all workers' reports."""
    sums: Dict[int, Tuple[float, int]] = {}
    for report in generation.seen("steps"):
        for step, _, loss, _, _, count in report["steps"]:
            total, number = sums.get(step, (0.0, 0))
            sums[step] = (total + loss * count, number + count)
    return {step: total / number for step, (total, number) in sums.items()}


def run_alone(script: str, arguments: List[str]) -> str:
    """Output of a script without an agent; the run must leave no file behind."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("OPTIMUS_", "DMLC_"))}
    variables.update(PYTHONPATH=PACKAGE, OMP_NUM_THREADS="1", EXAMPLES=EXAMPLES)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, os.path.join(EXAMPLES, script), *arguments], env=variables,
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60,
            universal_newlines=True, check=False,
        )
        assert done.returncode == 0, done.stderr
        assert not os.listdir(folder), "a script alone writes no files"
    return done.stdout


class Rescale(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name

    def folder(self, name: str) -> str:
        path = os.path.join(self.root, name)
        os.mkdir(path)
        return path

    def chain(
        self, arguments: List[str], assigned: Sequence[bool], script: str = "linear_probe.py"
    ) -> None:
        """Compare a job rescaled (1,1) (2,2) (3,1) (1,3) with one that never stops.

        ``assigned``: in which of these generations blocks lie where they were assigned.
        """
        arguments = [*arguments, "--samples", str(SAMPLES)]
        path = os.path.join(EXAMPLES if script == "linear_probe.py" else SCRIPTS, script)
        alone = losses(run_alone(
            path, [*arguments, "--global-batch", str(BATCH), "--epochs", "14"]
        ))
        resume = None
        outputs: List[str] = []
        for number, (shape, stop) in enumerate(
            [((1, 1), 20), ((2, 2), 70), ((3, 1), 120), ((1, 3), 170)], start=1
        ):
            folder = self.folder(f"c{number}")
            with Generation(
                path, arguments, *shape, global_batch=BATCH, resume=resume, number=number,
                assigned=assigned[number - 1],
            ) as generation:
                generation.request(folder, at_step=stop, number=number)
                saved = generation.wait_for("saved")[0]
                self.assertEqual(saved["step"], stop)
                generation.wait_for("reached", count=shape[1], step=stop)
                self.assertEqual(set(generation.terminate().values()), {0})
                workers = [generation.output(f"worker{index}") for index in range(shape[1])]
            outputs += workers
            begin = 0 if number == 1 else stop - 50
            for output in workers:
                found = losses(output)
                self.assertEqual(sorted(found), list(range(begin + 1, stop + 1)))
                for step, loss in found.items():
                    self.assertAlmostEqual(
                        loss, alone[step], delta=TOLERANCE, msg=f"step {step} at {shape}"
                    )
            resume = folder
        used = samples(outputs)
        for epoch in range(max(used, default=0)):
            self.assertEqual(used[epoch], Counter(range(SAMPLES)), f"epoch {epoch}")

    def test_sgd_with_momentum_and_a_learning_rate_changed_on_the_way(self) -> None:
        self.chain(["--optimizer", "sgd", "--rate-at", "40", *PRINT], [False] * 4)

    def test_sgd_with_blocks_where_they_were_assigned(self) -> None:
        self.chain(
            ["--optimizer", "sgd", "--rate-at", "40", *PRINT], [True, True, False, True]
        )

    def test_adam(self) -> None:
        self.chain(["--optimizer", "adam", *PRINT], [False] * 4)

    def test_adam_with_blocks_where_they_were_assigned(self) -> None:
        self.chain(["--optimizer", "adam", *PRINT], [False, True, True, True])

    def test_the_module_api_with_sgd_and_either_layout(self) -> None:
        self.chain(["--optimizer", "sgd"], [True, False, True, True], "module_probe.py")

    def test_the_module_api_with_adam_and_either_layout(self) -> None:
        self.chain(["--optimizer", "adam"], [False, True, True, False], "module_probe.py")

    def test_a_checkpoint_of_the_version_before_with_either_layout(self) -> None:
        # Step 20 of this very job with (2, 1), written before blocks could be assigned.
        recorded = os.path.join(os.path.dirname(SCRIPTS), "recorded", "checkpoint-1")
        arguments = ["--optimizer", "adam", "--hidden", "32", "--samples", "100", "--print-steps"]
        alone = losses(run_alone(
            "linear_probe.py", [*arguments, "--global-batch", "10", "--epochs", "4"]
        ))
        for assigned in (False, True):
            with Generation(
                "linear_probe.py", arguments, 2, 1, global_batch=10, resume=recorded,
                assigned=assigned,
            ) as generation:
                generation.wait_for_step(40)
                found = losses(generation.output("worker0"))
            self.assertEqual(min(found), 21)
            for step in range(21, 41):
                self.assertAlmostEqual(found[step], alone[step], delta=TOLERANCE, msg=str(step))

    def test_the_module_api_gives_the_same_losses(self) -> None:
        arguments = ["--samples", "900"]
        expected = run_alone(
            "regression.py", [*arguments, "--epochs", "6", "--global-batch", "128"]
        )
        expected_epochs = [float(x) for x in re.findall(r"loss (\S+)", expected)]
        folder = self.folder("c1")
        # 8 steps an epoch, so that the rescale comes in the middle of epoch 2.
        with Generation("regression.py", arguments, 2, 2, global_batch=128) as first:
            first.request(folder, at_step=20)
            first.wait_for("saved")
            first.wait_for("reached", count=2)
            found = global_losses(first)
        with Generation(
            "regression.py", arguments, 1, 3, global_batch=128, resume=folder, epochs_max=6
        ) as second:
            second.wait_for("finished", count=3)
            found.update(global_losses(second))
        self.assertEqual(sorted(found), list(range(1, 49)))
        for epoch, expected_loss in enumerate(expected_epochs):
            sizes = [128] * 7 + [4]
            steps = range(8 * epoch + 1, 8 * epoch + 9)
            mean = sum(found[step] * size for step, size in zip(steps, sizes)) / 900
            self.assertAlmostEqual(mean, expected_loss, delta=2 * TOLERANCE)

    def test_a_convolutional_net_starts_and_resumes(self) -> None:
        arguments = ["--samples", "128", "--width", "4"]
        folder = self.folder("c1")
        with Generation(
            "digits_cnn.py", arguments, 2, 2, global_batch=32, assigned=True
        ) as first:
            first.request(folder, at_step=6)
            first.wait_for("saved")
            before = global_losses(first)
        with Generation(
            "digits_cnn.py", arguments, 1, 1, global_batch=32, resume=folder, epochs_max=4
        ) as second:
            second.wait_for("finished")
            after = global_losses(second)
        alone = run_alone("digits_cnn.py", [*arguments, "--global-batch", "32", "--epochs", "4"])
        expected = [float(x) for x in re.findall(r"loss (\S+)", alone)]
        found = {**before, **after}
        for epoch, loss in enumerate(expected):
            mean = sum(found[4 * epoch + step] for step in range(1, 5)) / 4
            self.assertAlmostEqual(mean, loss, delta=2 * TOLERANCE)

    def test_running_means_and_kept_arrays_come_back(self) -> None:
        script = os.path.join(SCRIPTS, "normalised.py")
        folder = self.folder("c1")
        # 16 samples for each worker: the divisor is 32, then 16.
        with Generation(script, [], 1, 2, worker_batch=16) as first:
            first.request(folder, at_step=12)
            first.wait_for("saved")
            first.wait_for("reached", count=2)
            rank = {r["rank"]: r["i"] for r in first.seen("reached")}[0]
            before = re.findall(r"^state 12 (.*)$", first.output(f"worker{rank}"), re.M)
        with Generation(
            script, [], 2, 1, worker_batch=16, resume=folder, assigned=True
        ) as second:
            second.wait_for_step(14)
            after = re.findall(r"^state 12 (.*)$", second.output("worker0"), re.M)
            # Weight and bias of two layers, scale and offset; means are nobody's traffic.
            self.assertEqual(second.seen("blocks")[0]["sizes"], [4, 4, 4, 108, 1, 144])
        self.assertEqual(len(before), 1)
        self.assertEqual(after, before)

    def test_asynchronous_job_covers_every_epoch_once_across_a_rescale(self) -> None:
        arguments = ["--print-samples", "--samples", str(SAMPLES), "--step-ms", "1"]
        folder = self.folder("c1")
        with Generation(
            "linear_probe.py", arguments, 1, 2, mode="async", worker_batch=30, assigned=True
        ) as first:
            first.wait_for_step(20, workers=2)
            first.request(folder, at_step=None)
            first.wait_for("reached", count=2)
            saved = first.wait_for("saved")[0]
            outputs = [first.output(f"worker{index}") for index in range(2)]
            stood = {r["rank"]: r["step"] for r in first.seen("reached")}
        with open(os.path.join(folder, "checkpoint.json"), encoding="utf-8") as file:
            manifest = json.load(file)
        self.assertEqual(saved["step"], sum(stood.values()))
        self.assertEqual(manifest["steps_per_worker"], {str(r): s for r, s in stood.items()})
        with Generation(
            "linear_probe.py", arguments, 2, 3, mode="async", worker_batch=30, resume=folder,
            epochs_max=manifest["epoch"] + 4,
        ) as second:
            second.wait_for("finished", count=3)
            starts = [
                next(r["steps"][0][0] for r in second.seen("steps", i=index)) - 1
                for index in range(3)
            ]
            outputs += [second.output(f"worker{index}") for index in range(3)]
            epochs = second.seen("epoch", epoch=manifest["epoch"] + 3)
            self.assertEqual({report["i"] for report in epochs}, {0, 1, 2})
            self.assertEqual(sum({r["i"]: r["samples"] for r in epochs}.values()), SAMPLES)
        self.assertEqual(sum(starts), saved["step"])
        used = samples(outputs)
        self.assertEqual(max(used), manifest["epoch"] + 3)
        for epoch, counts in used.items():
            self.assertEqual(counts, Counter(range(SAMPLES)), f"epoch {epoch}")


if __name__ == "__main__":
    unittest.main()
