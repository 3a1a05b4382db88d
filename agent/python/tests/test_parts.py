"""The parts that need no parameter server: sampling, layout, files, reports, orders."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from collections import Counter
from typing import Dict, List

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, PACKAGE)

import numpy  # noqa: E402

from optimus import assignment, checkpoint, commands, environment  # noqa: E402
from optimus import layout, packing, sampler  # noqa: E402
from optimus.control import Control  # noqa: E402
from optimus import report as reporting  # noqa: E402
from optimus.hold import saved_report  # noqa: E402
from optimus.report import DATAGRAM_BYTES_MAX, Reporter, encode  # noqa: E402

SAMPLES = 103


def sync_workers(progress: sampler.Progress, workers: int, batch: int) -> List[sampler.SyncSampler]:
    return [
        sampler.SyncSampler(SAMPLES, 5, rank, workers, progress, batch, None)
        for rank in range(workers)
    ]


class Sampling(unittest.TestCase):
    def test_synchronous_samples_are_a_function_of_the_step_whatever_the_workers(self) -> None:
        alone = sync_workers(sampler.Progress(), 1, 16)[0]
        expected = []
        for _ in range(3):
            while not alone.epoch_over:
                expected.append(alone.next_batch().indices.tolist())
            alone.next_epoch()
        found: List[List[int]] = []
        progress = sampler.Progress()
        shapes = random.Random(1)
        while len(found) < len(expected):
            team = sync_workers(progress, shapes.randint(1, 20), 16)
            for _ in range(shapes.randint(1, 5)):
                batches = [worker.next_batch() for worker in team]
                found.append([i for b in batches for i in b.indices[:b.samples].tolist()])
                if team[0].epoch_over:
                    for worker in team:
                        worker.next_epoch()
            document = json.dumps(team[0].progress().to_json())
            progress = sampler.Progress.from_json(json.loads(document))
            self.assertEqual(progress.step, len(found))
        self.assertEqual(found[:len(expected)], expected)

    def test_asynchronous_epochs_are_covered_once_across_rescales(self) -> None:
        shapes = random.Random(2)
        progress = sampler.Progress()
        used: Dict[int, Counter] = {}
        for _ in range(40):
            workers = shapes.randint(1, 6)
            team = [
                sampler.AsyncSampler(
                    SAMPLES, 5, rank, workers,
                    sampler.Progress(0, progress.epoch, progress.left), None, shapes.randint(1, 9),
                )
                for rank in range(workers)
            ]
            for _ in range(shapes.randint(0, 30)):
                worker = shapes.choice(team)
                if worker.epoch_over:
                    worker.next_epoch()
                else:
                    batch = worker.next_batch()
                    used.setdefault(batch.epoch, Counter()).update(batch.indices.tolist())
            progress = sampler.merge(
                {rank: worker.progress() for rank, worker in enumerate(team)}, team[0]
            )
        self.assertGreater(progress.epoch, 3)
        for epoch in range(progress.epoch):
            self.assertEqual(used[epoch], Counter(range(SAMPLES)), f"epoch {epoch}")
        for counts in used.values():
            self.assertLessEqual(max(counts.values()), 1)

    def test_a_worker_without_a_share_stands_in_with_a_sample_that_does_not_count(self) -> None:
        team = [
            sampler.SyncSampler(2, 0, rank, 3, sampler.Progress(), 8, None) for rank in range(3)
        ]
        batches = [worker.next_batch() for worker in team]
        self.assertEqual(sorted(batch.samples for batch in batches), [0, 1, 1])
        self.assertTrue(all(len(batch.indices) == 1 for batch in batches))

    def test_total_steps_survive_a_change_of_workers(self) -> None:
        for workers in range(1, 8):
            shares = [sampler.worker_step(100, rank, workers) for rank in range(workers)]
            self.assertEqual(sum(shares), 100)

    def test_epochs_have_orders_of_their_own(self) -> None:
        worker = sync_workers(sampler.Progress(), 1, SAMPLES)[0]
        first = worker.next_batch().indices
        worker.next_epoch()
        second = worker.next_batch().indices
        self.assertEqual(sorted(first), sorted(second))
        self.assertNotEqual(first.tolist(), second.tolist())


class Layout(unittest.TestCase):
    def test_slices_cover_an_array_in_order(self) -> None:
        for servers in range(1, 12):
            for size in (1, 999, 1000, 1001, 2560, 12345):
                parts = layout.slices(3, size, servers, bound=1000)
                self.assertEqual(len(parts), servers if size >= 1000 else 1)
                self.assertEqual([part.start for part in parts], [0] + [p.stop for p in parts[:-1]])
                self.assertEqual(parts[-1].stop, size)

    def test_halves_are_rounded_away_from_zero_as_in_c(self) -> None:
        self.assertEqual(layout.slices(0, 1001, 2, 1000)[0].stop, 501)
        self.assertEqual(layout.slices(0, 1005, 2, 1000)[0].stop, 503)

    def test_small_arrays_go_where_the_stock_worker_sends_them(self) -> None:
        self.assertEqual(layout.slices(4, 10, 3, 1000), [layout.Slice(4 * 9973 % 3, 0, 10)])


class Assignment(unittest.TestCase):
    def test_keys_are_new_and_lie_on_the_servers_they_were_chosen_for(self) -> None:
        for servers in (1, 2, 3, 7, 10, 64):
            keys = layout.Keys(servers)
            chosen = random.Random(servers)
            given = set()
            for _ in range(500):
                server = chosen.randrange(servers)
                key = keys.next(server)
                # The stock worker's own rule, of an array that it does not cut.
                [part] = layout.slices(key, 10, servers, layout.BIGARRAY_BOUND_MAX)
                self.assertEqual(part.server, server)
                self.assertLess(key * layout.KEY_MULTIPLIER, 2**31)
                given.add(key)
            self.assertEqual(len(given), 500)

    def test_keys_end_before_they_overflow(self) -> None:
        keys = layout.Keys(1)
        for _ in range(layout.KEY_MAX + 1):
            last = keys.next(0)
        self.assertEqual(last, layout.KEY_MAX)
        with self.assertRaisesRegex(layout.LayoutError, "more than there are keys"):
            keys.next(0)
        with self.assertRaisesRegex(layout.LayoutError, "server 4 of 4"):
            layout.Keys(4).next(4)

    def test_an_assignment_of_other_blocks_is_refused(self) -> None:
        blocks = [[(0, 3), (1, 4)], [(1, 5)]]
        self.assertEqual(assignment.fitting(blocks, [7, 5]), blocks)
        self.assertEqual(assignment.fitting([[(0, 0)]], [0]), [[(0, 0)]])
        for sizes, words in (([7], "has 1 blocks"), ([7, 6], "block 1"), ([8, 5], "block 0")):
            with self.assertRaisesRegex(layout.LayoutError, words + ".*script"):
                assignment.fitting(blocks, sizes)
        for wrong in ([[(0, 8), (1, -1)]], [[]], [[(0, 7), (1, 0)]]):
            with self.assertRaisesRegex(layout.LayoutError, "block 0"):
                assignment.fitting(wrong, [7])
        for content in (b"", b"[]", b'{"schema": "x", "blocks": []}', b'{"blocks": [[[0]]]}'):
            with self.assertRaisesRegex(layout.LayoutError, "assignment.json"):
                assignment.parse(content)

    def test_many_blocks_are_told_in_reports_that_fit_a_datagram(self) -> None:
        sizes = list(range(10**18, 10**18 + 1000))
        found: List[int] = []
        for kind, fields in assignment.reports(sizes):
            self.assertEqual((kind, fields["first"], fields["of"]), ("blocks", len(found), 1000))
            self.assertLessEqual(len(encode({"role": "worker", **fields})), DATAGRAM_BYTES_MAX)
            found += fields["sizes"]
        self.assertEqual(found, sizes)
        self.assertEqual(assignment.reports([1] * (assignment.BLOCKS_MAX + 1)), [])

    def test_a_worker_asks_until_it_is_answered(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            pauses: List[float] = []

            def pause(seconds: float) -> None:
                pauses.append(seconds)
                if len(pauses) == 3:
                    checkpoint.write_json(folder, assignment.FILE, {
                        "schema": assignment.SCHEMA, "blocks": [[[1, 2], [0, 3]]],
                    })

            self.assertEqual(assignment.wait(folder, None, [5], pause), [[(1, 2), (0, 3)]])
            self.assertEqual(len(pauses), 3)
            with self.assertRaises(layout.LayoutError):
                assignment.wait(folder, None, [6], pause)


class Files(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_arrays_come_back_as_they_were(self) -> None:
        arrays = {"a0": numpy.arange(6, dtype=numpy.float32).reshape(2, 3), "a1": numpy.float64(2)}
        arrays["a2"] = numpy.zeros((0, 3), numpy.float16)
        arrays["a3"] = numpy.asfortranarray(numpy.arange(12).reshape(3, 4))
        part, places = packing.write_arrays(self.folder, "x.npz", arrays.items())
        self.assertEqual(part, checkpoint.describe(self.folder, "x.npz"))
        # With the table of places, as it comes out of JSON, and without it, as numpy reads it.
        for table in (json.loads(json.dumps(places)), None):
            found = packing.open_arrays(self.folder, part, table)
            for name, array in arrays.items():
                self.assertEqual(found[name].dtype, array.dtype)
                self.assertEqual(found[name].shape, array.shape)
                numpy.testing.assert_array_equal(found[name], array)
        self.assertEqual(os.listdir(self.folder), ["x.npz"])

    def test_a_damaged_array_is_refused_and_the_others_can_be_read(self) -> None:
        arrays = {f"a{number}": numpy.full(100, number, numpy.float32) for number in range(3)}
        part, places = packing.write_arrays(self.folder, "x.npz", arrays.items())
        path = os.path.join(self.folder, "x.npz")
        with open(path, "r+b") as file:
            file.seek(places["a1"][0] + 399)
            file.write(b"!")
        found = packing.open_arrays(self.folder, part, places)
        for name in ("a0", "a2"):
            numpy.testing.assert_array_equal(found[name], arrays[name])
        for name in ("a1", "a7"):
            with self.assertRaisesRegex(checkpoint.CheckpointDamaged, f"x.npz.* {name}"):
                found[name]
        os.truncate(path, part.bytes - 1)
        with self.assertRaisesRegex(checkpoint.CheckpointDamaged, "x.npz has"):
            packing.open_arrays(self.folder, part, places)
        # One that shrinks while it is open.
        found = packing.open_arrays(self.folder, part._replace(bytes=part.bytes - 1), places)
        os.truncate(path, places["a2"][0] + 1)
        with self.assertRaisesRegex(checkpoint.CheckpointDamaged, "x.npz"):
            found["a2"]

    def test_any_flipped_or_missing_byte_is_refused_with_the_files_name(self) -> None:
        part = checkpoint.write_json(self.folder, "x.json", {"a": 1})
        path = os.path.join(self.folder, "x.json")
        for damage in (lambda b: b[:-1], lambda b: bytes([b[0] ^ 1]) + b[1:], lambda b: b""):
            with open(path, "rb") as file:
                content = file.read()
            with open(path, "wb") as file:
                file.write(damage(content))
            with self.assertRaisesRegex(checkpoint.CheckpointDamaged, "x.json"):
                checkpoint.read_verified(self.folder, part)
            with open(path, "wb") as file:
                file.write(content)
        os.remove(path)
        checkpoint.write_json(self.folder, checkpoint.MANIFEST, {})
        with self.assertRaisesRegex(checkpoint.CheckpointDamaged, "x.json"):
            checkpoint.read_verified(self.folder, part)

    def test_what_a_node_cannot_see_is_not_called_damaged(self) -> None:
        folder = os.path.join(self.folder, "j1", "g00000001-c00000001")
        os.makedirs(folder)
        part = checkpoint.write_json(folder, "x.json", {"a": 1})
        os.rename(os.path.join(self.folder, "j1"), os.path.join(self.folder, "unmounted"))
        for read in (
            lambda: checkpoint.Manifest(folder),
            lambda: checkpoint.read_verified(folder, part),
            lambda: packing.open_arrays(folder, part, {}),
        ):
            with self.assertRaisesRegex(checkpoint.CheckpointAway, "mounted"):
                read()
        # As an agent makes it on its own disk.
        os.makedirs(folder)
        with self.assertRaisesRegex(checkpoint.CheckpointAway, "mounted"):
            checkpoint.Manifest(folder)
        with open(os.path.join(self.folder, "j1", "manifest-g00000001-c00000001.json"), "w"):
            pass
        for read in (
            lambda: checkpoint.Manifest(folder),
            lambda: checkpoint.read_verified(folder, part),
            lambda: packing.open_arrays(folder, part, {}),
        ):
            with self.assertRaises(checkpoint.CheckpointDamaged):
                read()

    def test_pickled_objects_are_refused(self) -> None:
        path = os.path.join(self.folder, "x.npz")
        numpy.savez(path, a=numpy.array([{"code": 1}], dtype=object))
        arrays = checkpoint.read_arrays(self.folder, checkpoint.describe(self.folder, "x.npz"))
        with self.assertRaises(ValueError):
            arrays["a"]

    def test_a_writer_that_fails_leaves_nothing(self) -> None:
        def write(file: object) -> None:
            raise OSError("no space")

        with self.assertRaises(OSError):
            checkpoint.write_file(self.folder, "x", write)
        self.assertEqual(os.listdir(self.folder), [])


class Reports(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def reporter(self, folder: str, index: int = 0) -> Reporter:
        reporter = Reporter(folder, "worker", index)
        self.addCleanup(reporter.close)
        return reporter

    def listen(self, folder: str) -> socket.socket:
        # Bound by a relative path: the full one may be too long for an address.
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(listener.close)
        before = os.getcwd()
        os.chdir(folder)
        try:
            listener.bind("report.sock")
        finally:
            os.chdir(before)
        return listener

    def test_steps_that_a_full_socket_refuses_go_with_the_next_ones(self) -> None:
        listener = self.listen(self.folder)
        listener.setblocking(False)
        reporter = self.reporter(self.folder)
        while reporter.send("finished", step=1):
            pass
        reporter.step((7, 0, 0.5, 0.1, 0.1, 4))
        reporter.flush()
        with self.assertRaises(BlockingIOError):
            while True:
                self.assertEqual(json.loads(listener.recv(65536))["t"], "finished")
        reporter.step((8, 0, 0.5, 0.1, 0.1, 4))
        reporter.flush()
        steps = json.loads(listener.recv(65536))["steps"]
        self.assertEqual([step[0] for step in steps], [7, 8])
        # An agent that is gone costs a bounded memory.
        listener.close()
        for step in range(10 * reporting.STEPS_PER_DATAGRAM_MAX):
            reporter.step((step, 0, 0.5, 0.1, 0.1, 4))
        self.assertLess(len(reporter._steps), reporting.STEPS_PER_DATAGRAM_MAX)

    def test_numbers_that_are_not_finite_become_text(self) -> None:
        report = {"a": [float("nan"), float("inf"), {"b": float("-inf")}], "c": 1.5}
        self.assertEqual(
            json.loads(encode(report)), {"a": ["nan", "inf", {"b": "-inf"}], "c": 1.5}
        )

    def test_the_largest_batch_of_steps_fits_a_datagram(self) -> None:
        listener = self.listen(self.folder)
        reporter = self.reporter(self.folder, 100_000)
        for step in range(reporting.STEPS_PER_DATAGRAM_MAX):
            reporter.step((10**9 + step, 10**5, -1.2345678901234567e-300, 86399.123456,
                           86399.123456, 10**7))
        self.assertEqual((reporter.sent, reporter.dropped), (1, 0))
        self.assertLessEqual(len(listener.recv(65536)), DATAGRAM_BYTES_MAX)

    def test_many_parts_leave_the_manifest_to_name_them(self) -> None:
        document = {"step": 1, "epoch": 2, "epoch_position": 3, "parts": []}
        manifest = checkpoint.Part("checkpoint.json", 5, 6)
        for servers in (1, 200):
            document["parts"] = [
                checkpoint.Part(checkpoint.server_states(rank), 10**9, 2**32 - 1).to_json()
                for rank in range(servers)
            ]
            fields = saved_report(7, document, manifest, DATAGRAM_BYTES_MAX - 512)
            self.assertLessEqual(len(encode(fields)), DATAGRAM_BYTES_MAX)
            self.assertEqual(fields["parts"][-1], manifest.to_json())

    def test_nothing_is_raised_and_nothing_blocks_without_an_agent(self) -> None:
        reporter = self.reporter(self.folder)
        reporter.hello()  # no socket yet
        listener = self.listen(self.folder)
        for number in range(5000):  # a full queue, since nobody reads
            reporter.send("reached", checkpoint=number)
        self.assertGreater(reporter.sent, 0)
        self.assertGreater(reporter.dropped, 4000)
        listener.close()
        reporter.send("finished", step=1)  # nobody is bound any more
        reporter.send("error", error=object())  # not even JSON

    def test_a_restarted_agent_hears_again(self) -> None:
        reporter = self.reporter(self.folder)
        self.listen(self.folder).close()
        os.remove(os.path.join(self.folder, "report.sock"))
        listener = self.listen(self.folder)
        self.assertTrue(reporter.send("finished", step=1))
        self.assertEqual(json.loads(listener.recv(65536))["step"], 1)

    def test_a_folder_too_deep_for_a_socket_address_is_reached(self) -> None:
        deep = os.path.join(self.folder, "x" * 120)
        os.mkdir(deep)
        listener = self.listen(deep)
        self.assertTrue(self.reporter(deep).send("finished", step=1))
        self.assertEqual(json.loads(listener.recv(65536))["t"], "finished")


class Orders(unittest.TestCase):
    def test_a_broken_file_leaves_the_last_good_order(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            control = Control(folder)
            self.assertIsNone(control.poll())
            path = os.path.join(folder, "control.json")

            def write(text: str) -> None:
                with open(path + ".tmp", "w", encoding="utf-8") as file:
                    file.write(text)
                os.rename(path + ".tmp", path)

            write('{"checkpoint":{"id":3,"at_step":9,"directory":"/d","then":"hold"}}')
            request = control.poll()
            assert request is not None
            self.assertEqual((request.id, request.at_step, request.hold), (3, 9, True))
            for broken in ("", "{", "[]", '{"checkpoint":{"id":4}}', '{"checkpoint":7}'):
                write(broken)
                self.assertEqual(control.poll(), request, broken)
            os.remove(path)
            self.assertEqual(control.poll(), request)
            write('{"checkpoint":null}')
            self.assertIsNone(control.poll())

    def test_commands_are_told_from_pickles(self) -> None:
        body = commands.encode(commands.SAVE, folder='/a "b" \u00e9').encode()
        self.assertEqual(commands.decode(body), {"command": "save", "folder": '/a "b" \u00e9'})
        self.assertIsNone(commands.decode(b"ccopy_reg\n"))


class Settings(unittest.TestCase):
    VARIABLES = {
        "OPTIMUS_JOB": "j1", "OPTIMUS_GENERATION": "1", "OPTIMUS_ROLE": "worker",
        "OPTIMUS_INDEX": "0", "OPTIMUS_SERVERS": "2", "OPTIMUS_WORKERS": "3",
        "OPTIMUS_MODE": "sync", "OPTIMUS_EPOCHS_MAX": "5", "OPTIMUS_DIR": "/d",
        "OPTIMUS_GLOBAL_BATCH": "64",
    }

    def test_a_wrong_variable_is_named(self) -> None:
        for name, value in (
            ("OPTIMUS_ROLE", "boss"), ("OPTIMUS_MODE", ""), ("OPTIMUS_WORKERS", "0"),
            ("OPTIMUS_INDEX", "-1"), ("OPTIMUS_ASSIGNMENT", "best"), ("OPTIMUS_WORKER_BATCH", "8"), ("OPTIMUS_DIR", ""),
        ):
            with self.assertRaisesRegex(environment.SettingsError, name):
                environment.read({**self.VARIABLES, name: value})

    def test_the_gradient_divisor_follows_batch_kind_and_mode(self) -> None:
        def divisor(mode: str, **batch: int) -> float:
            variables = {k: v for k, v in self.VARIABLES.items() if "BATCH" not in k}
            sizes = {f"OPTIMUS_{name.upper()}": str(size) for name, size in batch.items()}
            settings = environment.read({**variables, "OPTIMUS_MODE": mode, **sizes})
            assert settings is not None
            return settings.samples_per_update

        self.assertEqual(divisor("sync", global_batch=64), 64)
        self.assertEqual(divisor("sync", worker_batch=8), 24)
        self.assertEqual(divisor("async", worker_batch=8), 8)
        self.assertAlmostEqual(divisor("async", global_batch=64), 64 / 3)

    def test_importing_the_package_imports_neither_numpy_nor_mxnet(self) -> None:
        code = "import sys, optimus; sys.exit(bool({'numpy', 'mxnet'} & set(sys.modules)))"
        variables = {**os.environ, "PYTHONPATH": PACKAGE}
        began = time.monotonic()
        self.assertEqual(subprocess.call([sys.executable, "-c", code], env=variables), 0)
        self.assertLess(time.monotonic() - began, 5)


if __name__ == "__main__":
    unittest.main()
