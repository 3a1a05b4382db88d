"""Blocks where they were assigned behave as with MXNet's rule: real processes."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import unittest
from typing import Dict, List

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from fake_agent import Generation, await_true  # noqa: E402

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scripts")
BY_HAND = os.path.join(SCRIPTS, "by_hand.py")


def steps(output: str) -> Dict[int, List[float]]:
    """What a script by hand has printed of each step."""
    found = re.findall(r"^step (\d+) (.*)$", output, re.M)
    return {int(step): [float(value) for value in values.split()] for step, values in found}


class Assigned(unittest.TestCase):
    def run_by_hand(self, keys: str, servers: int, assigned: bool) -> Dict[int, List[float]]:
        with Generation(
            BY_HAND, [keys], servers, 2, global_batch=4, epochs_max=3, assigned=assigned
        ) as generation:
            generation.wait_for("finished", count=2)
            outputs = [steps(generation.output(f"worker{index}")) for index in range(2)]
            self.assertEqual(outputs[0], outputs[1])
            # In the order of initialisation, whatever the keys are.
            sizes = generation.seen("blocks")[0]["sizes"]
            self.assertEqual(sizes, [1200, 5, 60])
            with tempfile.TemporaryDirectory() as folder:
                generation.request(folder, at_step=12)
                generation.wait_for("saved")
        return outputs[0]

    def test_a_store_by_hand_does_the_same_with_any_keys_and_layout(self) -> None:
        expected = self.run_by_hand("numbers", 1, assigned=False)
        self.assertEqual(sorted(expected), list(range(1, 13)))
        self.assertEqual(len(expected[12]), 4)
        for keys, servers, assigned in (
            ("words", 2, False), ("numbers", 2, True), ("words", 3, True)
        ):
            found = self.run_by_hand(keys, servers, assigned)
            self.assertEqual(sorted(found), sorted(expected))
            for step, values in expected.items():
                for value, other in zip(values, found[step]):
                    self.assertAlmostEqual(
                        value, other, delta=1e-5 * max(1.0, abs(value)),
                        msg=f"step {step}, {keys}, {servers} servers, assigned: {assigned}",
                    )

    def test_an_assignment_for_other_blocks_is_a_clear_error(self) -> None:
        variables = {"OPTIMUS_ASSIGNMENT": "wait"}
        with Generation(
            BY_HAND, ["numbers"], 1, 1, global_batch=4, environment=variables
        ) as generation:
            generation.wait_for("blocks")
            for node in generation.nodes:
                node.assign([[[0, 1200]], [[0, 6]], [[0, 60]]])
            [error] = generation.wait_for("error")
            self.assertIn("block 1 of the model has 5 parameters", error["error"])
            self.assertIn("was the script changed?", error["error"])

    def test_a_worker_that_waits_for_its_assignment_can_be_stopped(self) -> None:
        variables = {"OPTIMUS_ASSIGNMENT": "wait"}
        with Generation(
            BY_HAND, ["numbers"], 1, 2, global_batch=4, environment=variables
        ) as generation:
            generation.wait_for("blocks")
            # Told again until there is an answer: the agent may have missed it.
            await_true(lambda: len(generation.seen("blocks")) > 1, "second report")
            self.assertEqual(set(generation.terminate().values()), {0})


if __name__ == "__main__":
    unittest.main()
