"""An iterable comes back from disk sample for sample, however small the runs of its external sort are."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.chunker import pack
from brand.chunker.plan.report import StageProgress, silent
from brand.chunker.sources import blocks as blocks_module
from brand.chunker.sources import spool as spool_module
from brand.chunker.sources.blocks import MOST_SAMPLES, encoded
from brand.chunker.sources.shuffle import open_order
from brand.chunker.sources.spool import SpoolSource, spool
from brand.errors import SchemaError, SourceError
from brand.formats.header import Schema
from brand.formats.record import SMALL, encode_records
from brand.storage.dataset.dataset import StoredDataSet
from tests.chunker.spooled import by_index
from tests.rounds import examples
from tests.support import tree_digest

SCHEMA = Schema.parse({"text": "str", "number": "int"})
TEXTS = st.lists(st.text(max_size=40), min_size=1, max_size=200)


def samples_of(texts: list[str]) -> list[dict[str, Any]]:
    """One sample a text."""
    return [{"text": text, "number": number} for number, text in enumerate(texts)]


def spooled(texts: list[str], folder: Path, seed: int = 0) -> SpoolSource:
    """A spool of these texts, read from a generator."""
    return spool(encoded((s for s in samples_of(texts)), SCHEMA), SCHEMA, seed, folder, total=None, on_progress=silent)


@pytest.mark.slow
@examples(60)
@given(TEXTS, st.integers(1, 3000), st.integers(1, 50), st.integers(0, 5), st.randoms(use_true_random=False))
def test_records_come_back_equal_for_any_run_size(
    texts: list[str], run: int, step: int, seed: int, random: object
) -> None:
    """From any place on, in any number, for runs from one record to all of them."""
    expected = list(encode_records(SCHEMA, samples_of(texts), range(len(texts))))
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(spool_module, "RUN_BYTES", run)
        patch.setattr(blocks_module, "MOST_SAMPLES", step)
        source = spooled(texts, Path(folder), seed)
        assert len(source) == len(texts)
        assert by_index(source, seed) == expected
        places = open_order(Path(folder) / "order.bin", len(texts))
        first, end = np.sort(np.random.default_rng(seed).integers(0, len(texts) + 1, 2)).tolist()
        wanted = [expected[i] for i in places[first:end]]
        assert [r for records in source.blocks(places[first:end], first) for r in records] == wanted
        assert source.sizes(places[first:end], first).tolist() == list(map(len, wanted))


@pytest.mark.parametrize("sizes", [(5, 3 * SMALL), (3 * SMALL,), (0, 15, 16, 17), (1, 5 << 20)])
def test_small_and_large_records_come_back_equal(sizes: tuple[int, ...], tmp_path: Path) -> None:
    """A run may hold both."""
    texts = [chr(97 + number % 26) * sizes[number % len(sizes)] for number in range(12)]
    source = spooled(texts, tmp_path)
    assert by_index(source) == list(encode_records(SCHEMA, samples_of(texts), range(12)))


def test_the_fingerprint_is_of_the_contents_and_not_of_the_runs(tmp_path: Path) -> None:
    """Runs and seed do not change it; one other byte does."""
    texts = [f"text {i}" for i in range(3000)]
    prints = set()
    for number, run in enumerate((100, 5000, 10**9)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(spool_module, "RUN_BYTES", run)
            folder = tmp_path / str(number)
            folder.mkdir()
            prints.add(spooled(texts, folder, seed=number).fingerprint(times=False))
    assert len(prints) == 1
    other = tmp_path / "other"
    other.mkdir()
    assert spooled([*texts[:-1], "text 299X"], other).fingerprint(times=False) not in prints


def test_where_one_sample_ends_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    """The same characters cut otherwise are other samples."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = spooled(["ab", "c"], tmp_path / "a"), spooled(["a", "bc"], tmp_path / "b")
    assert first.fingerprint(times=False) != second.fingerprint(times=False)


def test_a_chunk_lies_in_each_run_in_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Consecutive places of the shuffled order lie in a run side by side: one read a run."""
    monkeypatch.setattr(spool_module, "RUN_BYTES", 30_000)
    texts = [f"{i:06d}" for i in range(5 * MOST_SAMPLES)]
    told: list[StageProgress] = []
    source = spool(encoded(samples_of(texts), SCHEMA), SCHEMA, 0, tmp_path, total=None, on_progress=told.append)
    runs = len(told)
    assert runs > 1
    source.write_order(tmp_path / "order.bin", 0)
    spans = np.sort(source._spans(640, 640), order="offset")
    pieces = 1 + int((spans["offset"][1:] != spans["offset"][:-1] + spans["size"][:-1]).sum())
    assert pieces <= runs


def test_a_spool_survives_pickling(tmp_path: Path) -> None:
    """Workers that are spawned get it so."""
    source = spooled(["a", "b", "c"], tmp_path)
    copy = pickle.loads(pickle.dumps(source))
    assert by_index(copy) == by_index(source) == list(encode_records(SCHEMA, samples_of(["a", "b", "c"]), range(3)))
    assert copy.fingerprint(times=True) == source.fingerprint(times=True)


def test_an_empty_iterable_is_a_source_error(tmp_path: Path) -> None:
    """There are no data sets of no samples."""
    with pytest.raises(SourceError, match="empty"):
        spooled([], tmp_path)


def test_a_wrong_sample_late_in_the_stream_is_named_by_its_index(tmp_path: Path) -> None:
    """The index in the message is the position in the stream, not in a step."""
    many: list[dict[str, Any]] = [*samples_of(["x"] * 2500), {"text": 5, "number": 1}]
    with pytest.raises(SchemaError, match=r"sample 2500.*'text'"):
        spool(encoded(iter(many), SCHEMA), SCHEMA, 0, tmp_path, total=None, on_progress=silent)


def test_progress_counts_samples_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told after each run and at the end, with the total where it is known."""
    monkeypatch.setattr(spool_module, "RUN_BYTES", 1000)
    told: list[StageProgress] = []
    source = spool(
        encoded(samples_of(["abcd"] * 3000), SCHEMA), SCHEMA, 0, tmp_path, total=3000, on_progress=told.append
    )
    raw = sum(map(len, by_index(source)))
    assert [p.samples for p in told] == [1024, 2048, 3000, 3000]
    assert [p.total for p in told] == [3000] * 4
    assert told[-1] == StageProgress("spool", 3000, 3000, raw, raw)


@pytest.mark.slow
def test_a_data_set_does_not_depend_on_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator larger than one run gives the bytes that it gives in one run, and every sample comes back."""
    texts = [f"{i} " * (i % 50) for i in range(4000)]
    pack(iter(samples_of(texts)), tmp_path / "one", {"text": "str", "number": "int"}, chunk_size=100, jobs=1)
    monkeypatch.setattr(spool_module, "RUN_BYTES", 20_000)
    pack(iter(samples_of(texts)), tmp_path / "many", {"text": "str", "number": "int"}, chunk_size=100, jobs=2)
    assert tree_digest(tmp_path / "one") == tree_digest(tmp_path / "many")
    stored = StoredDataSet(tmp_path / "many")
    assert [stored.sample(i) for i in range(4000)] == samples_of(texts)
