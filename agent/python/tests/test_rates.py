"""Learning rates: when one is news, and that it is told more than once."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from optimus.rates import RateWatch, rate_of  # noqa: E402
from optimus.report import Reporter  # noqa: E402


class Rates(unittest.TestCase):
    def test_a_rate_is_told_once_when_it_has_lasted(self) -> None:
        watch = RateWatch()
        told = {}
        for step in range(1, 101):
            rate = 0.1 if step <= 40 else 0.01
            news = watch.note(step, rate)
            if news is not None:
                told[step] = news
        self.assertEqual(told, {20: (1, 0.1), 60: (41, 0.01)})

    def test_a_rate_that_moves_with_every_step_is_never_told(self) -> None:
        watch = RateWatch()
        told = [watch.note(step, 0.1 * 0.999**step) for step in range(1, 1000)]
        self.assertEqual(set(told), {None})
        self.assertIsNone(watch.note(1000, None))

    def test_an_optimizer_with_a_schedule_of_its_own_tells_none(self) -> None:
        class Optimizer:
            lr = 0.25
            lr_scheduler: object = None

        optimizer = Optimizer()
        self.assertEqual(rate_of(optimizer), 0.25)
        optimizer.lr_scheduler = object()
        self.assertIsNone(rate_of(optimizer))
        self.assertIsNone(rate_of(None))

    def test_the_rate_goes_with_every_later_hello(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.addCleanup(listener.close)
            listener.bind(os.path.join(folder, "report.sock"))
            reporter = Reporter(folder, "worker", 0)
            self.addCleanup(reporter.close)
            reporter.hello(learning_rate_step=41, learning_rate=0.01)
            reporter.hello(samples_per_epoch=7)
            for _ in range(2):
                report = json.loads(listener.recv(65536))
                told = (report["learning_rate_step"], report["learning_rate"])
                self.assertEqual(told, (41, 0.01))


if __name__ == "__main__":
    unittest.main()
