"""What does the store answer? A status, headers and the pieces of a body, as data: `store` sends them as they are.

A fault changes an answer before it is sent (`faults.spoil`), so no other module knows what goes wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import BinaryIO, Literal

End = Literal["keep", "close", "reset"]
"""What becomes of the connection after an answer. `close`: the store ends it in order. `reset`: it breaks."""


@dataclass(frozen=True, slots=True)
class FilePiece:
    """A range of an open file."""

    file: BinaryIO
    first: int
    size: int


@dataclass(frozen=True, slots=True)
class Repeated:
    """The same bytes many times; `times` None: until the client hangs up."""

    data: bytes
    times: int | None


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing is sent for so long."""

    seconds: float


Piece = bytes | FilePiece | Repeated | Pause


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; status 0: the connection ends without one."""

    status: int
    headers: Mapping[str, str]
    pieces: tuple[Piece, ...] = ()
    end: End = "keep"

    @property
    def size(self) -> int:
        """Bytes of the body; a piece without an end counts once."""
        return sum(map(size_of, self.pieces))

    def without_body(self) -> Answer:
        """The answer to a HEAD: the same status and headers."""
        return replace(self, pieces=())


def answer(status: int, headers: Mapping[str, str], *pieces: Piece) -> Answer:
    """An answer whose Content-Length is right."""
    return Answer(status, {**headers, "Content-Length": str(sum(map(size_of, pieces)))}, pieces)


def size_of(piece: Piece) -> int:
    """Bytes that a piece brings."""
    match piece:
        case bytes():
            return len(piece)
        case FilePiece():
            return piece.size
        case Repeated():
            return len(piece.data) * (1 if piece.times is None else piece.times)
        case Pause():
            return 0


def split(pieces: tuple[Piece, ...], at: int) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    """The first `at` bytes of bytes and files, and the rest."""
    before: list[Piece] = []
    after: list[Piece] = []
    for piece in pieces:
        head = min(at, size_of(piece))
        cut: list[tuple[list[Piece], Piece]]
        match piece:
            case bytes():
                cut = [(before, piece[:head]), (after, piece[head:])]
            case FilePiece(file, first, size):
                rest = FilePiece(file, first + head, size - head)
                cut = [(before, FilePiece(file, first, head)), (after, rest)]
            case _:
                cut = [(after, piece)]
        at -= head
        for side, part in cut:
            if size_of(part):
                side.append(part)
    return tuple(before), tuple(after)
