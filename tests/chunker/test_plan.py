"""What is decided before anything is written: chunk size, compression, identity."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.chunker import Options
from brand.chunker.plan.plan import LEAST_BYTES, USUAL_SAMPLES, ChunkPlan, Layout, chunk_samples, make_plan
from brand.errors import UsageError
from brand.formats.constants import MAX_CHUNK_SAMPLES
from brand.formats.header import Schema

SCHEMA = Schema.parse({"text": "str", "label": "int"})


def plan(probe: list[bytes], **more: Any) -> ChunkPlan:
    """A plan for a hundred times the probe."""
    given: dict[str, Any] = {
        "samples": 100 * len(probe),
        "raw_bytes": 100 * sum(map(len, probe)),
        "compression": "auto",
        "layout": Layout(),
        "schema": SCHEMA,
        "names": {},
        "seed": 0,
        "source": {"kind": "python"},
        "fingerprint": "f",
    }
    return make_plan(probe=probe, **(given | more))


def noise(count: int, size: int) -> list[bytes]:
    """Records that do not compress."""
    made = np.random.default_rng(0)
    return [made.bytes(size) for _ in range(count)]


def prose(count: int) -> list[bytes]:
    """Records that compress well."""
    return [f"the sample with number {i} says what the one before it said".encode() for i in range(count)]


@pytest.mark.slow
@given(st.integers(1, 10**9), st.floats(1, 1e6))
def test_chunks_are_64_samples_or_four_mebibytes(samples: int, mean: float) -> None:
    """At least 64 samples; where those are less than 4 MiB, as many as make the mean chunk at least that."""
    size = chunk_samples(samples, samples * mean, Layout())
    chunks = -(-samples // size)
    assert size >= USUAL_SAMPLES
    if mean * USUAL_SAMPLES >= LEAST_BYTES:
        assert size == USUAL_SAMPLES
    elif chunks > 1 and size < MAX_CHUNK_SAMPLES:
        assert samples * mean / chunks >= LEAST_BYTES * (1 - 1e-9)


@pytest.mark.slow
@given(st.integers(1, 10**8), st.floats(1, 1e5), st.integers(1, 10**8))
def test_a_target_in_bytes_is_met_by_the_mean_chunk(samples: int, mean: float, target: int) -> None:
    """Within a factor of two (a chunk has whole samples), unless one sample or the whole set is the limit."""
    size = chunk_samples(samples, samples * mean, Layout(chunk_bytes=target))
    chunks = -(-samples // size)
    found = samples * mean / chunks
    assert 1 <= size <= min(samples, MAX_CHUNK_SAMPLES)
    if chunks > 1 and size < MAX_CHUNK_SAMPLES:
        assert found >= target / 2 or size == 1
        assert found <= 2 * target or size == 1


@given(st.integers(1, 10**8), st.floats(1, 1e5))
def test_the_last_chunk_is_no_small_rest(samples: int, mean: float) -> None:
    """With a size found by bytes, no chunk could be dropped by making the others one sample larger."""
    size = chunk_samples(samples, samples * mean, Layout())
    chunks = -(-samples // size)
    if size > USUAL_SAMPLES:
        assert -(-samples // chunks) == size or -(-samples // (size - 1)) > chunks


@given(st.integers(1, 10**6), st.floats(1, 1e5), st.integers(1, 1000))
def test_a_size_in_samples_is_taken_as_it_is(samples: int, mean: float, size: int) -> None:
    """What a user says about samples is not improved upon."""
    assert chunk_samples(samples, samples * mean, Layout(size)) == size


@pytest.mark.parametrize("wrong", [{"chunk_size": 0}, {"chunk_size": -1}, {"chunk_size": (1 << 24) + 1}])
def test_a_chunk_size_out_of_range_is_wrong_use(wrong: dict[str, int]) -> None:
    """There are 1 to 2^24 samples a chunk."""
    with pytest.raises(UsageError, match="chunk size"):
        Layout(**wrong)


def test_size_in_samples_and_in_bytes_exclude_each_other() -> None:
    """One of the two, and chunk bytes are positive."""
    with pytest.raises(UsageError, match="not both"):
        Layout(1, 1)
    with pytest.raises(UsageError, match="at least one byte"):
        Layout(None, 0)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"jobs": 0}, "processes"),
        ({"seed": -1}, "seed"),
        ({"seed": 1 << 64}, "seed"),
        ({"compression": "gzip"}, "gzip"),
    ],
)
def test_options_out_of_range_are_wrong_use(wrong: dict[str, Any], named: str) -> None:
    """The message names the option."""
    with pytest.raises(UsageError, match=named):
        Options(**wrong)


def test_errors_are_skipped_only_where_everything_is_decoded() -> None:
    """Skipping validates unless told otherwise; failing does not unless told."""
    assert Options(skip_errors=True).decode_all
    assert not Options(skip_errors=True, validate=False).decode_all
    assert not Options().decode_all
    assert Options(validate=True).decode_all


def test_noise_is_not_compressed() -> None:
    """Where zstandard saves nothing, `auto` stores as it is, and expects that size."""
    made = plan(noise(100, 2000))
    assert made.compression.codec == "none"
    assert made.header.compression == "none"
    assert made.stored_bytes == made.raw_bytes


def test_text_is_compressed_with_a_dictionary() -> None:
    """Small samples that look alike are compressed with a trained dictionary, to less than without."""
    made = plan(prose(2000))
    assert made.compression.codec == "zstd"
    assert 0 < len(made.compression.dictionary) <= 1 << 20
    assert made.stored_bytes < 0.6 * made.raw_bytes


def test_chunks_of_compressed_samples_have_the_bytes_that_were_asked() -> None:
    """The size of a chunk is meant as it is stored: the plan counts with the ratio that the probe has shown."""
    made = plan(prose(2000), layout=Layout(chunk_bytes=1 << 16))
    chunks = -(-made.header.samples // made.header.chunk_size)
    assert made.compression.expected_ratio < 0.6
    assert 0.9 <= made.stored_bytes / chunks / (1 << 16) <= 1.1


def test_none_means_none_and_zstd_means_zstd() -> None:
    """What a user says about compression is done."""
    assert plan(prose(2000), compression="none").compression.codec == "none"
    assert plan(noise(100, 2000), compression="zstd").compression.codec == "zstd"


def test_large_samples_get_no_dictionary() -> None:
    """A sample of more than 16 KiB learns from itself."""
    made = plan([(b"%08d " % i) * 4000 for i in range(40)])
    assert made.compression.codec == "zstd"
    assert made.compression.dictionary == b""


def test_the_identity_depends_on_all_that_decides_the_bytes() -> None:
    """Another seed, source, schema, layout, class list or content is another data set; the same again is the same."""
    base = plan(prose(50))
    assert plan(prose(50)).data_set_id == base.data_set_id
    others = [
        plan(prose(50), seed=1),
        plan(prose(50), fingerprint="g"),
        plan(prose(50), layout=Layout(3)),
        plan(prose(50), names={"label": ("a",)}),
        plan(prose(50), names={"label": ("b",)}),
        plan(prose(50), names={"label": ("a",), "text": ("b",)}),
        plan(prose(50), compression="none"),
        plan(prose(50), source={"kind": "images"}),
        plan(prose(50), schema=Schema.parse({"txt": "str", "label": "int"})),
        plan([*prose(49), b"something else"]),
    ]
    assert len({base.data_set_id, *(other.data_set_id for other in others)}) == 1 + len(others)


def test_raw_bytes_are_estimated_from_the_probe_where_unknown() -> None:
    """A source that cannot tell sizes is taken to be as its probe."""
    probe = noise(10, 700)
    assert plan(probe, raw_bytes=None, samples=1000).raw_bytes == 700_000


@pytest.mark.slow
def test_the_plan_does_not_depend_on_the_hash_seed() -> None:
    """Compression and identity are the same in every interpreter (sets and dicts of bytes are ordered by it)."""
    code = (
        "from tests.chunker.test_plan import plan, prose; made = plan(prose(300));"
        "import sys; sys.stdout.write(made.data_set_id.hex())"
    )
    root = __file__.rpartition("tests")[0]
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert found == {plan(prose(300)).data_set_id.hex()}
