"""Files of a checkpoint: written whole or not at all, and trusted only when proved.

A checkpoint folder holds ``checkpoint.json`` (the manifest), ``parameters.npz`` and,
for each server, ``server-<rank>.npz`` with ``server-<rank>.json``. Arrays are read
with pickling refused: a checkpoint can hold numbers, never code.
"""

from __future__ import annotations

import errno
import io
import json
import os
import zlib
from typing import IO, TYPE_CHECKING, Any, Callable, Dict, List, Mapping, NamedTuple

from . import gateway

if TYPE_CHECKING:
    import numpy

SCHEMA = "optimus.checkpoint/1"
MANIFEST = "checkpoint.json"
PARAMETERS = "parameters.npz"
# What the system says of a file that is gone, or on a broken disk. All else (permissions, a
# lost server, no descriptors left) says nothing of the file.
LOST = (errno.ENOENT, errno.EIO)


class CheckpointDamaged(Exception):
    """A part of a checkpoint is missing or is not what was written; the text names it.

    Only of what is known to be so: the master gives the checkpoint up for it.
    """


class CheckpointAway(Exception):
    """A checkpoint cannot be read from this node, whatever it is; the text says why."""


class CheckpointUnfit(Exception):
    """A whole checkpoint is one of another model or optimizer than the script's."""


class Part(NamedTuple):
    """A file of a checkpoint with the proof of its contents."""

    file: str
    bytes: int
    crc32: int

    def to_json(self) -> Dict[str, Any]:
        return self._asdict()


def server_states(rank: int) -> str:
    """Name of the file with a server's arrays."""
    return f"server-{rank}.npz"


def server_table(rank: int) -> str:
    """Name of the file that says what a server's arrays are."""
    return f"server-{rank}.json"


class Summed:
    """A file to write from front to end; knows the number and the checksum of its bytes.

    It has neither ``tell`` nor ``seek``, so that a zip writer does not go back to patch.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.bytes = 0
        self.crc32 = 0
        self._file = file

    def write(self, content: Any) -> int:
        """All of ``content``, which may be any buffer of bytes."""
        self._file.write(content)
        self.bytes += len(content)
        self.crc32 = zlib.crc32(content, self.crc32)
        return len(content)

    def flush(self) -> None:
        """Hand over to the system what is still in memory."""
        self._file.flush()


def write_file(folder: str, name: str, write: Callable[[IO[bytes]], None]) -> Part:
    """Write a file under a temporary name, flush it to disk, then give it its name.

    A process killed at any point leaves either no file of that name or a whole one.
    Raises OSError.
    """
    path = os.path.join(folder, name)
    temporary = f"{path}.tmp-{os.getpid()}"
    try:
        with open(temporary, "wb") as file:
            summed = Summed(file)
            write(summed)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        _remove(temporary)
        raise
    _sync_folder(folder)
    return Part(name, summed.bytes, summed.crc32)


def write_json(folder: str, name: str, document: Any) -> Part:
    """Write a JSON file like :func:`write_file`; non-finite numbers are refused."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return write_file(folder, name, lambda file: _write(file, text.encode("utf-8")))


def described(name: str, content: bytes) -> Part:
    """The part that a small file of this content is."""
    return Part(name, len(content), zlib.crc32(content))


def describe(folder: str, name: str) -> Part:
    """The part that a small file is now. Raises OSError when there is none."""
    with open(os.path.join(folder, name), "rb") as file:
        return described(name, file.read())


def path_of(folder: str, name: str) -> str:
    """A file of this machine to read a part of a published checkpoint from.

    Raises CheckpointDamaged where storage has none, or another than was written.
    """
    try:
        return gateway.path_of(folder, name)
    except gateway.NotWhole as error:
        raise CheckpointDamaged(str(error)) from error


def unreadable(folder: str, name: str, error: OSError) -> Exception:
    """What it means that a file of a checkpoint cannot be read.

    It is lost only where the rest of the checkpoint is there: a node whose mount is missing
    may see a folder of that name, made on its own disk, and none may be given up for that.
    """
    text = f"cannot read {name}: {error.strerror}"
    above, own = os.path.split(folder.rstrip("/"))
    proofs = (os.path.join(folder, MANIFEST), os.path.join(above, f"manifest-{own}.json"))
    if error.errno in LOST and any(os.path.exists(proof) for proof in proofs):
        return CheckpointDamaged(text)
    if error.errno == errno.ENOENT and not gateway.is_remote(folder):
        text = f"{text}; nothing of {folder} is on this node: is its file system mounted?"
    return CheckpointAway(text)


def read_verified(folder: str, part: Part) -> bytes:
    """The bytes of a part; raises CheckpointDamaged unless size and checksum agree.

    Raises CheckpointAway where that cannot be told.
    """
    try:
        with open(path_of(folder, part.file), "rb") as file:
            content = file.read()
    except OSError as error:
        raise unreadable(folder, part.file, error) from error
    if len(content) != part.bytes:
        raise CheckpointDamaged(f"{part.file} has {len(content)} bytes instead of {part.bytes}")
    if zlib.crc32(content) != part.crc32:
        raise CheckpointDamaged(f"{part.file} does not match its checksum")
    return content


def read_arrays(folder: str, part: Part) -> Mapping[str, "numpy.ndarray"]:
    """The arrays of a verified npz, decoded one by one as they are asked for."""
    import numpy

    content = io.BytesIO(read_verified(folder, part))
    try:
        return numpy.load(content, allow_pickle=False)
    except Exception as error:
        raise CheckpointDamaged(f"{part.file} is not an npz file: {error}") from error


class Manifest:
    """The decoded checkpoint.json of a folder."""

    def __init__(self, folder: str) -> None:
        """Raises CheckpointDamaged when the manifest is missing or is none, CheckpointAway
        where it cannot be read from here."""
        self.folder = folder
        try:
            with open(path_of(folder, MANIFEST), "rb") as file:
                self.document: Dict[str, Any] = json.loads(file.read())
            if self.document["schema"] != SCHEMA:
                raise ValueError(f"schema {self.document['schema']!r} is not {SCHEMA!r}")
            self._parts = {part["file"]: Part(**part) for part in self.document["parts"]}
        except OSError as error:
            raise unreadable(folder, MANIFEST, error) from error
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointDamaged(f"{MANIFEST} is not understood: {error}") from error

    def part(self, name: str) -> Part:
        """The part of that name; raises CheckpointDamaged when there is none."""
        if name not in self._parts:
            raise CheckpointDamaged(f"{MANIFEST} names no part {name}")
        return self._parts[name]

    def server_ranks(self) -> List[int]:
        """Ranks of the servers that wrote states."""
        return list(range(int(self.document["servers"])))


def _write(file: IO[bytes], content: bytes) -> None:
    file.write(content)


def _remove(path: str) -> None:
    try:
        os.remove(path)
    except OSError:
        pass


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
