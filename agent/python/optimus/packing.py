"""Arrays of a checkpoint in one file, of which any one can be read and proved alone.

The file is an npz that numpy itself can read. Beside it goes a table of the places of its
arrays, each with a checksum of its own: who needs two arrays of a thousand reads those two.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Tuple

from .checkpoint import (
    CheckpointDamaged, Part, path_of, read_arrays, unreadable, write_file,
)

if TYPE_CHECKING:
    import numpy

# What JSON says of an array: offset and bytes of its elements in the file, their CRC-32, their
# type and their shape.
Place = List[Any]


def write_arrays(
    folder: str, name: str, arrays: Iterable[Tuple[str, "numpy.ndarray"]]
) -> Tuple[Part, Dict[str, Place]]:
    """Write named arrays, each as it comes; returns the part and the arrays' places.

    Raises OSError.
    """
    places: Dict[str, Place] = {}

    def write(file: IO[bytes]) -> None:
        # Each member's checksum comes after it: the file is written from front to end once.
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for key, value in arrays:
                places[key] = _write_one(archive, file, key, value)

    return write_file(folder, name, write), places


def _write_one(archive: zipfile.ZipFile, file: Any, key: str, value: Any) -> Place:
    import numpy

    array = numpy.asarray(value, order="C")
    if array.dtype.hasobject:
        raise ValueError(f"array {key} holds objects, which a checkpoint cannot")
    content = memoryview(array.reshape(-1).view(numpy.uint8))
    with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
        header = numpy.lib.format.header_data_from_array_1_0(array)
        numpy.lib.format.write_array_header_1_0(member, header)
        offset = file.bytes
        member.write(content)
    return [offset, len(content), zlib.crc32(content), array.dtype.str, list(array.shape)]


class Arrays:
    """The arrays of a part, read and proved one by one as they are asked for."""

    def __init__(self, folder: str, part: Part, places: Mapping[str, Place]) -> None:
        """Raises CheckpointDamaged when the file is missing or has another length, and
        CheckpointAway where that cannot be told."""
        self._folder = folder
        self._part = part
        self._places = places
        try:
            self._file = open(path_of(folder, part.file), "rb", buffering=0)
            size = os.fstat(self._file.fileno()).st_size
        except OSError as error:
            raise unreadable(folder, part.file, error) from error
        if size != part.bytes:
            raise CheckpointDamaged(f"{part.file} has {size} bytes instead of {part.bytes}")

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None:
            file.close()

    def __getitem__(self, name: str) -> "numpy.ndarray":
        """Raises CheckpointDamaged unless the array is what was written."""
        import numpy

        try:
            offset, size, crc, dtype, shape = self._places[name]
            content = numpy.empty(size, numpy.uint8)
            self._read(memoryview(content), offset)
            if zlib.crc32(content) != crc:
                raise CheckpointDamaged(f"{self._part.file}: {name} does not match its checksum")
            return content.view(numpy.dtype(dtype)).reshape(shape)
        except OSError as error:
            raise unreadable(self._folder, self._part.file, error) from error
        except (KeyError, ValueError, TypeError) as error:
            raise CheckpointDamaged(f"{self._part.file}: no usable array {name}") from error

    def _read(self, content: memoryview, offset: int) -> None:
        done = 0
        while done < len(content):
            count = os.preadv(self._file.fileno(), [content[done:]], offset + done)
            if count == 0:
                raise ValueError("the file ends within the array")
            done += count


def open_arrays(folder: str, part: Part, places: Optional[Mapping[str, Place]]) -> Any:
    """The arrays of a part by name; ``places`` is None where an older package wrote it.

    Raises CheckpointDamaged and CheckpointAway.
    """
    if places is None:
        return read_arrays(folder, part)
    return Arrays(folder, part, places)
