"""A training script whose first worker also talks: as TALK says, beside its steps.

TALK is `lines MS BYTES` for numbered lines of a length at a pace, or `flood SECONDS` for as much
as the machine takes, one endless line of bytes that are no text, and then a word that it is over,
or `hog FILE` for 256 MiB of memory once that file is there.
"""

import os
import runpy
import sys
import threading
import time

TASK = os.environ.get("OPTIMUS_TASK", "-/-/-/-").split("/")
words = os.environ["TALK"].split()


def lines():
    pace_s, length = float(words[1]) / 1000, int(words[2])
    number = 0
    while True:
        text = f"talk {TASK[2]} {number} ".ljust(length - 2, ".") + "|"
        # At once, so that no other line comes in between; whole or, on a full disk, not at all.
        os.write(1, text.encode() + b"\n")
        number += 1
        time.sleep(pace_s)


def flood():
    block = bytes(range(256)).replace(b"\n", b"\xff") * 4096
    ends = time.monotonic() + float(words[1])
    printed = 0
    while time.monotonic() < ends:
        printed += os.write(1, block)
    os.write(1, f"\nflooded {printed} bytes\n".encode())


def hog():
    held = []
    while not os.path.exists(words[1]):
        time.sleep(0.05)
    # More than the test allows it, and nothing that a machine without that bound would feel.
    while len(held) < 256:
        held.append(b"x" * (1 << 20))
    time.sleep(3600)


if TASK[-1] == "worker0":
    talks = {"lines": lines, "flood": flood, "hog": hog}
    threading.Thread(target=talks[words[0]], daemon=True).start()
script = os.environ["TALK_SCRIPT"]
sys.path.insert(0, os.path.dirname(script))
sys.argv[0] = script
runpy.run_path(script, run_name="__main__")
