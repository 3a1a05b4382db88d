"""Data sets for tests, written by code of the tests' own."""

from __future__ import annotations

import os
import struct
from typing import Iterable, List, Sequence

MAGIC = struct.pack("<I", 0xCED7230A)


def recordio(records: Iterable[bytes]) -> bytes:
    """RecordIO by MXNet's rule: a magic word at an aligned place is left out and cuts."""
    out = bytearray()
    for record in records:
        parts: List[bytearray] = [bytearray()]
        for at in range(0, len(record), 4):
            if record[at:at + 4] == MAGIC:
                parts.append(bytearray())
            else:
                parts[-1] += record[at:at + 4]
        last = len(parts) - 1
        for number, part in enumerate(parts):
            kind = 0 if not last else 1 if not number else 3 if number == last else 2
            out += MAGIC + struct.pack("<I", kind << 29 | len(part)) + part
            out += bytes(-len(part) % 4)
    return bytes(out)


def write(folder: str, format: str, files: Sequence[Sequence[bytes]]) -> None:
    """Files of records in a folder, as a format has them."""
    os.makedirs(folder, exist_ok=True)
    for number, records in enumerate(files):
        path = os.path.join(folder, f"part {number:03}")
        if format == "files":
            os.makedirs(path, exist_ok=True)
            for one, record in enumerate(records):
                with open(os.path.join(path, f"{one:06}"), "wb") as file:
                    file.write(record)
            continue
        with open(path, "wb") as file:
            if format == "recordio":
                file.write(recordio(records))
            elif format == "lines":
                # Every other file lacks its last line's end.
                file.write(b"\n".join(records) + (b"\n" if records and number % 2 else b""))
            else:
                file.write(b"".join(records))
