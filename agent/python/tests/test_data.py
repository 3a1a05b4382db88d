"""Data sets: every record once, whatever the shapes; what cannot be read is named."""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import tracemalloc
import unittest
import zlib
from typing import Dict, List, Optional, Tuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import datasets  # noqa: E402
from optimus import data, index, sampler  # noqa: E402
from optimus.environment import Settings, SettingsError  # noqa: E402


def settings(mode: str, workers: int, batch: Optional[int], each: Optional[int]) -> Settings:
    return Settings(
        job="j1", generation=1, role="worker", index=0, servers=1, workers=workers, mode=mode,
        epochs_max=1000, global_batch=batch, worker_batch=each,
    )


class Folder(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name

    def write(self, format: str, files: List[List[bytes]], name: str = "set") -> str:
        folder = os.path.join(self.root, name)
        datasets.write(folder, format, files)
        return folder

    def open(self, place: str, format: str, **options: int) -> data.Dataset:
        chosen = {"record_bytes": None, "chunk_bytes": 300, **options}
        found = index.scan(place, format, chosen["record_bytes"], chosen["chunk_bytes"])
        return data.Dataset(
            found, data.LocalSource(place, found), 0,
            options.get("shuffle_bytes", 200), options.get("ahead_bytes", 400),
        )


def numbered(count: int, files: int, rng: random.Random) -> List[List[bytes]]:
    """Records that begin with their number, of different lengths, in some files."""
    records = [b"%d:" % number + b"x" * rng.randrange(0, 30) for number in range(count)]
    edges = sorted(rng.randrange(count + 1) for _ in range(files - 1))
    return [records[a:b] for a, b in zip([0] + edges, edges + [count])]


class Coverage(Folder):
    """Generations without processes: only loops, and a checkpoint between two of them."""

    def run_sync(
        self, dataset: data.Dataset, rng: random.Random, shapes: List[int], seen: Dict[int, list]
    ) -> None:
        progress = sampler.Progress()
        batch = rng.choice([None, rng.randrange(1, 40)])
        each = None if batch else rng.randrange(1, 9)
        for number, workers in enumerate(shapes):
            chosen = settings("sync", workers, batch, each)
            loops = [dataset.loop(chosen, 5, rank, progress, True) for rank in range(workers)]
            steps = rng.randrange(1, 60)
            last = number == len(shapes) - 1
            while (loops[0].epoch < 3 if last else steps > 0):
                steps -= 1
                while loops[0].epoch_over:
                    for loop in loops:
                        self.assertTrue(loop.epoch_over)
                        loop.next_epoch()
                if loops[0].epoch >= 3:
                    break
                whole = min(chosen.global_batch or each * workers, dataset.records)
                left = dataset.records - len(seen.get(loops[0].epoch, []))
                batches = [loop.next_batch() for loop in loops]
                self.assertEqual(sum(b.samples for b in batches), min(whole, left))
                self.assertTrue(all(b.samples <= chosen.worker_batch_max for b in batches))
                self.note(batches, seen)
            found = {json.dumps(loop.progress().to_json()) for loop in loops}
            self.assertEqual(len(found), 1)
            progress = sampler.Progress.from_json(json.loads(found.pop()))

    def run_async(
        self, dataset: data.Dataset, rng: random.Random, shapes: List[int], seen: Dict[int, list]
    ) -> None:
        progress = sampler.Progress()
        batch = rng.choice([None, rng.randrange(1, 40)])
        each = None if batch else rng.randrange(1, 9)
        for number, workers in enumerate(shapes):
            chosen = settings("async", workers, batch, each)
            loops = [dataset.loop(chosen, 5, rank, progress, True) for rank in range(workers)]
            steps = rng.randrange(1, 200)
            last = number == len(shapes) - 1
            while (min(loop.epoch for loop in loops) < 3 if last else steps > 0):
                steps -= 1
                loop = rng.choice(loops)
                while loop.epoch < 3 and loop.epoch_over:
                    loop.next_epoch()
                if loop.epoch < 3:
                    self.note([loop.next_batch()], seen)
                    if loop.epoch_over:
                        loop.next_epoch()
                elif all(loop.epoch >= 3 for loop in loops):
                    break
            merged = sampler.merge(
                {rank: loop.progress() for rank, loop in enumerate(loops)}, loops[0]
            )
            progress = sampler.Progress.from_json(json.loads(json.dumps(merged.to_json())))

    def note(self, batches: List[sampler.Batch], seen: Dict[int, list]) -> None:
        for batch in batches:
            self.assertGreaterEqual(len(batch.records), 1)
            numbers = [int(record.split(b":")[0]) for record in batch.records]
            self.assertEqual(numbers, batch.indices.tolist())
            seen.setdefault(batch.epoch, []).extend(numbers[:batch.samples])

    def test_every_record_once_in_any_sequence_of_shapes(self) -> None:
        for case in range(60):
            rng = random.Random(case)
            format = rng.choice(["recordio", "lines", "files"])
            count = rng.choice([1, 3, 50, 200])
            place = self.write(format, numbered(count, rng.randrange(1, 5), rng), f"s{case}")
            dataset = self.open(
                place, format, chunk_bytes=rng.choice([1, 100, 1000, 10**6]),
                shuffle_bytes=rng.choice([1, 500, 10**6]),
            )
            shapes = [rng.randrange(1, 8) for _ in range(rng.randrange(1, 6))]
            for run in (self.run_sync, self.run_async):
                with self.subTest(case=case, run=run.__name__, shapes=shapes):
                    seen: Dict[int, list] = {}
                    run(dataset, rng, shapes, seen)
                    self.assertEqual(sorted(seen), [0, 1, 2])
                    for epoch, numbers in seen.items():
                        self.assertEqual(sorted(numbers), list(range(count)), f"epoch {epoch}")

    def test_4_to_2_to_6_workers_see_every_index_once(self) -> None:
        rng = random.Random(92)
        dataset = self.open(self.write("lines", numbered(997, 3, rng)), "lines")
        for run in (self.run_sync, self.run_async):
            seen: Dict[int, list] = {}
            run(dataset, random.Random(1), [4, 2, 6], seen)
            for epoch in range(3):
                self.assertEqual(sorted(seen[epoch]), list(range(997)))
            self.assertNotEqual(seen[0], seen[1])

    def test_the_order_is_a_function_of_seed_and_epoch(self) -> None:
        rng = random.Random(3)
        dataset = self.open(self.write("lines", numbered(300, 2, rng)), "lines")

        def order(seed: int, epoch: int, shuffle: bool = True) -> List[int]:
            progress = sampler.Progress(epoch=epoch)
            loop = dataset.loop(settings("sync", 1, 300, None), seed, 0, progress, shuffle)
            return loop.next_batch().indices.tolist()

        self.assertEqual(order(1, 2), order(1, 2))
        self.assertNotEqual(order(1, 2), order(1, 3))
        self.assertNotEqual(order(1, 2), order(2, 2))
        self.assertEqual(order(1, 2, shuffle=False), list(range(300)))

    def test_chunks_go_round_robin_and_shares_are_equal(self) -> None:
        records = [b"%05d" % number for number in range(70)]
        dataset = self.open(
            self.write("lines", [records]), "lines", chunk_bytes=60, shuffle_bytes=10**6
        )
        self.assertEqual(dataset.chunks, 7)
        chosen = settings("sync", 3, 6, None)
        loops = [
            dataset.loop(chosen, 0, rank, sampler.Progress(), False) for rank in range(3)
        ]
        streams = [loop.stream(0) for loop in loops]
        # Six whole chunks in turn; the seventh is shared by all.
        self.assertEqual([stream[:2] for stream in streams], [
            [(0, 10), (30, 40)], [(10, 20), (40, 50)], [(20, 30), (50, 60)],
        ])
        sizes = [sum(b - a for a, b in stream) for stream in streams]
        self.assertEqual(sizes, [23, 23, 24])

    def test_a_resumed_worker_reads_nothing_again_but_a_part_of_a_window(self) -> None:
        records = [b"%07d" % number for number in range(4096)]  # 8 bytes a line
        place = self.write("lines", [records])
        dataset = self.open(place, "lines", chunk_bytes=8192, shuffle_bytes=2048)
        read: List[int] = []
        source = data.LocalSource(place, dataset.index)
        dataset = data.Dataset(dataset.index, source, 0, 2048, 1)
        original = source.read

        def counted(file: int, offset: int, size: int) -> bytes:
            read.append(size)
            return original(file, offset, size)

        source.read = counted  # type: ignore[method-assign]
        half = sampler.Progress(step=1, epoch=0, left={0: [(2000, 4096)]})
        loop = dataset.loop(settings("sync", 1, 2096, None), 0, 0, half, True)
        loop.next_batch()
        window = max(block.bytes for chunk in dataset.index.chunks for block in chunk)
        # The next epoch's first windows are read ahead already.
        self.assertLessEqual(min(read), window)
        self.assertLessEqual(sum(read), 8 * 2096 + 4 * max(window, 2048))


class Formats(Folder):
    def everything(self, dataset: data.Dataset) -> List[bytes]:
        chosen = settings("sync", 1, dataset.records, None)
        loop = dataset.loop(chosen, 0, 0, sampler.Progress(), False)
        return loop.next_batch().records

    def test_records_come_back_as_they_were_written(self) -> None:
        rng = random.Random(11)
        words = [datasets.MAGIC, b"\n", b"ab", b"", b"\0\0\0\0", b"xyzw"]
        for case in range(60):
            content = lambda: b"".join(rng.choice(words) for _ in range(rng.randrange(12)))
            made = [[content() for _ in range(rng.randrange(40))] for _ in range(3)]
            made[0].append(b"one")
            lines = [[r.replace(b"\n", b"") + b"." for r in file] for file in made]
            fixed = [[(r + b"1234567")[:7] for r in file] for file in made]
            for format, files, size in (
                ("recordio", made, None), ("files", made, None), ("lines", lines, None),
                ("fixed", fixed, 7),
            ):
                with self.subTest(case=case, format=format):
                    place = self.write(format, files, f"{format}{case}")
                    options = {} if size is None else {"record_bytes": size}
                    dataset = self.open(place, format, **options)
                    self.assertEqual(self.everything(dataset), [r for f in files for r in f])

    def test_mxnet_writes_and_reads_the_same_recordio(self) -> None:
        import mxnet as mx

        rng = random.Random(4)
        records = [rng.choice([b"", datasets.MAGIC, b"abc"]) * rng.randrange(1, 9) + b"%d" % n
                   for n in range(500)]
        path = os.path.join(self.root, "train.rec")
        writer = mx.recordio.MXRecordIO(path, "w")
        for record in records:
            writer.write(record)
        writer.close()
        with open(path, "rb") as file:
            self.assertEqual(file.read(), datasets.recordio(records))
        self.assertEqual(self.everything(self.open(path, "recordio")), records)

    def test_empty_records_and_a_huge_one(self) -> None:
        huge = os.urandom(9 << 20)
        for format in ("recordio", "files"):
            records = [b"", b"a", huge, b"", b""]
            place = self.write(format, [records], format)
            dataset = self.open(place, format, chunk_bytes=1000)
            self.assertEqual(self.everything(dataset), records)
            self.assertGreater(dataset.memory_bytes_max, 9 << 20)
        place = self.write("lines", [[b"", b"", b"x", b""]], "lines")
        self.assertEqual(self.everything(self.open(place, "lines")), [b"", b"", b"x"])

    def test_a_record_of_files_has_its_path(self) -> None:
        place = self.write("files", [[b"a", b"b"], [b"c"]])
        dataset = self.open(place, "files")
        self.assertEqual(dataset.path(2), "part 001/000000")
        with self.assertRaises(ValueError):
            self.open(self.write("lines", [[b"x"]], "l"), "lines").path(0)

    def test_an_index_survives_its_document(self) -> None:
        place = self.write("recordio", numbered(100, 3, random.Random(0)))
        found = index.scan(place, "recordio", None, 200)
        again = index.Index.decode(found.encode())
        self.assertEqual(again.to_json(), found.to_json())
        for wrong in (b"", b"{}", b"[1]", found.encode().replace(b"data/1", b"data/9")):
            with self.assertRaises(data.DataError):
                index.Index.decode(wrong)


class Faults(Folder):
    def refused(self, place: str, format: str, *words: str, **options: int) -> None:
        with self.assertRaises(data.DataError) as caught:
            self.open(place, format, **options)
        for word in words:
            self.assertIn(word, str(caught.exception))

    def test_what_is_no_data_set_is_named(self) -> None:
        missing = os.path.join(self.root, "missing")
        self.refused(missing, "lines", missing, "No such file")
        empty = self.write("lines", [])
        self.refused(empty, "lines", empty, "no records")
        self.refused(empty, "parquet", "parquet", "recordio")
        self.refused(empty, "fixed", "record_bytes")
        place = self.write("lines", [[b"no RecordIO"]], "x")
        self.refused(place, "recordio", "part 000", "byte 0")
        self.refused(place, "fixed", "part 000", "byte 8", record_bytes=4)
        os.symlink("/etc/passwd", os.path.join(place, "odd"))
        self.refused(place, "lines", "odd", "link")

    def test_damage_after_the_scan_is_named_with_its_place(self) -> None:
        records = [b"%06d" % number for number in range(100)]

        def spoil(place: str, change) -> str:
            path = os.path.join(place, "part 000")
            dataset = self.open(place, "recordio", chunk_bytes=10**6)
            with open(path, "r+b") as file:
                change(file)
            loop = dataset.loop(settings("sync", 1, 10, None), 0, 0, sampler.Progress(), True)
            with self.assertRaises(data.DataError) as caught:
                loop.next_batch()
            self.assertIn(path, str(caught.exception))
            return str(caught.exception)

        flipped = spoil(
            self.write("recordio", [records], "a"), lambda f: (f.seek(30), f.write(b"?"))
        )
        self.assertIn("from byte 0", flipped)
        shorter = spoil(self.write("recordio", [records], "b"), lambda f: f.truncate(800))
        self.assertIn("800 bytes, and had 1600", shorter)
        grown = spoil(self.write("recordio", [records], "c"), lambda f: (f.seek(0, 2), f.write(b"x")))
        self.assertIn("1601 bytes", grown)

    def test_a_file_that_shrinks_while_it_is_read_is_named(self) -> None:
        place = self.write("lines", [[b"%07d" % n for n in range(1000)]])
        dataset = self.open(place, "lines", chunk_bytes=80, shuffle_bytes=1, ahead_bytes=1)
        loop = dataset.loop(settings("sync", 1, 10, None), 0, 0, sampler.Progress(), False)
        loop.next_batch()
        os.truncate(os.path.join(place, "part 000"), 4000)
        with self.assertRaises(data.DataError) as caught:
            for _ in range(99):
                loop.next_batch()
        self.assertIn("ends at byte 4000", str(caught.exception))

    def test_a_checkpoint_of_another_set_or_order_is_refused(self) -> None:
        place = self.write("lines", numbered(100, 1, random.Random(0)))
        dataset = self.open(place, "lines")
        data.check_same(dataset.to_json(True), dataset, True)
        for before, source, word in (
            (dataset.to_json(True), self.open(place, "lines", shuffle_bytes=9), "shuffle_bytes"),
            (dataset.to_json(False), dataset, "shuffle was False"),
            (dict(dataset.to_json(True), index_crc32=1), dataset, "index_crc32"),
            (None, dataset, "None"),
            (dataset.to_json(True), 100, "give it to the loop"),
        ):
            with self.assertRaises(SettingsError) as caught:
                data.check_same(before, source, True)
            self.assertIn(word, str(caught.exception))

    def test_the_agents_words_reach_the_script(self) -> None:
        chosen = Settings(
            job="j1", generation=1, role="worker", index=0, servers=1, workers=1, mode="sync",
            epochs_max=1, global_batch=1, directory=self.root,
            data=json.dumps({"url": f"file://{self.root}/set"}),
        )
        place = self.write("lines", [[b"a", b"b"]])
        with open(os.path.join(self.root, "data-error.txt"), "w", encoding="utf-8") as file:
            file.write("the set is damaged at byte 7\n")
        with self.assertRaises(data.DataError) as caught:
            data.open_dataset(chosen, self.fail)
        self.assertIn("byte 7", str(caught.exception))
        os.rename(file.name, file.name + ".old")
        text = index.scan(place, "lines").encode()
        with open(os.path.join(self.root, "data-index.json"), "wb") as found:
            found.write(text)
        dataset = data.open_dataset(chosen, self.fail)
        self.assertEqual((dataset.records, dataset.to_json(True)["index_crc32"]),
                         (2, zlib.crc32(text)))


class Memory(Folder):
    def test_reading_holds_no_more_than_it_says(self) -> None:
        """A set of 48 MiB through windows of 2 MiB."""
        rng = random.Random(8)
        records = [rng.getrandbits(8 * 3000).to_bytes(3000, "big") for _ in range(16000)]
        place = self.write("recordio", [records])
        records.clear()
        found = index.scan(place, "recordio")
        dataset = data.Dataset(found, data.LocalSource(place, found), 0, 2 << 20, 4 << 20)
        self.assertLess(dataset.memory_bytes_max, found.bytes // 2)
        loop = dataset.loop(settings("sync", 1, 64, None), 0, 0, sampler.Progress(), True)
        tracemalloc.start()
        try:
            while not loop.epoch_over:
                batch = loop.next_batch()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        self.assertLess(peak, dataset.memory_bytes_max + 64 * 3100 + (2 << 20))
        self.assertEqual(len(batch.records), 64)


if __name__ == "__main__":
    unittest.main()
