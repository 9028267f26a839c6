"""A plug-in of Pillow that reads files with the first bytes of HEIC: its width and height, then grey pixels.

Like pillow_heif, it reads nothing until `register_heif_opener` is called.
"""

from __future__ import annotations

from PIL import Image, ImageFile

HEAD = b"\0\0\0\x18ftypheic" + bytes(12)


def toy(pixels: bytes, width: int) -> bytes:
    """A file."""
    return HEAD + bytes((width, len(pixels) // width)) + bytes(64) + pixels


class ToyImage(ImageFile.ImageFile):
    """A file, opened."""

    format = "HEIF"

    def _open(self) -> None:
        assert self.fp is not None
        head = self.fp.read(len(HEAD) + 2)
        if not head.startswith(HEAD):
            raise SyntaxError("no toy")
        self._mode, self._size = "L", (head[-2], head[-1])
        self.tile = [ImageFile._Tile("raw", (0, 0, *self.size), len(HEAD) + 66, ("L", 0, 1))]


def register_heif_opener() -> None:
    """Let Pillow use it."""
    Image.register_open("HEIF", ToyImage, lambda prefix: prefix[4:12] == b"ftypheic")
