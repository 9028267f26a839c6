"""Shards are read once, in order, by any number of processes, and a run that was stopped reads none of them again."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.chunker import Options, convert_from
from brand.chunker.conductor import Conversion
from brand.chunker.plan.report import StageProgress, silent
from brand.chunker.sources import shards as shards_module
from brand.chunker.sources import shuffle as shuffle_module
from brand.chunker.sources import spool as spool_module
from brand.chunker.sources.shards import Bad, Block, Shard, Shards, cut_stretches, exchange
from brand.chunker.sources.shuffle import SortKeys, open_order
from brand.chunker.sources.spool import SPAN, find_part
from brand.chunker.work.work import open_folder_work
from brand.errors import SourceError
from brand.formats.header import Schema
from brand.formats.record import Numbered, Records, encode_records
from brand.storage.dataset.dataset import StoredDataSet
from tests.chunker.spooled import by_index
from tests.rounds import Chance, examples, rounds
from tests.support import brand, running_brand, session_processes, tree_digest, wait_until

TEXTS = st.lists(st.lists(st.text(max_size=30), max_size=30), min_size=1, max_size=12).filter(any)


class Texts(Shards):
    """A source in memory: each shard is a list of texts; a text of one `!` cannot be used."""

    kind = "jsonl"
    fields = Schema.parse({"text": "str", "number": "int"})

    def __init__(self, texts: list[list[str]]) -> None:
        self.texts = texts
        shards = [Shard(f"{n}", sum(map(len, some)), repr(some)) for n, some in enumerate(texts)]
        super().__init__(shards, self.fields)

    def read(self, number: int) -> Iterator[Block | Bad]:
        for first in range(0, len(self.texts[number]), 4):
            some = self.texts[number][first : first + 4]
            called = Numbered(range(first, first + len(some)))
            if "!" in some:
                yield from (Bad(f"sample {first + n}", "it shouts") for n, text in enumerate(some) if text == "!")
                some = [text for text in some if text != "!"]
                called = Numbered(range(len(some)))
            yield Block({"text": some, "number": [len(text) for text in some]}, called)


def records_of(texts: list[list[str]]) -> list[bytes]:
    """The slow model: all records in the order of the source."""
    samples = [{"text": t, "number": len(t)} for shard in texts for t in shard if t != "!"]
    return list(encode_records(Texts.fields, samples, range(len(samples))))


@pytest.mark.slow
@examples(60)
@given(TEXTS, st.integers(1, 400), st.integers(1, 200), st.integers(0, 5))
def test_records_come_back_equal_for_any_division(texts: list[list[str]], run: int, least: int, seed: int) -> None:
    """From any place on, in any number; and each run is sorted as the order says."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(spool_module, "RUN_BYTES", run)
        patch.setattr(shards_module, "LEAST_BYTES", least)
        source, problems, found = exchange(Texts(texts), Options(seed, jobs=1), Path(folder), silent)
        expected = records_of(texts)
        assert (len(source), problems, found) == (len(expected), [], 0)
        patch.setattr(shuffle_module, "BLOCK", max(1, len(expected) // 3))
        assert by_index(source, seed) == expected
        keys = np.concatenate([SortKeys(seed, n).next(count) for n, count in enumerate(source.stretches)])
        order = open_order(Path(folder) / "order.bin", len(keys))
        assert order.tolist() == np.argsort(keys, kind="stable").tolist()
        first, end = np.sort(np.random.default_rng(seed).integers(0, len(expected) + 1, 2)).tolist()
        wanted = [expected[i] for i in order[first:end]]
        assert source.sizes(order[first:end], first).tolist() == list(map(len, wanted))
        copy = pickle.loads(pickle.dumps(source))
        assert [r for records in copy.blocks(order[first:end], first) for r in records] == wanted


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 100))
def test_stretches_are_consecutive_and_large_enough(sizes: list[int], least: int) -> None:
    """All shards in order; only the last stretch may be small, and none could be cut further."""
    stretches = cut_stretches(sizes, least)
    assert [shard for stretch in stretches for shard in stretch] == list(range(len(sizes)))
    for stretch in stretches[:-1]:
        assert sum(sizes[n] for n in stretch) >= least
    for stretch in stretches:
        assert sum(sizes[n] for n in stretch[:-1]) < least


def test_the_first_stretch_is_shuffled_as_an_iterable_is() -> None:
    """The stream of stretch 0 is the one that data sets of earlier versions have."""
    assert SortKeys(7, 0).next(5).tolist() == np.random.Philox(key=7).random_raw(5).tolist()
    assert SortKeys(7, 1).next(5).tolist() != SortKeys(7, 0).next(5).tolist()


def test_what_cannot_be_used_is_left_out_and_listed(tmp_path: Path) -> None:
    """Or ends the import with an error that names it."""
    texts = [["a", "!", "b"], ["c"], ["!", "d"]]
    source, problems, _ = exchange(Texts(texts), Options(jobs=1, skip_errors=True), tmp_path, silent)
    assert by_index(source) == records_of(texts)
    assert [(p.path, p.reason) for p in problems] == [("0, sample 1", "it shouts"), ("2, sample 0", "it shouts")]
    with pytest.raises(SourceError, match=r"^0: sample 1: it shouts\. --on-error skip leaves"):
        exchange(Texts(texts), Options(jobs=1), tmp_path, silent)
    with pytest.raises(SourceError, match="all samples were left out"):
        exchange(Texts([["!"]]), Options(jobs=1, skip_errors=True), tmp_path, silent)


def test_finished_parts_are_found_where_nothing_else_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same source and seed: no shard is read. Another seed, another shard: what differs is read."""
    monkeypatch.setattr(shards_module, "LEAST_BYTES", 1)
    texts = [[f"{n} {m}" for m in range(5)] for n in range(4)]

    def found(texts: list[list[str]], seed: int = 0) -> int:
        source, _, number = exchange(Texts(texts), Options(seed, jobs=1), tmp_path, silent)
        assert by_index(source, seed) == records_of(texts)
        return number

    assert [found(texts), found(texts)] == [0, 4]
    assert [found([*texts[:3], ["other"]]), found(texts)] == [3, 3]
    assert [found(texts, seed=1), found(texts, seed=1)] == [0, 4]
    assert [found(texts[:2], seed=1), found(texts, seed=1)] == [2, 2]
    assert not (tmp_path / "parts" / "000004.records").exists()


@pytest.mark.parametrize("name", ["records", "spans", "json"])
def test_a_damaged_part_is_made_again(name: str, tmp_path: Path) -> None:
    """Cut short, changed or gone."""
    texts = [["a", "b", "c"]]
    path = tmp_path / "parts" / f"000000.{name}"
    exchange(Texts(texts), Options(jobs=1), tmp_path, silent)
    data = path.read_bytes()
    for damaged in (data[:-1], b"", bytes([data[0] ^ 1]) + data[1:], None):
        if damaged is None:
            path.unlink()
        else:
            path.write_bytes(damaged)
        source, _, found = exchange(Texts(texts), Options(jobs=1), tmp_path, silent)
        assert found == 0
        assert by_index(source) == records_of(texts)
    assert find_part(tmp_path / "parts", 0, "another identity") is None


def test_progress_counts_the_bytes_of_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each stretch, and at the end with the number of samples."""
    monkeypatch.setattr(shards_module, "LEAST_BYTES", 4)
    told: list[StageProgress] = []
    exchange(Texts([["aaaa"], ["bb", "cc"], ["d"]]), Options(jobs=1), tmp_path, told.append)
    assert [(p.samples, p.total, p.bytes, p.total_bytes) for p in told] == [
        (1, None, 4, 9),
        (3, None, 8, 9),
        (4, None, 9, 9),
        (4, 4, 9, 9),
    ]


@pytest.mark.parametrize("told", [2, 4])
def test_a_shard_with_another_number_of_samples_than_its_index_says_is_refused(told: int, tmp_path: Path) -> None:
    """Also where samples are left out: those count."""

    class Counted(Texts):
        def __init__(self, texts: list[list[str]]) -> None:
            super().__init__(texts)
            self.shards = (Shard("a.mds", 9, "", told),)

    with pytest.raises(SourceError, match=rf"a.mds: it holds 3 samples, and its index says {told}"):
        exchange(Counted([["a", "!", "b"]]), Options(jobs=1, skip_errors=True), tmp_path, silent)


def test_chunks_that_hold_something_else_than_was_read_are_not_sealed(tmp_path: Path) -> None:
    """Samples and bytes are compared before the manifest is written."""
    with open_folder_work(tmp_path / "set") as work:
        source, _, _ = exchange(Texts([["a", "b"]]), Options(jobs=1), work.folder, silent)
        source._raw_bytes += 1
        with pytest.raises(SourceError, match="the chunks hold 2 samples of 26 bytes, and 2 of 27 bytes were read"):
            Conversion(work, source, "jsonl", None, Options(jobs=1), silent).run()
    assert not (tmp_path / "set" / "brand.json").exists()


def flip_a_bit(folder: Path) -> None:
    """In the first record that lies there."""
    path = folder / "parts" / "000000.records"
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


def swap_two_samples(folder: Path) -> None:
    """Each is now found where the other lies, which has as many bytes: counts and sums stay as they were."""
    path = folder / "parts" / "000000.spans"
    spans = np.fromfile(path, SPAN)
    spans["offset"][:2] = spans["offset"][1::-1]
    spans.tofile(path)


@pytest.mark.parametrize("damage", [flip_a_bit, swap_two_samples])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_sample_that_is_not_the_one_that_was_read_is_named(damage: Any, compression: Any, tmp_path: Path) -> None:
    """Between the two stages something changes. Nothing is sealed, and the same command mends it."""
    path, target = tmp_path / "x.jsonl", tmp_path / "set"
    path.write_text("".join(json.dumps({"text": f"text {n}"}) + "\n" for n in range(9)))
    undisturbed = tmp_path / "undisturbed"
    options = Options(jobs=1, compression=compression)
    convert_from("jsonl", path, undisturbed, options)

    def meddle(progress: StageProgress) -> None:
        if progress.stage == "spool" and progress.total is not None:
            damage(target / ".brand-work")

    with pytest.raises(SourceError, match=r"000000.records: sample \d differs from that of the source"):
        convert_from("jsonl", path, target, options, on_progress=meddle)
    assert not (target / "brand.json").exists()
    convert_from("jsonl", path, target, options)
    assert tree_digest(target) == tree_digest(undisturbed)


@pytest.mark.parametrize("step", ["joined", "sorted_places"])
def test_a_step_that_goes_wrong_is_found(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that are copied wrongly, or whose order does not fit their places."""
    texts = [[f"{n} {'x' * (n % 60)}" for n in range(40)]]
    where: Any = Records if step == "joined" else spool_module
    right: Any = getattr(where, step)

    def joined(records: Records) -> Any:
        return bytes(right(Records(records.memory, np.roll(records.starts, 1), records.sizes)))

    def places(keys: Any) -> Any:
        order = right(keys).copy()
        order[1] = order[0]
        return order

    monkeypatch.setattr(where, step, joined if step == "joined" else places)
    source, _, _ = exchange(Texts(texts), Options(jobs=1), tmp_path, silent)
    # The sample without a place has any span.
    with pytest.raises(SourceError, match=r"differs from that of the source|truncated while it was in use"):
        by_index(source)


SHARDS, ROWS = 30, 400


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JSON lines in 30 files that are large enough to be a stretch each."""
    folder = tmp_path_factory.mktemp("lines")
    for number in range(SHARDS):
        rows = ({"shard": number, "row": row, "text": f"{number * row} " * (row % 300)} for row in range(ROWS))
        (folder / f"{number:02d}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


SMALL = "import brand.chunker.sources.shards as e; e.LEAST_BYTES = 1; "
"""Makes each file a stretch, in a process of its own."""


@pytest.fixture(scope="module")
def undisturbed(lines: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What an import that nobody kills writes."""
    target = tmp_path_factory.mktemp("undisturbed") / "set"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards_module, "LEAST_BYTES", 1)
        convert_from("jsonl", lines, target, Options(chunk_size=100, jobs=2))
    return tree_digest(target)


def state_of(target: Path) -> tuple[int, int]:
    """Finished parts and published chunks."""
    parts_there = len(list((target / ".brand-work" / "parts").glob("*.json")))
    return parts_there, len(list((target / "chunks").glob("*.brand")))


@pytest.mark.slow
@rounds(2)
def test_killed_at_any_moment_it_goes_on(
    chance: Chance, lines: Path, tmp_path: Path, undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL to all processes or to the parent alone, in either stage; what was finished is not made again."""
    target = tmp_path / "set"
    at_part = chance.rng.randrange(SHARDS + 1)
    at_chunk = 0 if at_part < SHARDS else chance.rng.randrange(1, 100)
    alone = chance.rng.random() < 0.5
    command = ("convert", "jsonl", lines, target, "--chunk-size", 100, "-j", 2)
    with running_brand(*command, prelude=SMALL) as process:
        wait_until(lambda: state_of(target) >= (at_part, at_chunk) or process.poll() is not None, "the moment")
        (os.kill if alone else os.killpg)(process.pid, signal.SIGKILL)
        process.wait()
        wait_until(lambda: not session_processes(process.pid), "the workers end")
    there, _ = state_of(target)
    if (target / ".brand-work").exists():
        monkeypatch.setattr(shards_module, "LEAST_BYTES", 1)
        if not (target / "brand.json").exists():
            assert "not finished" in brand("info", target).err
        told = brand(*command, "--json")
        assert told.code == 0, told.err
        notes = [note for note in told.json["notes"] if "of the source found" in note]
        assert notes == (
            [f"{there} shard{'s' * (there > 1)} of the source found, from a run that was stopped"] * (there > 0)
        )
    assert tree_digest(target) == undisturbed


def test_an_error_late_in_the_source_keeps_what_is_finished(
    lines: Path, tmp_path: Path, undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the file is mended, the same command reads only that one."""
    monkeypatch.setattr(shards_module, "LEAST_BYTES", 1)
    copy, target = tmp_path / "lines", tmp_path / "set"
    shutil.copytree(lines, copy)
    whole = (copy / "29.jsonl").read_text()
    (copy / "29.jsonl").write_text(whole + '{"shard": 29, "row":\n')
    command = ("convert", "jsonl", copy, target, "--chunk-size", 100, "-j", 1)
    told = brand(*command)
    assert told.code == 1
    assert "29.jsonl: line 401: it is no JSON" in told.err
    (copy / "29.jsonl").write_text(whole)
    told = brand(*command, "--json")
    assert "29 shards of the source found, from a run that was stopped" in told.json["notes"]
    assert tree_digest(target) == undisturbed


def test_an_error_in_the_first_shard_leaves_nothing(tmp_path: Path) -> None:
    """Nor does a wrong call."""
    (tmp_path / "x.jsonl").write_text('{"a": 1}\nno json\n')
    assert brand("convert", "jsonl", tmp_path / "x.jsonl", tmp_path / "set", "-j", 1).code == 1
    assert brand("convert", "jsonl", tmp_path / "x.jsonl", tmp_path / "set", "--field", "b=int").code == 2
    assert not (tmp_path / "set").exists()


@pytest.mark.slow
def test_a_killed_worker_ends_the_import_with_a_message(lines: Path, tmp_path: Path) -> None:
    """Exit code 1, and all processes are gone."""
    target = tmp_path / "set"
    with running_brand("convert", "jsonl", lines, target, "-j", 2, prelude=SMALL) as process:
        wait_until(lambda: state_of(target)[0] >= 1, "a part")
        workers = [p for p in session_processes(process.pid) if p != process.pid]
        os.kill(workers[0], signal.SIGKILL)
        _, err = process.communicate()
        wait_until(lambda: not session_processes(process.pid), "the workers end")
    assert process.returncode in (0, 1)  # 0: it had nothing more to do
    assert process.returncode == 0 or b"worker process died" in err


def test_stored_samples_know_their_place_in_the_source(
    lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Index i is the i-th sample of the files by name."""
    monkeypatch.setattr(shards_module, "LEAST_BYTES", 1)
    convert_from("jsonl", lines, tmp_path / "set", Options(jobs=1))
    stored: Any = StoredDataSet(tmp_path / "set")
    for index in (0, ROWS - 1, ROWS, 7 * ROWS + 3, SHARDS * ROWS - 1):
        sample = stored.sample(index)
        assert (sample["shard"], sample["row"]) == divmod(index, ROWS)
