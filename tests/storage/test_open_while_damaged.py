"""A data set changes while it is open, or storage fails: an error that names what is wrong, never a dead process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import brand
from brand.errors import FormatError, UnreadableError
from brand.formats.record import RecordDecoder
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.dataset.indexes import BLOCK
from tests.storage.support import SAMPLES, chunk
from tests.support import LIMIT_S

SCRIPT = """
import os, sys
from pathlib import Path
from brand.errors import FormatError
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.maintenance.verify import verify

folder, name, size, what = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]


def damage():
    os.truncate(folder / name, size)
    if what.endswith("regrown"):
        os.truncate(folder / name, before)


before = (folder / name).stat().st_size
try:
    if what.startswith("read"):
        data = StoredDataSet(folder)
        damage()
        data.sample(9)
    elif what == "verify":
        steps = verify(folder)
        next(steps)
        damage()
        for step in steps:
            for error in step.errors:
                raise error
    else:
        from brand.testing.node import running_server
        from brand.torch import BrandDataset, BrandSampler

        with running_server(folder, memory=1.0) as server:
            data = BrandDataset(folder, server=server.address, on_error=what)
            tickets = list(BrandSampler(data))
            damage()
            print(len(data.__getitems__(tickets)))
except FormatError as error:
    print(type(error).__name__, error)
"""


def outcome(folder: Path, name: str, size: int, what: str) -> str:
    """What a process of its own says that has a data set open while a file of it is cut short."""
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(folder), name, str(size), what]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["index/samples.npy", "index/place.npy"])
@pytest.mark.parametrize("what", ["read", "read regrown", "verify", "skip"])
def test_an_index_file_cut_short_while_it_is_open_ends_nothing(plain: Path, name: str, what: str) -> None:
    """A `FormatError` that names it, where a mapping would end the process by SIGBUS; so for draws and `verify`."""
    found = outcome(plain, name, 0, what)
    assert "Error" in found
    if what != "read regrown":
        assert found.startswith("LayoutError" if what == "verify" else "TruncatedError")  # verify opens it again
        assert name in found


@pytest.fixture
def failing(plain: Path) -> Path:
    """A data set whose second chunk gives an input/output error: it is a link to memory that nobody has."""
    chunk(plain, 1).unlink()
    chunk(plain, 1).symlink_to("/proc/self/mem")
    return plain


def test_a_chunk_that_cannot_be_read_is_named_with_its_samples(failing: Path) -> None:
    """File, chunk and sample, also out of a batch with others; the others are read."""
    data = StoredDataSet(failing)
    lost = data.rows(4, 8)["index"].tolist()
    for index in range(10):
        if index in lost:
            with pytest.raises(UnreadableError, match=f"00000001.brand, chunk 1, sample {index}: .*error") as caught:
                data.sample(index)
            assert (caught.value.path, caught.value.chunk, caught.value.sample) == (chunk(failing, 1), 1, index)
        else:
            assert data.sample(index) == SAMPLES[index]
    with pytest.raises(UnreadableError) as caught:
        data.samples(np.arange(10), RecordDecoder(data.header.schema))
    assert caught.value.sample == min(lost)


def test_no_fields_are_that_of_each_sample(plain: Path) -> None:
    """One dict for each, without anything in it."""
    data = StoredDataSet(plain)
    assert data.samples(np.arange(3), RecordDecoder(data.header.schema, ())) == [{}, {}, {}]


# -- the index and the chunks' tables ---------------------------------------------------------------------------------


def change_both(folder: Path, one: int, other: int) -> None:
    """Two samples change their names, in both halves of the index, so that these agree."""
    rows, place = np.load(folder / "index/samples.npy"), np.load(folder / "index/place.npy")
    a, b = place[one], place[other]
    rows["index"][[a, b]] = other, one
    place[[one, other]] = b, a
    np.save(folder / "index/samples.npy", rows)
    np.save(folder / "index/place.npy", place)


def test_halves_of_the_index_that_agree_on_something_wrong_are_told(plain: Path) -> None:
    """Each of the two samples, by itself and in a batch, by its chunk's own table; the others are read."""
    change_both(plain, 2, 7)
    data = StoredDataSet(plain)
    for _ in range(2):
        for index in range(10):
            if index in (2, 7):
                with pytest.raises(FormatError, match=rf"sample {index}: the index differs from the chunk's table"):
                    data.sample(index)
            else:
                assert data.sample(index) == SAMPLES[index]


def test_a_damaged_table_is_no_witness(plain: Path) -> None:
    """A chunk whose front is damaged says nothing about the index: its samples are read by their checksums."""
    path = chunk(plain, 1)
    data = bytearray(path.read_bytes())
    row = StoredDataSet(plain).rows(4, 5)[0]
    data[int(row["offset"]) - 8] ^= 1  # in the last row of the table
    path.write_bytes(data)
    assert [StoredDataSet(plain).sample(index) for index in range(10)] == SAMPLES


def test_tables_of_large_chunks_are_compared_in_blocks(tmp_path: Path) -> None:
    """The wrong row is found, in whichever block it is, and by draws' reads, too."""
    size = 2 * BLOCK + 252
    samples, last = 2 * size + 400, size - 1
    brand.pack([{"n": n} for n in range(samples)], tmp_path / "set", {"n": "int"}, chunk_size=size, jobs=1)
    place = np.load(tmp_path / "set/index/place.npy")
    index_at = np.argsort(place)
    one, other = int(index_at[last]), int(index_at[samples - 1])
    change_both(tmp_path / "set", one, other)
    data = StoredDataSet(tmp_path / "set")
    decode = RecordDecoder(data.header.schema)
    good = np.array([n for n in range(samples) if n not in (one, other)])
    assert [sample["n"] for sample in data.samples(good, decode)] == good.tolist()
    for wrong in (one, other):
        with pytest.raises(FormatError, match=f"sample {wrong}: "):
            data.samples(np.array([0, wrong]), decode)
    for span in (np.arange(last - 9, size), np.arange(samples - 1, samples)):
        with pytest.raises(FormatError, match="the chunk's table"):
            data.check_tables(span)
    data.check_tables(np.arange(last))
