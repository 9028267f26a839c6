"""The core gives what Python gives, sample by sample, refuses what lies outside, and may be missing."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import xxhash
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from brand.errors import ProtocolError
from brand.formats import arrays, compression, record
from brand.formats.arrays import ArrayFile
from brand.formats.compression import Decompressor
from brand.formats.constants import ROW
from brand.formats.contents import StoredSamples
from brand.formats.header import Schema
from brand.formats.record import RecordDecoder, encode_records
from brand.native import CORE, XXH3, borrowed
from brand.node.client import memories
from brand.node.client.memories import Buffers, Pages
from brand.orders.base import random
from brand.storage.dataset import cached
from brand.storage.io import vectored
from brand.storage.io.crew import Crew
from tests.rounds import examples

pytestmark = pytest.mark.skipif(CORE is None, reason="the core was not built here, or BRAND_NATIVE=0")

SCHEMA = Schema((("text", "str"), ("label", "int"), ("raw", "bytes")))
USERS: list[ModuleType] = [arrays, cached, compression, memories, random, record, vectored]
"""The modules that call the core."""


@contextmanager
def without_core() -> Iterator[None]:
    """These modules work as if there was no core."""
    with pytest.MonkeyPatch.context() as patch:
        for module in USERS:
            patch.setattr(module, "CORE", None)
        yield


def core() -> ModuleType:
    assert CORE is not None
    return CORE


def bools(count: int) -> NDArray[np.bool_]:
    return np.zeros(count, np.bool_)


def read_cached(
    digest: int, files: Any, offsets: Any, memory: Any, starts: Any, sizes: Any, made: Any, there: Any
) -> bool:
    """Into a copy of `memory`, and nothing may be missing."""
    return bool(core().read_cached(digest, files, offsets, memory.copy(), starts, sizes, 0, made, there))


def numbers(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


@st.composite
def samples_in_memory(draw: st.DrawFn) -> StoredSamples:
    """Samples in any order with any bytes between them, some compressed, some with a flipped byte."""
    fields = st.tuples(st.text(max_size=40), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=5000))
    drawn = draw(st.lists(fields, min_size=1, max_size=8))
    samples = [{"text": text, "label": label, "raw": raw} for text, label, raw in drawn]
    packed = []
    for raw in encode_records(SCHEMA, samples, range(len(samples))):
        frame = zstandard.ZstdCompressor().compress(raw)
        packed.append((frame if draw(st.booleans()) and len(frame) != len(raw) else raw, len(raw)))
    rows = np.zeros(len(packed), ROW)
    pieces, starts, end = list[bytes](), np.zeros(len(packed), np.int64), 0
    for number in draw(st.permutations(range(len(packed)))):
        data, raw_size = packed[number]
        gap = draw(st.binary(max_size=3))
        rows[number]["size"], rows[number]["raw_size"], rows[number]["index"] = len(data), raw_size, number
        rows[number]["checksum"] = xxhash.xxh3_64_intdigest(data)
        starts[number] = end + len(gap)
        pieces += [gap, data]
        end += len(gap) + len(data)
    memory = np.frombuffer(bytearray(b"".join(pieces)), np.uint8)
    if draw(st.booleans()):
        memory[draw(st.integers(0, len(memory) - 1))] ^= draw(st.integers(1, 255))
    return StoredSamples(memory, starts, rows)


def columns_of(samples: StoredSamples) -> Any:
    """The columns as plain values; the kind of the error where there are none."""
    try:
        made = samples.columns(RecordDecoder(SCHEMA), Decompressor())
    except ValueError:
        return ValueError
    return [column if isinstance(column, list) else column.tolist() for column in made]


@given(samples_in_memory())
@examples(300)
def test_samples_are_the_same_with_the_core_and_without(samples: StoredSamples) -> None:
    with without_core():
        plain = columns_of(samples), samples.right().tolist(), [bytes(piece) for piece in samples.pieces()]
    assert (columns_of(samples), samples.right().tolist(), [bytes(piece) for piece in samples.pieces()]) == plain


@given(st.lists(st.tuples(st.integers(-3, 70), st.integers(-3, 70)), max_size=6))
@examples(300)
def test_nothing_outside_of_the_memory_is_touched(wanted: list[tuple[int, int]]) -> None:
    """A piece is inside as a whole, or the call is refused."""
    memory = np.arange(64, dtype=np.uint8)
    starts, sizes = numbers(*(start for start, _ in wanted)), numbers(*(size for _, size in wanted))
    inside = all(0 <= start <= start + size <= 64 and size >= 0 for start, size in wanted)
    out = np.empty(max(0, int(sizes.sum())), np.uint8)
    if inside:
        pieces = [memory[start : start + size].tobytes() for start, size in wanted]
        assert core().pieces(memory, starts, sizes) == pieces
        assert core().texts(memory, starts, sizes) == [piece.decode() for piece in pieces]
        core().gather(memory, starts, sizes, out)
        assert out.tobytes() == b"".join(pieces)
        return
    calls: list[Callable[[], Any]] = [
        lambda: core().pieces(memory, starts, sizes),
        lambda: core().texts(memory, starts, sizes),
        lambda: core().gather(memory, starts, sizes, out),
        lambda: core().digests(XXH3[0], memory, starts, sizes, np.empty(len(starts), np.uint64)),
        lambda: read_cached(
            *(XXH3[0], starts, starts, memory, starts, sizes, np.empty(len(starts), np.uint64), bools(len(starts)))
        ),
        lambda: core().unpack(core().unpacker(borrowed.zstd(), b""), memory, starts, sizes, sizes, out),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="outside"):
            call()


def test_a_part_of_a_piece_is_not_there(tmp_path: Path) -> None:
    """A file has ten bytes: a piece of them may be there, and one that ends behind them is not."""
    (tmp_path / "ten").write_bytes(b"0123456789")
    memory, made, there = np.zeros(20, np.uint8), np.zeros(2, np.uint64), bools(2)
    with (tmp_path / "ten").open("rb") as file:
        files, offsets, places = numbers(*2 * [file.fileno()]), numbers(0, 5), numbers(0, 10)
        assert core().read_cached(XXH3[0], files, offsets, memory, places, numbers(10, 10), 2, made, there)
    assert not there[1]
    if there[0]:
        assert memory[:10].tobytes() == b"0123456789"
        assert made[0] == xxhash.xxh3_64_intdigest(b"0123456789")


SIZES = st.lists(st.one_of(st.integers(0, 200), st.integers(3_900, 4_300), st.integers(0, 20_000)), max_size=8)


@pytest.mark.slow
@given(SIZES, st.integers(0, 80), st.randoms())
@examples(200)
def test_pieces_of_any_size_and_place_are_copied(sizes: list[int], gap: int, chance: Random) -> None:
    """Together and apart again: small ones through the caches, large ones past them, and not a byte beside them."""
    rng = np.random.default_rng(chance.randrange(1 << 30))
    source = rng.integers(0, 256, sum(sizes), np.uint8)
    starts, end = [0] * len(sizes), gap
    for number in chance.sample(range(len(sizes)), len(sizes)):
        starts[number], end = end, end + sizes[number] + gap
    memory = np.full(end + 1, 0xEE, np.uint8)
    places = np.empty(len(sizes), [("base", "<u8"), ("length", "<u8")])
    places["base"], places["length"] = memory.ctypes.data + np.array(starts, np.uint64), sizes
    cut = chance.randrange(len(source) + 1)
    at = core().scatter(source[:cut].copy(), places, 0)
    assert sum(places["length"].tolist()) == len(source) - cut
    at = core().scatter(source[cut:].tobytes(), places, at)
    assert at <= len(sizes)
    want, done = np.full(end + 1, 0xEE, np.uint8), 0
    for start, size in zip(starts, sizes, strict=True):
        want[start : start + size] = source[done : done + size]
        done += size
    assert np.array_equal(memory, want)
    out = np.full(len(source) + 2, 0xEE, np.uint8)
    core().gather(memory, numbers(*starts), numbers(*sizes), out[1:-1])
    assert out.tobytes() == b"\xee" + source.tobytes() + b"\xee"


@given(st.integers(1, 5), st.integers(1, 3000), st.integers(0, 64), st.integers(0, 2**32))
@examples(60)
def test_words_are_sorted_row_by_row(rows: int, length: int, width: int, seed: int) -> None:
    """Of any number of bits, so that whole digits are the same, and words occur twice."""
    rng = np.random.default_rng(seed)
    words = rng.integers(0, (1 << width) - 1, (rows, length), np.uint64, endpoint=True)
    words |= np.uint64(seed)
    want = np.sort(words, axis=1)
    core().sort(words, length)
    assert np.array_equal(words, want)


@pytest.mark.parametrize("shape", [(1500,), (3, 1024), (2, 5, 1100), (2, 1023), (0, 1024), (4, 0)])
def test_keys_are_ranked_the_same(shape: tuple[int, ...]) -> None:
    keys = np.random.default_rng(1).integers(0, 2**64 - 1, shape, np.uint64, endpoint=True)
    mask = random.low_mask(shape[-1])
    keys &= ~mask
    keys |= np.arange(shape[-1], dtype=np.uint64)
    found = random.ranked(keys.copy(), mask)
    every_second = random.ranked(np.repeat(keys, 2, axis=-1)[..., ::2], mask)  # which is not contiguous
    with without_core():
        want = random.ranked(keys, mask)
    assert np.array_equal(found, want)
    assert np.array_equal(every_second, want)


@pytest.mark.parametrize("length", [0, -1, 3, 9])
def test_words_that_are_no_rows_are_refused(length: int) -> None:
    with pytest.raises(ValueError, match="no rows"):
        core().sort(np.zeros(8, np.uint64), length)
    with pytest.raises(ValueError, match="no rows"):
        core().sort(np.zeros(9, np.uint8), 1)


@pytest.mark.parametrize(("lengths", "at"), [([], 0), ([4], 0), ([2, 2], 0), ([9, 4], 1), ([9], -1), ([9], 2)])
def test_memory_that_finds_no_place_is_not_scattered(lengths: list[int], at: int) -> None:
    """Too few pieces, or a number that none has; the largest lengths do not overflow."""
    memory = np.zeros(16, np.uint8)
    places = np.empty(len(lengths), [("base", "<u8"), ("length", "<u8")])
    places["base"], places["length"] = memory.ctypes.data, lengths
    with pytest.raises(ValueError, match="do not take"):
        core().scatter(b"12345", places, at)
    assert not memory.any()
    huge = np.array([(memory.ctypes.data, 5), (memory.ctypes.data, 2**64 - 1)], places.dtype)
    assert core().scatter(b"12345", huge, 0) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda memory, two, one: core().pieces(memory, two, one),
        lambda memory, two, one: core().pieces(memory, two, two.view(np.uint8)[:15]),
        lambda memory, two, one: core().gather(memory, two, two, memory[:1].copy()),
        lambda memory, two, one: core().digests(XXH3[0], memory, two, one, np.empty(2, np.uint64)),
        lambda memory, two, one: core().digests(XXH3[0], memory, two, two, np.empty(3, np.uint64)),
        lambda memory, two, one: core().digests(0, memory, two, two, np.empty(2, np.uint64)),
        lambda memory, two, one: read_cached(0, two, two, memory, two, two, np.empty(2, np.uint64), bools(2)),
        lambda memory, two, one: read_cached(XXH3[0], one, two, memory, two, two, np.empty(2, np.uint64), bools(2)),
        lambda memory, two, one: read_cached(XXH3[0], two, one, memory, two, two, np.empty(2, np.uint64), bools(2)),
        lambda memory, two, one: read_cached(XXH3[0], two, two, memory, two, two, np.empty(3, np.uint64), bools(2)),
        lambda memory, two, one: read_cached(XXH3[0], two, two, memory, two, two, np.empty(2, np.uint64), bools(1)),
        lambda memory, two, one: core().copy_mapped(-1, memory, two, one, memory.copy()),
        lambda memory, two, one: core().copy_mapped(-1, memory, two, 100 * two + 100, np.empty(300, np.uint8)),
        lambda memory, two, one: core().unpack(
            core().unpacker(borrowed.zstd(), b""), memory, two, two, -two, memory.copy()
        ),
        lambda memory, two, one: core().unpacker((0,) * len(borrowed.zstd()), b""),
    ],
)
def test_arrays_that_do_not_fit_are_refused(call: Any) -> None:
    with pytest.raises(ValueError, match=r"length|fill|lent"):
        call(np.zeros(16, np.uint8), numbers(1, 2), numbers(1))


def test_a_text_that_is_none_is_refused() -> None:
    with pytest.raises(UnicodeDecodeError):
        core().texts(np.frombuffer(b"ab\xff", np.uint8), numbers(0, 2), numbers(2, 1))


def test_memory_that_is_read_only_is_not_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        core().gather(np.zeros(4, np.uint8), numbers(0), numbers(4), np.frombuffer(bytes(4), np.uint8))


@given(st.data(), st.sampled_from([1, 8, 24, 5000]))
@examples(60)
def test_elements_of_a_file_are_the_same(data: st.DataObject, size: int) -> None:
    """More of them than one call of the kernel takes, too."""
    count = data.draw(st.integers(1, 500))
    wanted = np.array(data.draw(st.lists(st.integers(0, count - 1), max_size=30)) * 100, np.int64)
    content = np.random.default_rng(count).bytes(count * size)
    with open(os.memfd_create("elements"), "wb", buffering=0) as file:
        file.write(b"head" + content)
        array = ArrayFile(file.fileno(), Path("elements"), np.dtype(f"V{size}"), 4, count)
        found = array.take(wanted).tobytes()
        with without_core():
            assert array.take(wanted).tobytes() == found
    assert found == b"".join(content[number * size : (number + 1) * size] for number in wanted.tolist())


def test_a_page_that_is_missing_is_an_answer(tmp_path: Path) -> None:
    """The file was cut while it was mapped: another process would be killed by SIGBUS."""
    path = tmp_path / "file"
    path.write_bytes(bytes(2 * mmap.PAGESIZE))
    with path.open("r+b") as file:
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.uint8)
        landing = os.memfd_create("landing")
        os.ftruncate(landing, 64)
        landed = np.frombuffer(mmap.mmap(landing, 64), np.uint8)
        addresses, out = numbers(0, mmap.PAGESIZE) + mapped.ctypes.data, np.empty(16, np.uint8)
        assert core().copy_mapped(landing, landed, addresses, numbers(8, 8), out)
        file.truncate(mmap.PAGESIZE)
        assert not core().copy_mapped(landing, landed, addresses, numbers(8, 8), out)
        os.close(landing)


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 10)), max_size=20), st.integers(0, 50))
@examples(100)
def test_runs_of_pages_are_the_same(runs: list[tuple[int, int]], more: int) -> None:
    shared = np.random.default_rng(0).integers(0, 256, (100, 128), np.uint8)
    pages = Pages(shared, Buffers(), Crew(2))
    heads = np.array([head for head, _ in runs], np.int32)
    counts = np.array([count for _, count in runs], np.uint32)
    size = int(counts.sum()) * 128
    found = pages.copy_runs(heads, counts, more)
    assert len(found) == size + more
    with without_core():
        assert pages.copy_runs(heads, counts, more)[:size].tobytes() == found[:size].tobytes()


def test_functions_that_no_library_shows_are_not_lent() -> None:
    assert borrowed.lend(("XXH3_64bits", "no_such_function"), "xxhash._xxhash") == ()
    assert borrowed.lend(("XXH3_64bits",), "no_such_module") == ()
    assert borrowed.lend(("XXH3_64bits",), "no_such_module", "xxhash._xxhash") == XXH3


@pytest.mark.slow
def test_a_training_without_the_core_has_the_same_samples(tmp_path: Path) -> None:
    """`BRAND_NATIVE=0`, in the training and in its server."""
    program = """if True:
        import sys, hashlib, brand, brand.native
        samples = [{"text": "word " * number, "label": number} for number in range(500)]
        folder = sys.argv[1]
        brand.pack(samples, folder, schema={"text": "str", "label": "int"})
        data = brand.BrandDataset(folder, memory="1MB")
        loader = brand.BrandLoader(data, batch_size=32, sampler=brand.BrandSampler(data, seed=3))
        digest = hashlib.sha256()
        for epoch in range(2):
            for batch in loader:
                digest.update(repr((batch["text"], batch["label"].tolist())).encode())
        print(brand.native.CORE is None, digest.hexdigest())
    """
    told = [
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / value)],
            env=os.environ | {"BRAND_NATIVE": value},
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
        ).stdout.split()
        for value in ("1", "0")
    ]
    assert [native for native, _ in told] == ["False", "True"]
    assert told[0][1] == told[1][1]


@pytest.mark.parametrize(("head", "count"), [(-1, 1), (100, 1), (99, 2), (2**31 - 1, 65535)])
def test_runs_of_pages_that_are_not_there_are_refused(head: int, count: int) -> None:
    """Before memory is taken for them; with the core and without."""
    pages = Pages(np.zeros((100, 128), np.uint8), Buffers(), Crew(2))
    runs = np.array([head], np.int32), np.array([count], np.uint32)
    with pytest.raises(ProtocolError, match="do not exist"):
        pages.copy_runs(*runs)
    with without_core(), pytest.raises(ProtocolError, match="do not exist"):
        pages.copy_runs(*runs)


@pytest.mark.parametrize(
    "module", ["torch", "node.serve.process", "node.client.client", "chunker", "collect", "cli.main"]
)
def test_no_thread_is_the_first_to_call_for_a_part_of_numpy(module: str) -> None:
    """`np.unique` imports `numpy.ma` late, and two threads in that import recurse without end: it is there before."""
    code = f"import sys, brand.{module}; print('numpy.ma' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"
