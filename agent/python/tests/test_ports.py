"""Each process listens where its agent says, whatever else, and ranks follow the ports."""

from __future__ import annotations

import os
import sys
import unittest
from typing import Set, Tuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from fake_agent import Generation, free_ports  # noqa: E402

STEPS = ["--step-ms", "4"]


def listening(pid: int) -> Set[Tuple[str, int]]:
    """Addresses and ports at which a process listens."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        except FileNotFoundError:
            pass
    found = set()
    with open(f"/proc/{pid}/net/tcp", encoding="ascii") as table:
        for line in table.readlines()[1:]:
            fields = line.split()
            host, port = fields[1].split(":")
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                parts = (str(byte) for byte in bytes.fromhex(host)[::-1])
                found.add((".".join(parts), int(port, 16)))
    return found


class Ports(unittest.TestCase):
    def run_with(self, upwards: bool) -> None:
        names = ["server0", "server1", "worker0", "worker1", "worker2"]
        chosen = sorted(free_ports(len(names)), reverse=not upwards)
        ports = dict(zip(names, chosen))
        with Generation("linear_probe.py", STEPS, 2, 3, global_batch=60, ports=ports) as job:
            job.wait_for_step(5, workers=3)
            for name, port in ports.items():
                found = listening(job.processes[name].pid)
                self.assertEqual(found, {("127.0.0.1", port)}, name)
            ranks = {r["i"]: r["rank"] for r in job.seen("steps")}
            wanted = range(3) if upwards else range(2, -1, -1)
            self.assertEqual(ranks, dict(enumerate(wanted)))

    def test_ranks_are_indices_where_ports_go_up(self) -> None:
        self.run_with(upwards=True)

    def test_ranks_follow_ports_and_not_start_order(self) -> None:
        self.run_with(upwards=False)


if __name__ == "__main__":
    unittest.main()
