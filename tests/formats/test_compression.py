"""Compression: is it chosen where it pays, and does what is stored come back?"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from brand.errors import UsageError
from brand.formats import compression as module
from brand.formats.compression import LEVEL, Compression, Compressor, Decompressor, choose
from brand.formats.record import Records
from brand.formats.values import Buffer

RANDOM = random.Random(0)
NOISE = [RANDOM.randbytes(3000) for _ in range(50)]
SMALL = [f"sample {k}: {RANDOM.choice(['red', 'green', 'blue'])} and {k * k}".encode() * 3 for k in range(2000)]
LARGE = [f"line {k} of a text\n".encode() * 2000 for k in range(8)]
SETS = {
    "noise": NOISE,
    "small": SMALL,
    "large": LARGE,
    "mixed": [x for pair in zip(NOISE, LARGE, strict=False) for x in pair],
}


def cost(compression: Compression, records: list[bytes], chunks: int) -> int:
    """Bytes on storage, counted by storing everything."""
    return sum(map(len, Compressor(compression).pack(Records.of(records)))) + chunks * len(compression.dictionary)


@pytest.mark.parametrize("mode", ["none", "auto", "zstd"])
@pytest.mark.parametrize("name", sorted(SETS))
def test_what_is_chosen_is_not_worse_than_storing_raw(name: str, mode: str) -> None:
    """Counted on all records: `auto` compresses where that saves 10 %, and no choice costs more than the raw bytes."""
    records = SETS[name]
    raw = sum(map(len, records))
    chosen = choose(mode, records, len(records), 2)  # type: ignore[arg-type]
    stored = cost(chosen, records, 2)
    if mode == "none" or (mode == "auto" and name == "noise"):
        assert chosen == Compression("none")
    else:
        assert chosen.codec == "zstd"
        assert stored <= raw
    if mode == "auto" and chosen.codec == "zstd":
        assert stored <= 0.9 * raw


def test_small_samples_get_a_dictionary_where_it_pays() -> None:
    """It is weighed with the number of chunks, as each carries it."""
    few = choose("auto", SMALL, len(SMALL), 1)
    many = choose("auto", SMALL, len(SMALL), 10_000)
    assert few.dictionary
    assert not many.dictionary
    assert cost(few, SMALL, 1) < cost(Compression("zstd"), SMALL, 1)


def test_large_samples_get_no_dictionary() -> None:
    """They learn from themselves."""
    assert choose("zstd", LARGE, len(LARGE), 1).dictionary == b""


def test_the_choice_is_the_same_every_time() -> None:
    """The dictionary included: it is part of the data set's identity."""
    assert choose("auto", SMALL, 2000, 1) == choose("auto", list(SMALL), 2000, 1)


@pytest.mark.parametrize("probe", [[b""], [b"x"], [b"", b""], [b"ab"] * 3, [b"x" * 5] * 20])
@pytest.mark.parametrize("mode", ["auto", "zstd", "none"])
def test_a_probe_of_next_to_nothing_is_no_problem(probe: list[bytes], mode: str) -> None:
    """Empty records, one record, equal records: there is a choice, and records come back."""
    chosen = choose(mode, probe, len(probe), 1)  # type: ignore[arg-type]
    stored = Compressor(chosen).pack(Records.of(probe))
    unpack = Decompressor(chosen.dictionary).unpack
    assert [bytes(unpack(s, len(r))) for s, r in zip(stored, probe, strict=True)] == probe


def test_an_unknown_mode_is_the_callers_error() -> None:
    """The message lists the modes."""
    with pytest.raises(UsageError, match="auto, none, zstd"):
        choose("lzma", [b"x"], 1, 1)  # type: ignore[arg-type]


COMPRESSIONS = [
    Compression("none"), Compression("zstd"), Compression("zstd", b"raw content as a dictionary", 1.0),
    choose("zstd", SMALL, 2000, 1),
]  # fmt: skip


@pytest.mark.slow
@given(st.lists(st.binary(max_size=300) | st.sampled_from(SMALL)), st.sampled_from(COMPRESSIONS))
def test_records_come_back(records: list[bytes], compression: Compression) -> None:
    """Whatever is stored unpacks to the record, and is smaller than it exactly where it is compressed."""
    stored = Compressor(compression).pack(Records.of(records))
    unpack = Decompressor(compression.dictionary).unpack
    for data, record in zip(stored, records, strict=True):
        assert bytes(unpack(memoryview(data), len(record))) == record
        assert data == record or len(data) <= compression.worth * len(record)


@given(st.binary(max_size=200), st.integers(0, 2**32 - 1))
def test_any_bytes_are_a_record_or_a_value_error(stored: bytes, raw_size: int) -> None:
    """Nothing else comes out, whatever is stored."""
    try:
        record = Decompressor().unpack(stored, raw_size)
    except ValueError:
        return
    assert len(record) == raw_size


@pytest.mark.parametrize("dictionary", [b"", b"raw content", COMPRESSIONS[3].dictionary])
def test_a_frame_of_another_size_is_a_value_error(dictionary: bytes) -> None:
    """Stated size, missing size, no end, more than one frame, another dictionary."""
    data = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    frame = zstandard.ZstdCompressor(dict_data=data).compress(bytes(1000))
    unstated = zstandard.ZstdCompressor(dict_data=data, write_content_size=False).compress(bytes(1000))
    unpack = Decompressor(dictionary).unpack
    assert unpack(frame, 1000) == bytes(1000)
    for stored, raw_size in [
        (frame, 999), (frame, 1001), (frame, 2**32 - 1), (unstated, 1000), (frame[:-1], 1000), (frame + b"x", 1000),
        (frame * 2, 1000), (frame * 2, 2000), (b"", 1000), (b"\x28\xb5\x2f\xfd", 1000),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match="zstd"):
            unpack(stored, raw_size)


def unpack_all(dictionary: bytes, stored: Sequence[Buffer], raw_sizes: Sequence[int], gap: int = 0) -> list[bytes]:
    """What `Decompressor.unpack_all` makes of them, with `gap` bytes between them."""
    memory = np.frombuffer(bytearray(bytes(gap).join([b"", *stored, b""])), np.uint8)
    sizes, raws = np.array([len(s) for s in stored], np.int64), np.array(raw_sizes, np.int64)
    starts = np.cumsum(sizes + gap) - sizes
    unpacked = Decompressor(dictionary).unpack_all(Records(memory, starts, sizes), raws)
    assert unpacked.memory.flags.writeable or not unpacked.memory.size  # torch warns of tensors over memory that is not
    return list(unpacked)


@pytest.mark.slow
@given(
    st.lists(st.binary(max_size=300) | st.sampled_from([*SMALL, *LARGE, b"z" * 9999, bytes(200_000)])),
    st.sampled_from(COMPRESSIONS),
    st.integers(0, 9),
)
def test_many_records_come_back_at_once(records: list[bytes], compression: Compression, gap: int) -> None:
    """Small and large, compressed and not, in any order: each is what it is by itself."""
    stored = Compressor(compression).pack(Records.of(records))
    assert unpack_all(compression.dictionary, stored, [len(record) for record in records], gap) == records


@pytest.mark.slow
@given(
    st.lists(st.binary(max_size=300) | st.sampled_from([*SMALL, *LARGE, *NOISE, b"", b"z" * 9999, bytes(400_000)])),
    st.sampled_from(COMPRESSIONS),
)
def test_one_call_packs_the_frames_of_one_call_for_each(records: list[bytes], compression: Compression) -> None:
    """Byte for byte, so data sets do not change with the zstandard that has this call."""
    data = zstandard.ZstdCompressionDict(compression.dictionary) if compression.dictionary else None
    if data is not None:
        data.precompute_compress(level=LEVEL)
    zstd = zstandard.ZstdCompressor(level=LEVEL, dict_data=data, write_content_size=True)
    expected = records
    if compression.codec == "zstd":
        frames = [zstd.compress(record) for record in records]
        worth = compression.worth
        expected = [
            f if len(f) < len(r) and len(f) <= worth * len(r) else r for f, r in zip(frames, records, strict=True)
        ]
    assert list(map(bytes, Compressor(compression).pack(Records.of(records)))) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BULK", False)
        assert list(map(bytes, Compressor(compression).pack(Records.of(records)))) == expected


FRAME_KINDS: dict[str, Any] = {
    "stated": {},
    "with a checksum": {"write_checksum": True},
    "without the dictionary's id": {"write_dict_id": False},
}


@pytest.mark.parametrize("kind", FRAME_KINDS)
@pytest.mark.parametrize("size", [1, 255, 256, 65_791, 65_792, 131_072, 131_073, 500_000])
@pytest.mark.parametrize("content", [b"\0", b"abcdefg"])
def test_frames_of_all_kinds_come_back_at_once(kind: str, size: int, content: bytes) -> None:
    """Content sizes of 1, 2 and 4 bytes, one block and more, blocks of one repeated byte, with and without checksum."""
    record = (content * size)[:size]
    data = zstandard.ZstdCompressionDict(COMPRESSIONS[3].dictionary)
    frame = zstandard.ZstdCompressor(dict_data=data, **FRAME_KINDS[kind]).compress(record)
    if len(frame) != size:
        assert unpack_all(COMPRESSIONS[3].dictionary, [frame] * 3, [size] * 3) == [record] * 3


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("dictionary", [b"", b"raw content", COMPRESSIONS[3].dictionary])
def test_one_wrong_frame_among_many_is_a_value_error(dictionary: bytes, position: int) -> None:
    """Whatever is refused by itself is refused among others: sizes, an end too soon, bytes or a frame behind it."""
    data = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    frame = zstandard.ZstdCompressor(dict_data=data).compress(bytes(1000))
    unstated = zstandard.ZstdCompressor(dict_data=data, write_content_size=False).compress(bytes(1000))
    skipped = b"\x50\x2a\x4d\x18" + (len(frame) - 8).to_bytes(4, "little") + frame[8:]
    bomb = zstandard.ZstdCompressor(dict_data=data).compress(bytes(1001))
    assert unpack_all(dictionary, [frame] * 3, [1000] * 3) == [bytes(1000)] * 3
    for stored, raw_size in [
        (frame, 999), (frame, 1001), (frame, 2**32 - 1), (unstated, 1000), (frame[:-1], 1000), (frame + b"x", 1000),
        (frame * 2, 1000), (frame * 2, 2000), (b"", 1000), (b"\x28\xb5\x2f\xfd", 1000), (skipped, 1000), (bomb, 1000),
        (b"\xff" * len(frame), 1000), (frame[:-3] + b"\xff\xff\xff", 1000),
    ]:  # fmt: skip
        many, sizes = [frame] * 3, [1000] * 3
        many[position], sizes[position] = stored, raw_size
        with pytest.raises(ValueError, match="zstd"):
            unpack_all(dictionary, many, sizes)


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.binary(max_size=60) | st.just(b"\x28\xb5\x2f\xfd"), st.integers(0, 2**32 - 1)), max_size=4)
)
def test_any_bytes_at_once_are_what_they_are_alone(samples: list[tuple[bytes, int]]) -> None:
    """Records where each of them is one by itself, a ValueError where one of them is none."""
    unpack = Decompressor().unpack
    try:
        alone = [bytes(unpack(stored, raw_size)) for stored, raw_size in samples]
    except ValueError:
        with pytest.raises(ValueError, match="zstd"):
            unpack_all(b"", [stored for stored, _ in samples], [raw_size for _, raw_size in samples])
    else:
        assert unpack_all(b"", [stored for stored, _ in samples], [raw_size for _, raw_size in samples]) == alone


def test_a_dictionary_that_is_none_is_a_value_error() -> None:
    """One that begins like a zstd dictionary and is garbage: a hostile chunk may carry it."""
    frame = zstandard.ZstdCompressor().compress(bytes(1000))
    with pytest.raises(ValueError, match="dictionary"):
        Decompressor(b"\x37\xa4\x30\xec" + b"garbage" * 9).unpack(frame, 1000)
