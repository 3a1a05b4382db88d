"""Optimizer states on their way from some servers to others, without any server."""

from __future__ import annotations

import os
import sys
import tempfile
import unittest
from typing import Any, Dict, List
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import mxnet as mx  # noqa: E402
import numpy  # noqa: E402

from optimus import checkpoint, layout, states  # noqa: E402

BOUND = 1000
SIZES = {0: 7, 1: 999, 2: 2501, 3: 1000}


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

    def save(self, servers: int, piece: int) -> checkpoint.Manifest:
        """Let servers write their shares, in pieces of so many elements at most."""
        parts: List[Dict[str, Any]] = []
        for rank in range(servers):
            one = updater()
            for key, size in SIZES.items():
                span = layout.owned(key, size, servers, BOUND, rank)
                if span is not None:
                    one.states[key] = tuple(
                        mx.nd.array(elements(key, number)[span[0]:span[1]]) for number in (0, 1)
                    )
                    states.update_counts(one.optimizer)[key] = 5 + key
            with mock.patch.object(states, "PIECE_ELEMENTS_MAX", piece):
                states.save(one, {}, self.folder, rank, servers, BOUND, SIZES)
            for name in (checkpoint.server_table(rank), checkpoint.server_states(rank)):
                parts.append(checkpoint.describe(self.folder, name).to_json())
        document = {"schema": checkpoint.SCHEMA, "parts": parts, "servers": servers}
        checkpoint.write_json(self.folder, checkpoint.MANIFEST, document)
        return checkpoint.Manifest(self.folder)

    def check(self, manifest: checkpoint.Manifest, servers: int) -> None:
        held = {key: 0 for key in SIZES}
        for rank in range(servers):
            one = updater()
            states.load(one, manifest, rank, servers, BOUND)
            for key, state in one.states.items():
                span = layout.owned(key, SIZES[key], servers, BOUND, rank)
                assert span is not None
                for number in (0, 1):
                    numpy.testing.assert_array_equal(
                        state[number].asnumpy(), elements(key, number)[span[0]:span[1]]
                    )
                self.assertEqual(states.update_counts(one.optimizer)[key], 5 + key)
                held[key] += span[1] - span[0]
        self.assertEqual(held, SIZES)

    def test_any_servers_take_over_from_any_others(self) -> None:
        for before, piece in ((1, 100), (2, 1 << 20), (3, 333)):
            manifest = self.save(before, piece)
            for after in (1, 2, 3, 5):
                with self.subTest(before=before, after=after):
                    self.check(manifest, after)

    def test_a_server_reads_no_piece_but_its_own(self) -> None:
        manifest = self.save(1, 100)
        part = manifest.part(checkpoint.server_states(0))
        # Of the sliced key 2, whose last element belongs to the last server.
        with open(os.path.join(self.folder, part.file), "r+b") as file:
            file.seek(file.read().rindex(elements(2, 1)[-1:].tobytes()))
            file.write(b"\xff")
        states.load(updater(), manifest, 0, 3, BOUND)
        with self.assertRaisesRegex(checkpoint.CheckpointDamaged, "server-0.npz"):
            states.load(updater(), manifest, 2, 3, BOUND)


if __name__ == "__main__":
    unittest.main()
