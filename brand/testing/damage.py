"""What storage does to files: a bit flips, the end is missing, something is appended. Checksums stay as they were."""

from __future__ import annotations

import os
from pathlib import Path


def flip_bit(path: Path, bit: int) -> None:
    """Flip one bit of a file: bit `bit % 8` of byte `bit // 8`."""
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Put other bytes in the place of those at `offset`."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def truncate(path: Path, size: int) -> None:
    """Keep the first `size` bytes of a file; where it is shorter, it grows a hole of zeros."""
    os.truncate(path, size)


def extend(path: Path, data: bytes) -> None:
    """Append bytes to a file."""
    with path.open("ab") as file:
        file.write(data)
