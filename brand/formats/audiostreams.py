"""Which streams does an audio file consist of, with heads that state how long each of them is?

libsndfile decodes the first stream of a file, and no more frames than its head states. Some files consist of several
streams (chained Ogg, joined MP3 files), and some heads state no number or a wrong one: a recorder that was stopped
leaves 0, a program that writes to a pipe leaves "unknown", a cut MP3 keeps the number of the whole, and the number of
an MP3 without a Xing head is an estimate. `streams` divides such a file and corrects the heads. It counts the frames
without decoding them. Pure. Files are bytes, or mapped.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Iterator
from mmap import mmap
from typing import Final, NamedTuple

from brand.formats.values import Buffer

_WIDE: Final = 0xFFFFFFFF
"""Size of the chunk of samples of an RF64, which states it elsewhere."""
_FLAC_HEAD: Final = 42
"""Bytes of the signature and the block STREAMINFO."""
_FLAC_FRAME: Final = 16
"""Maximum bytes of the header of a frame."""
_KBITS: Final = {
    (1, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (1, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (1, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (2, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (2, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (2, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""(version, layer) of MPEG audio -> kilobits a second, by number."""
_RATES: Final = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
_SAMPLES: Final = {(1, 1): 384, (2, 1): 384, (1, 2): 1152, (2, 2): 1152, (1, 3): 1152, (2, 3): 576}
_XING: Final = (b"Xing", b"Info")
_TRIMMED: Final = 529
"""Frames that a decoder leaves out at the begin of a stream with a Xing head: its own delay."""
_REVERSED: Final = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_MOST_PAGE: Final = 27 + 255 + 255 * 255
"""Most bytes of an Ogg page."""
_UNSTATED: Final = (0x7FFFFFFF, 0x7FFFF000, 0xFFFFFFFF)
"""Sizes that programs write that write a WAV file to a pipe."""
_ALL_FIELDS: Final = 15
"""Flags of a Xing head with frames, bytes, a table and the quality, after which the encoder is named."""
_ENCODER: Final = 120
"""Offset in such a head of the name of the encoder, 9 bytes."""
_LAME: Final = (b"LAME3.9", b"LAME3.1")
"""Names of the encoders whose head ends with a checksum: LAME 3.90 to 3.100."""
_LAME_PADDING: Final = 141
"""Offset in a Xing head of the bytes that state delay and padding."""
_LAME_SUM: Final = 154
"""Offset in a Xing head of the checksum of the frame up to there."""


class Stream(NamedTuple):
    """A file of one stream, whose head states its length."""

    data: bytes | mmap
    skip: int = 0
    """Frames at its begin, a frame being one sample of each channel, that are not in the original."""


def streams(data: bytes | mmap) -> list[Stream]:
    """Return the streams of a file; a file that libsndfile reads as a whole is returned as it is."""
    if data[:4] == b"OggS":
        return _cut(data, _links(data))
    if data[:4] == b"fLaC":
        return [Stream(_counted_flac(data))]
    if data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE":
        return [Stream(_finished_wav(data))]
    if data[:3] == b"ID3" and data[(after := _after_tag(data, 0)) : after + 4] in (b"fLaC", b"OggS"):
        return streams(data[after:])
    if data[:3] == b"ID3" or _mpeg(data[:4]) is not None:
        return _mpeg_streams(data)
    return [Stream(data)]


def is_joined(data: Buffer) -> bool:
    """Whether a file is an Ogg or MP3 file of several streams, of which libsndfile decodes the first."""
    view = memoryview(data)
    if bytes(view[:4]) == b"OggS" or bytes(view[:3]) == b"ID3" or _mpeg(bytes(view[:4])) is not None:
        return len(streams(bytes(view))) > 1
    return False


def _cut(data: bytes | mmap, begins: list[int]) -> list[Stream]:
    """Return the parts of a file that begin at these offsets."""
    if len(begins) < 2:
        return [Stream(data)]
    return [Stream(data[begin:end]) for begin, end in zip(begins, [*begins[1:], len(data)], strict=True)]


def _links(data: bytes | mmap) -> list[int]:
    """Return where the links of a chained Ogg file begin: at the first page of a stream that follows other pages."""
    begins, at, within = [0], 0, False
    while at >= 0 and at + 27 <= len(data):
        if data[at : at + 4] != b"OggS":  # damage: libogg looks for the next page, too
            at = data.find(b"OggS", at + 1)
            continue
        first = bool(data[at + 5] & 2)
        if first and within:
            begins.append(at)
        within = not first
        lacing = at + 27 + data[at + 26]
        at = lacing + sum(data[at + 27 : lacing])
    return begins


def check_pages(data: bytes | mmap) -> None:
    """Raise ValueError if a page of an Ogg file does not match its checksum, or follows a page that is missing.

    libogg leaves out such a page, and the frames around it would follow each other. A cut last page is no error.
    """
    at, numbers = 0, dict[bytes, int]()
    while at >= 0 and at + 27 <= len(data):
        if data[at : at + 4] != b"OggS":
            at = data.find(b"OggS", at + 1)
            continue
        lacing = at + 27 + data[at + 26]
        end = lacing + sum(data[at + 27 : lacing])
        stream, number = data[at + 14 : at + 18], int.from_bytes(data[at + 18 : at + 22], "little")
        if end > len(data):
            if data.find(b"OggS", at + 1) >= 0:
                raise ValueError("a page of the Ogg file is cut, and other pages follow it")
            return
        if _ogg_sum(data[at : at + 22] + bytes(4) + data[at + 26 : end]) != data[at + 22 : at + 26]:
            raise ValueError(f"page {number} of the Ogg file does not match its checksum")
        if number != numbers.get(stream, number) and not data[at + 5] & 2:
            raise ValueError(f"pages {numbers[stream]} to {number - 1} of the Ogg file are missing")
        numbers[stream] = number + 1 & 0xFFFFFFFF
        at = end


def _ogg_sum(page: bytes) -> bytes:
    """Return the checksum of a page: CRC-32 from the highest bit on, without the inversions of zlib's CRC-32."""
    reflected = zlib.crc32(page.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return reflected.to_bytes(4, "big").translate(_REVERSED)


def check_frames(data: bytes | mmap) -> None:
    """Raise ValueError if frames are missing from an MP3 file whose Xing head states the bytes that there are.

    mpg123 leaves out a damaged frame, and the frames around it would follow each other.
    """
    head = _xing_head(data)
    if head is None or not _is_as_stated(data):
        return
    at = head.begin
    while at < head.end:
        found = _mpeg(data[at : at + 4])
        if found is None or found.stream != head.facts.stream:
            raise ValueError(f"the MP3 file has no frame at byte {at:,}, where the previous one ends")
        at += found.size
    if at > head.end:
        raise ValueError(f"the last frame of the MP3 file ends after byte {head.end:,}, the end that its head states")


def has_damaged_head(data: Buffer) -> bool:
    """Whether the Xing head of an MP3 file is damaged. A decoder trims as many frames as the head states."""
    view = memoryview(data)
    head = _xing_head(bytes(view)) if bytes(view[:3]) == b"ID3" or _mpeg(bytes(view[:4])) is not None else None
    if head is None:
        return False
    encoder = bytes(view[head.at + _ENCODER : head.at + _ENCODER + 9])
    if encoder.startswith(_LAME):
        end = head.at + _LAME_SUM
        return _crc16(bytes(view[head.begin : end])) != int.from_bytes(view[end : end + 2], "big")
    return head.end >= 0 and view[head.at + 7] == _ALL_FIELDS and not encoder.isascii()


def _crc16(data: bytes) -> int:
    """Return CRC-16 with the polynomial 0x8005 from the lowest bit on, as LAME computes it."""
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0xA001 if crc & 1 else crc >> 1
    return crc


def is_cut(data: Buffer) -> bool:
    """Whether a WAV, Ogg or MP3 file ends before the end that it states. It decodes as far as it goes."""
    view = memoryview(data)
    head = bytes(view[:12])
    if head[:4] == b"RIFF" and head[8:] == b"WAVE":
        return _is_cut_wav(view)
    if head[:4] == b"OggS":
        tail = bytes(view[-_MOST_PAGE:])
        last = tail.rfind(b"OggS")
        lacing = last + 27 + tail[last + 26] if last >= 0 and last + 27 <= len(tail) else len(tail) + 1
        return lacing > len(tail) or lacing + sum(tail[last + 27 : lacing]) > len(tail) or not tail[last + 5] & 4
    if head[:3] == b"ID3" or _mpeg(head[:4]) is not None:
        return _is_cut_mpeg(bytes(view))
    return False


def _is_cut_wav(data: memoryview) -> bool:
    at = 12
    while at + 8 <= len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        if bytes(data[at : at + 4]) == b"data":
            return at + 8 + size > len(data) and size not in _UNSTATED
        at += 8 + size + size % 2
    return False


def _is_cut_mpeg(data: bytes) -> bool:
    head = _xing_head(data)
    return head is not None and head.end > len(data)


def _finished_wav(data: bytes | mmap) -> bytes | mmap:
    """Return a WAV file whose chunk of samples has its size, if its writer did not come to state it."""
    at, at_wide, wide = 12, 0, 0
    while at + 8 <= len(data):
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        if name == b"ds64" and size >= 24:  # of an RF64: the sizes that need 64 bits
            wide, at_wide = int.from_bytes(data[at + 16 : at + 24], "little"), at + 16
        if name == b"data":
            begin = at + 8
            left = len(data) - begin
            if data[:4] == b"RF64" and size == _WIDE and at_wide and not wide and left:
                return data[:at_wide] + left.to_bytes(8, "little") + data[at_wide + 8 :]
            if size == 0 and left and not _are_chunks(data, begin):
                return data[: at + 4] + min(left, _WIDE).to_bytes(4, "little") + data[begin:]
            return data
        at += 8 + size + size % 2
    return data


def _are_chunks(data: bytes | mmap, at: int) -> bool:
    """Return whether chunks of a WAV file begin here and fill the rest of it, so that no samples are there."""
    while at + 8 <= len(data) and data[at : at + 4].isascii():
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8 + size + size % 2
    return at in (len(data), len(data) + 1)


def _counted_flac(data: bytes | mmap) -> bytes | mmap:
    """Return a FLAC file whose head states the number of samples, if the last frame tells an unknown number."""
    if len(data) < _FLAC_HEAD or data[4] & 0x7F or int.from_bytes(data[21:26], "big") & ((1 << 36) - 1):
        return data
    total = _flac_samples(data)
    if total is None or total >= 1 << 36:
        return data
    kept = int.from_bytes(data[21:26], "big")
    return data[:21] + (kept | total).to_bytes(5, "big") + data[26:]


def _flac_samples(data: bytes | mmap) -> int | None:
    """Return the number of samples up to the end of the last frame."""
    fixed_size, at = int.from_bytes(data[8:10], "big"), len(data)
    while (at := data.rfind(b"\xff", _FLAC_HEAD, at)) >= 0:
        found = _flac_frame(data[at : at + _FLAC_FRAME], fixed_size)
        if found is not None:
            return found
    return None


def _flac_frame(head: bytes, fixed_size: int) -> int | None:
    """Return the number of samples up to the end of the frame with this header; None if it is no header."""
    if len(head) < 6 or head[1] & 0xFE != 0xF8 or head[3] & 1 or head[3] >> 4 > 10:
        return None
    size_code, rate_code = head[2] >> 4, head[2] & 15
    more = 0
    while head[4] << more & 0x80:  # the number is written as UTF-8 writes a character, up to 36 bits
        more += 1
    length = max(1, more)
    if more in (1, 8) or size_code == 0 or rate_code == 15 or len(head) < 4 + length + 5:
        return None
    number = head[4] & (0x7F >> more)
    for byte in head[5 : 4 + length]:
        if byte & 0xC0 != 0x80:
            return None
        number = number << 6 | byte & 0x3F
    at = 4 + length
    if size_code == 1:
        size = 192
    elif size_code <= 5:
        size = 576 << (size_code - 2)
    elif size_code <= 7:
        width = size_code - 5
        size = int.from_bytes(head[at : at + width], "big") + 1
        at += width
    else:
        size = 256 << (size_code - 8)
    at += {12: 1, 13: 2, 14: 2}.get(rate_code, 0)
    if at >= len(head) or _crc8(head[:at]) != head[at]:
        return None
    return size + (number if head[1] & 1 else number * fixed_size)


def _crc8(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc << 1 ^ 0x07) & 0xFF if crc & 0x80 else crc << 1
    return crc


class _Mpeg(NamedTuple):
    """The facts in the header of a frame of MPEG audio."""

    size: int
    """Bytes of the frame."""
    samples: int
    layer: int
    stream: int
    """Version, layer and rate, which do not change within a stream."""
    xing_at: int
    """Offset in the frame of a Xing head, which takes the place of audio."""


@functools.lru_cache(maxsize=4096)
def _mpeg(head: bytes) -> _Mpeg | None:
    """Return the facts in these four bytes; None if they are no header."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return None
    version, layer = head[1] >> 3 & 3, 4 - (head[1] >> 1 & 3)
    kbits, rate = head[2] >> 4, head[2] >> 2 & 3
    if version == 1 or layer == 4 or kbits in (0, 15) or rate == 3:
        return None
    kind = (1 if version == 3 else 2, layer)
    samples, hertz = _SAMPLES[kind], _RATES[version][rate]
    pad = head[2] >> 1 & 1
    bits = _KBITS[kind][kbits - 1] * 1000
    size = (12 * bits // hertz + pad) * 4 if layer == 1 else samples // 8 * bits // hertz + pad
    mono = head[3] >> 6 == 3
    side = {(1, False): 32, (1, True): 17, (2, False): 17, (2, True): 9}[kind[0], mono]
    return _Mpeg(size, samples, layer, (head[1] | 1) << 8 | rate, 4 + side)


class _Run(NamedTuple):
    """Frames of MPEG audio that follow each other."""

    begin: int
    end: int
    frames: int
    """Number of frames, without a Xing head."""
    xing: bool


def _mpeg_streams(data: bytes | mmap) -> list[Stream]:
    if _is_as_stated(data):
        return [Stream(data)]
    runs = list(_runs(data))
    if not runs or any(_facts(data, run.begin).layer != 3 for run in runs):
        return [Stream(data)]
    return [_with_head(data, run) for run in runs]


class _XingHead(NamedTuple):
    """The first frame of an MP3 file, which has a Xing head if `end` is not -1."""

    facts: _Mpeg
    begin: int
    at: int
    """Offset of the Xing head."""
    end: int
    """End of the last frame, as the head states; -1 if it states none."""


def _xing_head(data: bytes | mmap) -> _XingHead | None:
    """Return the facts about the first frame. None if a file does not begin with a frame."""
    begin = _after_tag(data, 0) if data[:3] == b"ID3" else 0
    facts = _mpeg(data[begin : begin + 4])
    if facts is None:
        return None
    at, end = begin + facts.xing_at, -1
    if data[at : at + 4] in _XING and len(data) >= at + 16 and data[at + 7] & 3 == 3:
        end = begin + int.from_bytes(data[at + 12 : at + 16], "big")
    return _XingHead(facts, begin, at, end)


def _is_as_stated(data: bytes | mmap) -> bool:
    """Return whether the file has one Xing head, which states the bytes that there are."""
    head = _xing_head(data)
    if head is None or head.end < 0 or any(at > head.begin for at in _xing_heads(data)):
        return False
    return head.end == len(data) or (head.end == len(data) - 128 and data[head.end : head.end + 3] == b"TAG")


def _after_tag(data: bytes | mmap, at: int) -> int:
    """Return where the tag ID3 at this offset ends."""
    return at + 10 + functools.reduce(lambda total, byte: total << 7 | byte & 0x7F, data[at + 6 : at + 10], 0)


def _facts(data: bytes | mmap, at: int) -> _Mpeg:
    facts = _mpeg(data[at : at + 4])
    assert facts is not None, "a run begins with a frame"
    return facts


def _runs(data: bytes | mmap) -> Iterator[_Run]:
    """Yield the stretches of frames; a new one begins at each Xing head, tag, or damaged place."""
    at, begin, frames, kind, xing = 0, -1, 0, -1, False
    heads = _xing_heads(data)
    while True:
        facts = _mpeg(data[at : at + 4])
        if facts is not None and at + facts.size <= len(data) and (begin < 0 or facts.stream == kind):
            if at in heads:
                if begin >= 0:
                    yield _Run(begin, at, frames, xing)
                begin, frames, kind, xing = at, 0, facts.stream, True
            else:
                if begin < 0:
                    begin, frames, kind, xing = at, 0, facts.stream, False
                frames += 1
            at += facts.size
            continue
        if begin >= 0:
            yield _Run(begin, at, frames, xing)
            begin = -1
        if (at := _next_frame(data, at)) < 0:
            return


def _xing_heads(data: bytes | mmap) -> set[int]:
    """Return where frames with a Xing head may begin."""
    found = set[int]()
    for mark in _XING:
        at = -1
        while (at := data.find(mark, at + 1)) >= 0:
            found.update(
                at - back
                for back in (36, 21, 13)
                if at >= back and (facts := _mpeg(data[at - back : at - back + 4])) and facts.xing_at == back
            )
    return found


def _next_frame(data: bytes | mmap, at: int) -> int:
    """Return where the next frame begins after a tag or a damaged place; -1 if there is none."""
    if data[at : at + 3] == b"ID3" and at + 10 <= len(data):
        at = _after_tag(data, at)
        if _mpeg(data[at : at + 4]) or data[at : at + 3] == b"ID3":
            return at
        at -= 1
    while (at := data.find(b"\xff", at + 1)) >= 0:
        facts = _mpeg(data[at : at + 4])
        if facts is not None:  # a second frame must follow: these four bytes occur in any data
            after = _mpeg(data[at + facts.size : at + facts.size + 4])
            if after is not None and after.stream == facts.stream:
                return at
    return -1


def _with_head(data: bytes | mmap, run: _Run) -> Stream:
    """Return a run of frames with a Xing head that states their number."""
    facts = _facts(data, run.begin)
    if not run.xing:
        # A decoder trims its delay from a stream with a head only: a silent frame is there to be trimmed.
        head, silent = _head_for(data[run.begin : run.begin + 4], run.frames + 1)
        return Stream(head + silent + data[run.begin : run.end], facts.samples - _TRIMMED)
    flags, stated = struct.unpack_from(">II", data, run.begin + facts.xing_at + 4)
    if not flags & 1 or stated == run.frames:
        return Stream(data[run.begin : run.end])
    frame = bytearray(data[run.begin : run.begin + facts.size])
    struct.pack_into(">I", frame, facts.xing_at + 8, run.frames)
    padding = facts.xing_at + _LAME_PADDING + 1
    if run.frames < stated and padding + 2 <= len(frame):  # the padding was in the part that is missing
        frame[padding : padding + 2] = bytes((frame[padding] & 0xF0, 0))
    return Stream(bytes(frame) + data[run.begin + facts.size : run.end])


def _head_for(like: bytes, frames: int) -> tuple[bytes, bytes]:
    """Return a frame with a Xing head, and a silent frame, for frames with headers `like` this one."""
    for kbits in range(1, 15):
        header = bytes((like[0], like[1] | 1, like[2] & 0x0D | kbits << 4, like[3]))  # no checksum, no padding
        facts = _mpeg(header)
        if facts is not None and facts.size >= facts.xing_at + 12:
            head = header + bytes(facts.xing_at - 4) + struct.pack(">4sII", b"Xing", 1, frames)
            return head.ljust(facts.size, b"\0"), header.ljust(facts.size, b"\0")
    raise AssertionError("the largest frame of a rate holds a head")
