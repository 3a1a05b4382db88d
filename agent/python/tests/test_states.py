"""Optimizer states on their way from some servers to others, without any server."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import unittest
from typing import Any, Dict, List
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import mxnet as mx  # noqa: E402
import numpy  # noqa: E402

from fake_agent import scattered  # noqa: E402
from optimus import checkpoint, layout, states  # noqa: E402

BOUND = 1000
SIZES = {0: 7, 1: 999, 2: 2501, 3: 1000}


def assigned(servers: int) -> layout.AssignedLayout:
    keys = layout.Keys(servers)
    parts = scattered(list(SIZES.values()), servers)
    return layout.AssignedLayout({block: keys.of(parts[block]) for block in SIZES})


# As the workers tell the servers.
PLACED = {
    "stock": lambda servers: told(layout.StockLayout(servers, BOUND, SIZES), servers),
    "assigned": lambda servers: told(assigned(servers), servers),
}


def told(placed: layout.Layout, servers: int) -> layout.Layout:
    return layout.from_json(json.loads(json.dumps(placed.to_json())), servers)


def updater() -> Any:
    return mx.optimizer.get_updater(mx.optimizer.Adam())


def elements(key: int, number: int) -> numpy.ndarray:
    """The made-up state of a whole key."""
    return (numpy.arange(SIZES[key]) + 10_000 * key + 100_000 * number).astype(numpy.float32)


class States(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def save(self, servers: int, piece: int, kind: str = "stock") -> checkpoint.Manifest:
        """Let servers write their shares, in pieces of so many elements at most."""
        parts: List[Dict[str, Any]] = []
        placed = PLACED[kind](servers)
        for rank in range(servers):
            one = updater()
            for block, size in SIZES.items():
                for key, start, stop in placed.held(block, size, rank):
                    one.states[key] = tuple(
                        mx.nd.array(elements(block, number)[start:stop]) for number in (0, 1)
                    )
                    states.update_counts(one.optimizer)[key] = 5 + block
            with mock.patch.object(states, "PIECE_ELEMENTS_MAX", piece):
                states.save(one, {}, self.folder, rank, servers, placed)
            for name in (checkpoint.server_table(rank), checkpoint.server_states(rank)):
                parts.append(checkpoint.describe(self.folder, name).to_json())
        document = {"schema": checkpoint.SCHEMA, "parts": parts, "servers": servers}
        checkpoint.write_json(self.folder, checkpoint.MANIFEST, document)
        return checkpoint.Manifest(self.folder)

    def check(self, manifest: checkpoint.Manifest, servers: int, kind: str) -> None:
        held = {block: 0 for block in SIZES}
        placed = PLACED[kind](servers)
        for rank in range(servers):
            one = updater()
            states.load(one, manifest, rank, placed)
            for key, state in one.states.items():
                block, size, start, stop = placed.origin(key, rank)
                self.assertEqual(size, SIZES[block])
                for number in (0, 1):
                    numpy.testing.assert_array_equal(
                        state[number].asnumpy(), elements(block, number)[start:stop]
                    )
                self.assertEqual(states.update_counts(one.optimizer)[key], 5 + block)
                held[block] += stop - start
        self.assertEqual(held, SIZES)

    def test_any_servers_take_over_from_any_others_with_any_layout(self) -> None:
        for before, piece in ((1, 100), (2, 1 << 20), (3, 333)):
            for was in PLACED:
                manifest = self.save(before, piece, was)
                for after in (1, 2, 3, 5):
                    for kind in PLACED:
                        with self.subTest(before=before, was=was, after=after, kind=kind):
                            self.check(manifest, after, kind)

    def test_a_key_that_lies_on_another_server_is_not_saved(self) -> None:
        for kind, make in PLACED.items():
            with self.subTest(kind=kind):
                placed = make(3)
                one = updater()
                rank = next(rank for rank in range(3) if not placed.held(0, SIZES[0], rank))
                key = next(span.key for r in range(3) for span in placed.held(0, SIZES[0], r))
                one.states[key] = (mx.nd.zeros(7), mx.nd.zeros(7))
                with self.assertRaisesRegex(states.StateError, f"key {key}"):
                    states.save(one, {}, self.folder, rank, 3, placed)

    def test_a_server_reads_no_piece_but_its_own(self) -> None:
        manifest = self.save(1, 100)
        placed = PLACED["stock"](3)
        part = manifest.part(checkpoint.server_states(0))
        # Of the sliced block 2, whose last element belongs to the last server.
        with open(os.path.join(self.folder, part.file), "r+b") as file:
            file.seek(file.read().rindex(elements(2, 1)[-1:].tobytes()))
            file.write(b"\xff")
        states.load(updater(), manifest, 0, placed)
        with self.assertRaisesRegex(checkpoint.CheckpointDamaged, "server-0.npz"):
            states.load(updater(), manifest, 2, placed)


if __name__ == "__main__":
    unittest.main()
