"""The functions of core.c. Numbers are contiguous int64 arrays of one length; ValueError where a bound does not hold.

A piece is `sizes[i]` bytes of `memory` from `starts[i]` on. Addresses of functions come from `borrowed`.
"""

from typing import Any

from numpy.typing import NDArray
import numpy as np

_Numbers = NDArray[Any]
_Memory = NDArray[np.uint8]

Unpacker = Any

def pieces(memory: _Memory, starts: _Numbers, sizes: _Numbers, /) -> list[bytes]:
    """The bytes of each piece."""

def texts(memory: _Memory, starts: _Numbers, sizes: _Numbers, /) -> list[str]:
    """The text of each piece, from UTF-8."""

def digests(
    digest: int, memory: _Memory, starts: _Numbers, sizes: _Numbers, made: NDArray[np.uint64], /
) -> None:
    """Set `made[i]` to the digest of a piece."""

def fence() -> None:
    """Let no load or store before this call be done after one behind it."""

def gather(memory: _Memory, starts: _Numbers, sizes: _Numbers, out: _Memory, /) -> None:
    """Copy the pieces to `out`, side by side."""

def scatter(memory: _Memory | bytes, places: NDArray[np.void], at: int, /) -> int:
    """Copy all of `memory` to places (address and length, as readv(2) has them), from number `at` on.

    A place that is filled in part is cut. Returns the number of the place to go on with. The caller vouches for the
    addresses; ValueError where the places are too few.
    """

def copy_mapped(landing: int, landed: _Memory, addresses: _Numbers, sizes: _Numbers, out: _Memory, /) -> bool:
    """Copy memory of mapped files to `out`, side by side; False where a page of a file is missing.

    The kernel copies into the file `landing`, which is mapped as `landed`.
    """

def read_cached(
    digest: int,
    files: _Numbers,
    offsets: _Numbers,
    memory: _Memory | memoryview,
    starts: _Numbers,
    sizes: _Numbers,
    late: int,
    made: NDArray[np.uint64],
    there: NDArray[np.bool_],
    /,
) -> bool:
    """Read pieces of open files from the page cache into pieces of `memory`. `there[i]`: it has all of a piece, whose
    digest is `made[i]`. False where more than `late` are not there; then it stops.
    """

def sort(words: NDArray[np.uint64], length: int, /) -> None:
    """Sort each row of `length` words, ascending, in place."""

def unpacker(functions: tuple[int, ...], dictionary: bytes, /) -> Unpacker:
    """Of the functions of `borrowed.zstd`, with a dictionary or `b""`. For one thread at a time."""

def unpack(
    unpacker: Unpacker, memory: _Memory, starts: _Numbers, sizes: _Numbers, raw_sizes: _Numbers, out: _Memory, /
) -> None:
    """Unpack a frame from each piece to `raw_sizes[i]` bytes of `out`, side by side."""
