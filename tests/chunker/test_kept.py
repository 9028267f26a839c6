"""What is kept of a chunk comes back as it was, or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.chunker.plan.plan import ChunkPlan, Layout, make_plan
from brand.chunker.work.chunks import KeptChunks, Written, keep_chunk
from brand.formats.constants import ROW
from brand.formats.header import Schema
from brand.formats.record import column_dtype
from tests.rounds import examples

SCHEMAS = [{"n": "int", "x": "float", "text": "str"}, {"text": "str"}]


def plan_of(fields: dict[str, str], seed: int = 0) -> ChunkPlan:
    return make_plan(
        samples=10,
        raw_bytes=100,
        probe=[b"0123456789"],
        compression="none",
        layout=Layout(4),
        schema=Schema.parse(fields),
        names={},
        seed=seed,
        source={"kind": "python"},
        fingerprint="",
    )


def chunk_of(plan: ChunkPlan, number: int) -> Written:
    rng = np.random.default_rng(number)
    count = plan.header.chunk_samples(number)
    rows = np.zeros(count, ROW)
    for name in ROW.names or ():
        rows[name] = rng.integers(0, 1 << 20, count)
    dtype = column_dtype(plan.header.schema)
    columns = np.frombuffer(rng.bytes(count * dtype.itemsize), dtype) if dtype.itemsize else np.empty(count, dtype)
    counts = {("image", "images_in_cmyk"): (3, 7, "ä/b.jpg"), ("mask", "images_with_palette"): (1, 2, "2")}
    return Written(rows, 77 + number, columns, counts if number else {}, found=False)


def size_of(chunk: Written) -> int:
    return int(chunk.rows["offset"][-1]) + int(chunk.rows["size"][-1])


@pytest.mark.parametrize("fields", SCHEMAS)
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_chunk_comes_back(tmp_path: Path, fields: dict[str, str], number: int) -> None:
    """Rows, columns and checksum, marked as found; also without columns, and of the short last chunk."""
    plan = plan_of(fields)
    chunk = chunk_of(plan, number)
    keep_chunk(tmp_path, plan.data_set_id, number, chunk)
    found = KeptChunks(tmp_path, {number: size_of(chunk)}).find(plan, number)
    assert found is not None
    assert found.found
    assert found.checksum == chunk.checksum
    assert found.rows.tobytes() == chunk.rows.tobytes()
    assert found.columns.tobytes() == chunk.columns.tobytes()
    assert found.columns.dtype == chunk.columns.dtype
    assert len(found.columns) == len(chunk.columns)
    assert found.counts == chunk.counts


def test_what_the_store_does_not_have_was_not_made(tmp_path: Path) -> None:
    """Nor what it has in another size, nor what is kept of another data set or not at all."""
    plan = plan_of(SCHEMAS[0])
    chunk = chunk_of(plan, 1)
    size = size_of(chunk)
    assert KeptChunks(tmp_path, {1: size}).find(plan, 1) is None
    keep_chunk(tmp_path, plan.data_set_id, 1, chunk)
    assert KeptChunks(tmp_path, {1: size}).find(plan, 1) is not None
    assert KeptChunks(tmp_path, {1: size + 1}).find(plan, 1) is None
    assert KeptChunks(tmp_path, {0: size}).find(plan, 1) is None
    assert KeptChunks(tmp_path, {1: size}).find(plan_of(SCHEMAS[0], seed=1), 1) is None


@given(at=st.integers(0, 1 << 20), bit=st.integers(0, 7), change=st.sampled_from(["flip", "cut", "extend"]))
@examples(100)
def test_a_file_that_changed_is_not_believed(
    tmp_path_factory: pytest.TempPathFactory, at: int, bit: int, change: str
) -> None:
    """One bit, a shorter or a longer file: the chunk is made again."""
    folder, plan = tmp_path_factory.mktemp("kept"), plan_of(SCHEMAS[0])
    chunk = chunk_of(plan, 0)
    keep_chunk(folder, plan.data_set_id, 0, chunk)
    data = bytearray((folder / "0").read_bytes())
    at %= len(data)
    if change == "flip":
        data[at] ^= 1 << bit
    else:
        data = data[:at] if change == "cut" else data + bytes(1 + at)
    (folder / "0").write_bytes(data)
    assert KeptChunks(folder, {0: size_of(chunk)}).find(plan, 0) is None
