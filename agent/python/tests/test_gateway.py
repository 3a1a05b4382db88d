"""The way to storage through the agent, from the side of the tasks."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import sys
import tempfile
import threading
import time
import unittest
from typing import Any, Callable, Dict, List, Optional, Tuple

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, PACKAGE)

from optimus import checkpoint, gateway  # noqa: E402
from optimus.control import Request  # noqa: E402
from optimus.environment import Settings  # noqa: E402
from optimus.hold import Holder  # noqa: E402

Answer = Tuple[Dict[str, Any], bytes]
REMOTE = "hdfs://nn/ckpt/j1/g00000001-c00000007"


class Agent:
    """Serves ``files.sock`` with answers of the test's own."""

    def __init__(self, folder: str, answer: Callable[[Dict[str, Any], bytes], Answer]) -> None:
        self.asked: List[Dict[str, Any]] = []
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(os.path.join(folder, gateway.SOCKET))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return
            with stream:
                lengths = struct.unpack(">II", gateway._read(stream, 8))
                header, body = (gateway._read(stream, length) for length in lengths)
                self.asked.append(json.loads(header))
                answer, content = self._answer(self.asked[-1], body)
                text = json.dumps(answer).encode()
                stream.sendall(struct.pack(">II", len(text), len(content)) + text + content)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class Base(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        before = os.environ.get("OPTIMUS_DIR")
        os.environ["OPTIMUS_DIR"] = self.folder
        self.addCleanup(
            lambda: os.environ.pop("OPTIMUS_DIR") if before is None
            else os.environ.__setitem__("OPTIMUS_DIR", before)
        )

    def agent(self, answer: Callable[[Dict[str, Any], bytes], Answer]) -> Agent:
        agent = Agent(self.folder, answer)
        self.addCleanup(agent.close)
        return agent


class Asking(Base):
    def test_a_local_folder_asks_nobody(self) -> None:
        self.assertEqual(checkpoint.path_of("/srv/c", "a"), "/srv/c/a")
        target = gateway.target(self.folder, 7)
        with open(os.path.join(target.folder, "a"), "w", encoding="utf-8") as file:
            file.write("text")
        target.store(["a"])
        target.hand_over(["a"])
        self.assertEqual(target.read("a"), b"text")

    def test_each_kind_of_trouble_is_told_apart(self) -> None:
        def answer(header: Dict[str, Any], _: bytes) -> Answer:
            if header["file"] == "good":
                return {"ok": True, "path": "/spool/good"}, b""
            return {"ok": False, "kind": header["file"], "error": "in words"}, b""

        agent = self.agent(answer)
        self.assertEqual(checkpoint.path_of(REMOTE, "good"), "/spool/good")
        self.assertEqual(
            agent.asked[0], {"op": "fetch", "directory": REMOTE, "file": "good"}
        )
        for kind, error in [
            ("missing", checkpoint.CheckpointDamaged), ("damaged", checkpoint.CheckpointDamaged),
            ("unavailable", gateway.StorageAway), ("refused", gateway.GatewayRefused),
        ]:
            with self.assertRaisesRegex(error, "in words"):
                checkpoint.path_of(REMOTE, kind)

    def test_an_agent_that_restarts_is_waited_for(self) -> None:
        found: List[str] = []
        asking = threading.Thread(
            target=lambda: found.append(gateway.path_of(REMOTE, "a")), daemon=True
        )
        asking.start()
        self.agent(lambda header, _: ({"ok": True, "path": "/spool/a"}, b""))
        asking.join(20)
        self.assertEqual(found, ["/spool/a"])


class Orders:
    """The agent's orders, as the test gives them."""

    def __init__(self, hold: bool) -> None:
        self.request: Optional[Request] = Request(7, 10, REMOTE, hold, False)

    def poll(self) -> Optional[Request]:
        return self.request


class Reports:
    def __init__(self) -> None:
        self.sent: List[Tuple[str, Dict[str, Any]]] = []

    def send(self, kind: str, **fields: Any) -> None:
        self.sent.append((kind, fields))

    def kinds(self) -> List[str]:
        return [kind for kind, _ in self.sent]


class Holding(Base):
    """A worker alone at a checkpoint that the agent stores."""

    def setUp(self) -> None:
        super().setUp()
        self.marks: Dict[str, str] = {}
        self.agent(self.meet)
        self.reports = Reports()
        self.stored = threading.Event()
        self.error: Optional[Exception] = None

    def meet(self, header: Dict[str, Any], body: bytes) -> Answer:
        if header["op"] == "mark":
            self.marks[header["name"]] = body.decode()
            return {"ok": True}, b""
        found = {name: self.marks[name] for name in header["names"] if name in self.marks}
        return {"ok": True, "marks": found}, b""

    def holder(self, orders: Orders) -> Holder:
        settings = Settings(
            job="j1", generation=1, role="worker", index=0, servers=1, workers=1, mode="sync",
            epochs_max=1, global_batch=8, directory=self.folder,
        )

        def complete() -> Dict[str, Any]:
            self.stored.wait(20)
            if self.error is not None:
                raise self.error
            return {"checkpoint": 7}

        return Holder(
            settings, 0, orders, self.reports, threading.Event(), sys.exit,  # type: ignore
            lambda request, standings: complete,
        )

    def standing(self) -> Dict[str, Any]:
        return {
            "step": 10, "epoch": 0, "loss_sum": 0.0, "samples": 0, "progress": {},
            "finished": False,
        }

    def at_boundary(self, holder: Holder, step: int) -> None:
        holder.at_boundary(self.standing, step, False)

    def wait_for(self, kind: str, holder: Holder) -> None:
        deadline = time.monotonic() + 20
        while kind not in self.reports.kinds():
            self.assertLess(time.monotonic(), deadline, f"no report {kind}")
            self.at_boundary(holder, 11)

    def test_training_goes_on_while_a_checkpoint_is_stored(self) -> None:
        holder = self.holder(Orders(hold=False))
        self.at_boundary(holder, 10)
        self.at_boundary(holder, 11)
        self.assertEqual(self.reports.kinds(), ["reached"])
        self.assertEqual(set(self.marks), {"reached-0-10", "done-10"})
        self.stored.set()
        self.wait_for("saved", holder)

    def test_what_storage_says_is_reported_in_its_own_words(self) -> None:
        holder = self.holder(Orders(hold=False))
        self.at_boundary(holder, 10)
        self.error = gateway.StorageAway("storage is away: quota")
        self.stored.set()
        self.wait_for("failed", holder)
        self.assertEqual(self.reports.sent[-1][1]["error"], "storage is away: quota")

    def test_a_held_worker_hears_that_it_is_called_off(self) -> None:
        orders = Orders(hold=True)
        holder = self.holder(orders)
        standing = threading.Thread(target=self.at_boundary, args=[holder, 10], daemon=True)
        standing.start()
        deadline = time.monotonic() + 20
        while "reached" not in self.reports.kinds():
            self.assertLess(time.monotonic(), deadline)
        self.assertTrue(standing.is_alive())
        orders.request = None
        standing.join(20)
        self.assertFalse(standing.is_alive())
        self.assertNotIn("saved", self.reports.kinds())


if __name__ == "__main__":
    unittest.main()
