"""Which images have the traits that their first bytes tell? Many at once, by NumPy, for the head of an image is short.

`plain_kinds` is to `heads.traits_of` what a table is to a calculation: it says which images of a chunk have the same
traits, so that `traits_of` reads one of them. PNGs and JPEGs with parts that seldom occur are left to it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.formats.heads import ALONE, PROFILE, SOF
from brand.formats.record import Records, windows

_IS_FRAME: Final = np.zeros(1 << 16, np.bool_)
_IS_SEGMENT: Final = np.zeros(1 << 16, np.bool_)
"""Two bytes of a JPEG -> whether they begin its frame, or a part with a length."""
_IS_FRAME[[0xFF00 | marker for marker in SOF]] = True
_IS_SEGMENT[[0xFF00 | marker for marker in range(256) if marker not in ALONE]] = True
_IDAT: Final = int.from_bytes(b"IDAT")
_TRNS: Final = int.from_bytes(b"tRNS")
_TEXTS: Final = np.array([int.from_bytes(b"tEXt"), int.from_bytes(b"zTXt")])
_MPF: Final = int.from_bytes(b"MPF\0")
_PNG_PLAIN: Final = np.array(
    [int.from_bytes(name) for name in b"PLTE tRNS pHYs tEXt zTXt gAMA cHRM sRGB iCCP bKGD tIME sBIT hIST oFFs".split()]
)
"""Chunks of a PNG before its pixels that have no trait, and the one with a transparent colour."""
_TOGETHER: Final = 8
"""The fewest files for which a step together is faster than a step for each."""
_PNG_HEAD: Final = 33
"""Bytes before the second chunk of a PNG."""
_EXIF_LITTLE: Final = b"Exif\0\0II*\0\x08"
_EXIF_BIG: Final = b"Exif\0\0MM\0*\0\0\0\x08"
"""The usual start of EXIF data, in both orders of bytes; an array of NumPy does not hold the zeros at the end."""
_SILENT, _UNTOLD, _UPRIGHT, _TURNED, _UNCLEAR = range(5)
"""Result for EXIF data: none, no orientation, an upright image, a turned image, or data that `heads` must read."""


def plain_kinds(images: Records) -> NDArray[np.int64]:
    """Return a number for each image whose first bytes tell all its traits; 0 for one that `traits_of` must read.

    Images with one number have the same traits. A few calls of NumPy for all images take the place of a walk through
    each PNG and JPEG without parts that seldom occur.
    """
    kinds = np.zeros(len(images), np.int64)
    large = np.flatnonzero(images.sizes >= _PNG_HEAD)
    if not len(large):
        return kinds
    begin = windows(images.memory, 4)[images.starts[large]].view(">u4")
    png, jpeg = large[begin == 0x89504E47], large[begin >> 8 == 0xFFD8FF]
    kinds[jpeg] = _walk_jpeg(images.memory, images.starts[jpeg], images.sizes[jpeg])
    # Bits a channel, and the kind of colours. The numbers of JPEGs end at 511, and those of PNGs begin above 1,024.
    facts = windows(images.memory, 2)[images.starts[png] + 24].view(">u2").astype(np.int64)
    walked = _walk_png(windows(images.memory, 8), images.starts[png], images.sizes[png])
    kinds[png] = np.where(walked > 0, 4 * facts + 2 + walked, 0)
    return kinds


def _walk_jpeg(memory: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the channels of each JPEG, plus 256 if EXIF turns it; 0 for one that `heads` must read.

    One step for all files takes the place of a step for each.
    """
    kinds, active, at = np.zeros(len(starts), np.int64), np.arange(len(starts)), starts + 2
    words, ends, turned = windows(memory, 4), starts + sizes, np.full(len(starts), _SILENT)
    while len(active) >= _TOGETHER:
        active = active[at[active] + 10 <= ends[active]]
        word = words[at[active]].view(">u4").astype(np.int64)
        usual = _IS_SEGMENT[word >> 16]
        active, word = active[usual], word[usual]
        frame, next_one = _IS_FRAME[word >> 16], at[active] + 2 + (word & 0xFFFF)
        files = active[frame]
        found = memory[at[files] + 9] + 256 * (turned[files] == _TURNED)
        kinds[files] = np.where(memory[at[files] + 4] == 8, found, 0)
        more = word >> 16 == 0xFFE1
        turned[active[more & (turned[active] == _UNTOLD)]] = _UNCLEAR  # XMP may say it
        app1 = more & (turned[active] == _SILENT)
        files = active[app1]
        turned[files] = _walk_exif(memory, at[files] + 4, np.minimum(next_one[app1], ends[files]))
        app2 = np.flatnonzero(word >> 16 == 0xFFE2)
        frame[app2] |= words[at[active[app2]] + 4].view(">u4") == _MPF  # one of several images
        at[active] = next_one
        active = active[~frame & (turned[active] != _UNCLEAR)]
    return kinds


def _walk_exif(memory: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return whether each APP1 segment turns its image; `_UNCLEAR` if `heads` must look."""
    found, files = np.full(len(starts), _UNCLEAR), np.flatnonzero(ends - starts >= len(_EXIF_BIG))
    heads = windows(memory, len(_EXIF_BIG))[starts[files]].view(f"S{len(_EXIF_BIG)}")
    little = heads == _EXIF_LITTLE
    known = little | (heads == _EXIF_BIG)
    files, little = files[known], little[known]

    def short(places: NDArray[np.int64]) -> NDArray[np.int64]:
        first, second = memory[places].astype(np.int64), memory[places + 1].astype(np.int64)
        return np.where(little, second << 8 | first, first << 8 | second)

    entry = starts[files] + len(_EXIF_BIG)
    inside = entry + 2 <= ends[files]
    files, little, entry = files[inside], little[inside], entry[inside]
    left, entry = short(entry), entry + 2
    whole = (left > 0) & (entry + 12 * left + 2 <= ends[files])
    files, little, entry, left = files[whole], little[whole], entry[whole], left[whole]
    found[files] = _UNTOLD
    while len(files):
        here = short(entry) == 274
        value = np.where(short(entry + 2) == 3, short(entry + 8), -1)
        turned = np.where((value >= 2) & (value <= 8), _TURNED, _UPRIGHT)
        found[files[here]] = np.where(value < 0, _UNCLEAR, turned)[here]
        more = ~here & (left > 1)
        files, little, entry, left = files[more], little[more], entry[more] + 12, left[more] - 1
    return found


def _walk_png(words: NDArray[np.void], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 1 for each PNG whose chunks tell nothing more than its head, 2 if there is a transparent colour, too.

    0 for others, such as those with EXIF. One step for all files takes the place of a step for each; the pixels, which
    most programs cut into chunks of one size, are passed over at once.
    """
    kinds, active, at = np.zeros(len(starts), np.int64), np.arange(len(starts)), np.full(len(starts), 33)
    clear, ends = np.ones(len(starts), np.int64), sizes - 12

    def chunk(files: NDArray[np.int64], offsets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return bytes and name of the chunk at an offset of each file."""
        found = words[starts[files] + offsets].view(">u8").astype(np.uint64)
        return (found >> np.uint64(32)).astype(np.int64) + 12, (found & np.uint64(0xFFFFFFFF)).astype(np.int64)

    while len(active) >= _TOGETHER:
        active = active[at[active] + 12 <= ends[active]]
        steps, names = chunk(active, at[active])
        pixels = names == _IDAT
        files, step = active[pixels], steps[pixels]
        last = at[files] + (ends[files] - 1 - at[files]) // step * step
        size, name = chunk(files, last)
        kinds[files] = np.where((name == _IDAT) & (size + last == ends[files]), clear[files], 0)
        clear[active[names == _TRNS]] = 2
        more = (names[:, None] == _PNG_PLAIN).any(axis=1)
        texts = np.flatnonzero((names[:, None] == _TEXTS).any(axis=1))
        keyword = words[starts[active[texts]] + at[active[texts]] + 8]
        more[texts] = keyword != np.void(PROFILE[:8])
        at[active[more]] += steps[more]
        active = active[more]
    return kinds
