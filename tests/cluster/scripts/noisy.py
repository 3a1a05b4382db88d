"""A training script whose process also reports nonsense to its agent.

Everything here goes to the real socket of the generation, beside the package's own
honest reports: the agent must drop or count all of it and go on.
"""

import json
import os
import runpy
import socket
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
folder = os.environ.get("OPTIMUS_DIR")


def nonsense():
    step = {"v": 1, "t": "step", "role": "worker", "i": 0, "step": 1, "epoch": 0, "loss": 1.0,
            "duration_s": 0.01, "compute_s": 0.01, "samples": 1}
    yield b""
    yield b"\xff\xfe\x00"
    yield b"{"
    yield b"[" * 4000
    yield b"x" * 100_000
    yield json.dumps({"v": 99, "t": "step"}).encode()
    yield json.dumps({"v": 1, "t": "no such thing", "role": "worker", "i": 0}).encode()
    for field, value in [
        ("duration_s", -1.0), ("duration_s", "nan"), ("duration_s", 1e300), ("compute_s", -5),
        ("samples", -1), ("samples", 1 << 62), ("step", -1), ("step", 1 << 63), ("i", 4096),
        ("role", "king"), ("epoch", -1), ("epoch", 1 << 40),
    ]:
        yield json.dumps(dict(step, **{field: value})).encode()
    yield json.dumps({"v": 1, "t": "saved", "role": "worker", "i": 0, "checkpoint": 99, "step": 1,
                      "epoch": 0, "epoch_position": 0,
                      "parts": [{"file": "../../etc/passwd", "bytes": -1, "crc32": 0}]}).encode()


def chatter(stop):
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.setblocking(False)
    while not stop.wait(0.05):
        for datagram in nonsense():
            try:
                sender.sendto(datagram, os.path.join(folder, "report.sock"))
            except OSError:
                pass  # full, too long or away: as for the honest reports


if folder and os.environ.get("OPTIMUS_ROLE") == "worker":
    threading.Thread(target=chatter, args=(threading.Event(),), daemon=True).start()
script = os.environ["NOISY_SCRIPT"]
sys.path.insert(0, os.path.dirname(script))
sys.argv[0] = script
runpy.run_path(script, run_name="__main__")
