"""Many segments become few: the same samples, indices, columns and deletions, and an append costs what it did."""

from __future__ import annotations

import io
import pickle
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader

from brand import BrandDataset, BrandSampler, migrate_state
from brand.chunker import Options
from brand.collect import (
    NamedSamples,
    append_data_set,
    append_images,
    append_samples,
    compact,
    compacting,
    delete,
    overlay,
    redact,
    rewriting,
    tiers,
    undelete,
    versions,
)
from brand.collect import home as home_module
from brand.collect.companions import merge_companions
from brand.collect.home import UNNAMED, writing
from brand.errors import ChecksumError, MergeError, StorageError, UsageError
from brand.formats.publish import FolderTarget
from brand.formats.version import Version, make_version, pack_version, version_name
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.maintenance.reindex import reindex
from brand.storage.maintenance.unpack import unpack
from brand.storage.maintenance.verify import verify
from tests.collect.support import (
    SCHEMA,
    Model,
    Work,
    beside,
    check,
    grow,
    killed,
    samples,
    some_change,
    some_history,
    tidy,
    work_of,
)
from tests.independent_reader import Collection
from tests.rounds import Chance, rounds
from tests.support import files_below

ONE = Options(jobs=1)


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two segments of a tier become one, so that a few appends suffice."""
    monkeypatch.setattr(tiers, "FANOUT", 2)


def version_of(folder: Path | str) -> Version:
    version = StoredDataSet(folder).version
    assert version is not None
    return version


def whole(folder: Path) -> None:
    """All checksums of the present version are right, and an independent reader finds its rules kept."""
    assert [error for step in verify(folder) for error in step.errors] == []
    data, other = StoredDataSet(folder), Collection(folder, version_of(folder).number)
    for index in data.present().tolist():
        assert repr(other.sample(index)) == repr(data.sample(index))


@pytest.fixture
def ten(tmp_path: Path) -> tuple[Path, Model]:
    """Ten appends; some samples deleted, some of them compacted away, one restored; two columns."""
    folder, every = tmp_path / "all", list[dict[str, Any]]()
    for number in range(5):
        grow(folder, 100 * number, 11)
        every += samples(100 * number, 11)
    delete(folder, NamedSamples(indices=[0, 1, 2, 3, 12, 30]))
    compact(folder, above=0.3)  # only the first segment
    overlay(folder, "score", np.arange(55) / 4)
    for number in range(5, 10):
        grow(folder, 100 * number, 11)
        every += samples(100 * number, 11)
    overlay(folder, "length", np.arange(110) / 8)
    delete(folder, NamedSamples(indices=[108, 109]))
    undelete(folder, [12])
    columns = {"score": [each / 4 for each in range(55)], "length": [each / 8 for each in range(110)]}
    return folder, Model(tuple(every), frozenset({0, 1, 2, 3, 30, 108, 109}), frozenset({0, 1, 2, 3}), columns)


def test_merged_segments_read_like_the_old_ones(ten: tuple[Path, Model]) -> None:
    """Every sample, index, column and deletion; old versions read their old segments."""
    folder, model = ten
    check(folder, model)
    old = version_of(folder)
    done = compact(folder)
    assert done is not None
    assert (done.segments, done.written, done.samples, done.version.number) == (9, 2, 3, old.number + 1)
    assert [part.end for part in done.version.parts] == [11, 99, 110]
    check(folder, replace(model, gone=model.deleted))
    check(Path(f"{folder}@{old.number}"), model)
    whole(folder)
    tidy(folder)
    assert compact(folder) is None


def test_deleted_samples_stay_restorable(ten: tuple[Path, Model]) -> None:
    """An append that merges leaves none out; `compact` leaves out those of segments with many of them."""
    folder, model = ten
    grow(folder, 5000, 3, compact=True)
    assert len(version_of(folder).parts) == 4
    undelete(folder, [30])
    left = replace(model, samples=(*model.samples, *samples(5000, 3)), deleted=model.deleted - {30})
    check(folder, left)
    with pytest.raises(UsageError, match="the bytes of sample 3 are no longer"):
        undelete(folder, [3])
    whole(folder)


def test_an_order_is_mixed(tmp_path: Path, pairs: None) -> None:
    """Each chunk of a merged segment has samples of all old ones, so a read does, too."""
    for number in range(4):
        grow(tmp_path / "all", 1000 * number, 64, chunk_size=32)
    compact(tmp_path / "all")
    data = StoredDataSet(tmp_path / "all")
    assert len(version_of(tmp_path / "all").parts) == 1
    for first in range(0, 256, 32):
        old = data.indices(np.arange(first, first + 32)) // 64
        assert set(old.tolist()) == {0, 1, 2, 3}


def test_a_riffle_is_uniform() -> None:
    """Two sequences of two elements have six interleavings. Each comes equally often."""
    from brand.collect.rewriting import _Riffle

    counts: dict[tuple[int, ...], int] = {}
    for seed in range(3000):
        riffle = _Riffle([2, 2], seed)
        found = (*riffle.next(3).tolist(), *riffle.next(1).tolist())
        counts[found] = counts.get(found, 0) + 1
    assert sorted(counts) == [(0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 1, 0), (1, 0, 0, 1), (1, 0, 1, 0), (1, 1, 0, 0)]
    assert all(400 < count < 600 for count in counts.values())


def test_a_merged_segment_is_an_ordinary_data_set(tmp_path: Path, pairs: None) -> None:
    """It verifies and is indexed again by itself, byte for byte: images, classes that grow, files beside them."""
    rng = np.random.default_rng(0)
    for number, classes in enumerate((("b", "c"), ("a", "c"), ("c", "d"), ("b", "e"))):
        for name in classes:
            (tmp_path / f"night{number}/{name}").mkdir(parents=True)
            for image in range(3):
                pixels = rng.integers(0, 255, (4, 5) if image else (4, 5, 4), dtype=np.uint8)
                buffer = io.BytesIO()
                Image.fromarray(pixels).save(buffer, "PNG")
                (tmp_path / f"night{number}/{name}/{number}{image}.png").write_bytes(buffer.getvalue())
        (tmp_path / f"night{number}/{classes[1]}/{number}0.txt").write_text(f"of night {number}")
        (tmp_path / f"night{number}/{classes[0]}/empty{number}.png").touch()
        append_images(tmp_path / f"night{number}", tmp_path / "all", Options(jobs=1, skip_errors=True))
    folder = tmp_path / "all"
    before = StoredDataSet(folder)
    noticed, labels = {(fact.what, fact.count) for fact in before.manifest.noticed}, before.column("label").tolist()
    compact(folder, forget=True)
    data = StoredDataSet(folder)
    assert data.classes == before.classes == ["b", "c", "a", "d", "e"]
    assert data.column("label").tolist() == labels
    assert {(fact.what, fact.count) for fact in data.manifest.noticed} == noticed
    whole(folder)
    (part,) = (folder / "parts").iterdir()
    old = files_below(part)
    assert len(old["skipped.tsv"].splitlines()) == 5
    with zipfile.ZipFile(part / "extras.zip") as archive:
        assert {name: archive.read(name).decode() for name in archive.namelist()} == {
            f"{name}/{number}0.txt": f"of night {number}" for number, name in enumerate("ccde")
        }
    assert unpack(part, tmp_path / "out") == 24 + 4
    (part / "brand.json").rename(tmp_path / "brand.json")
    reindex(part)
    new = files_below(part)
    assert {name: data for name, data in new.items() if name != "brand.json"} == {
        name: data for name, data in old.items() if name != "brand.json"
    }


def test_files_of_one_name_are_all_kept(tmp_path: Path) -> None:
    """Equal ones once, others under names of their own; skipped files are listed once, sorted."""
    for number in range(4):
        (tmp_path / f"{number}").mkdir()
        with zipfile.ZipFile(tmp_path / f"{number}/extras.zip", "w") as archive:
            archive.writestr("empty/", b"")
            archive.writestr("a/metadata.csv", f"of {number % 3}" * 1000)
            archive.writestr(f"only{number}", b"")
    (tmp_path / "0/skipped.tsv").write_bytes(b"path\treason\nb\tempty\nd\tempty\n")
    (tmp_path / "2/skipped.tsv").write_bytes(b"path\treason\na\tempty\nb\tempty\n")
    (tmp_path / "out").mkdir()
    folders = [tmp_path / f"{number}" for number in range(4)]
    facts = merge_companions(folders, FolderTarget(tmp_path / "out"), tmp_path)
    assert sorted(facts) == ["extras.zip", "skipped.tsv"]
    assert (tmp_path / "out/skipped.tsv").read_bytes() == b"path\treason\na\tempty\nb\tempty\nd\tempty\n"
    with zipfile.ZipFile(tmp_path / "out/extras.zip") as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    few = {"a/metadata.csv": b"of 0", "a/metadata~2.csv": b"of 1", "a/metadata~3.csv": b"of 2"}
    only = {f"only{number}": b"" for number in range(4)}
    assert found == {"empty/": b"", **only, **{name: each * 1000 for name, each in few.items()}}
    (tmp_path / "3/extras.zip").write_bytes((tmp_path / "3/extras.zip").read_bytes()[:-30])
    with pytest.raises(ChecksumError, match="the archive is damaged"):
        merge_companions(folders, FolderTarget(tmp_path / "out"), tmp_path)


def test_a_dictionary_is_kept(tmp_path: Path, pairs: None) -> None:
    """Compressed samples are copied as they are; `redact` gives a merged segment another dictionary."""
    texts = [f"sample {i} says: the quick brown fox jumps over the lazy dog, again and again" for i in range(480)]
    for first in range(0, 480, 120):
        rows = [{"text": each, "key": f"k/{first + at}"} for at, each in enumerate(texts[first : first + 120])]
        append_samples(rows, tmp_path / "all", {"text": "str", "key": "str"}, options=ONE)
    before = StoredDataSet(tmp_path / "all")
    assert before.manifest.dictionary_size > 0
    stored = before.stored_bytes(before.places(np.arange(480)))
    compact(tmp_path / "all")
    data = StoredDataSet(tmp_path / "all")
    assert len(version_of(tmp_path / "all").parts) == 1
    assert data.stored_bytes(data.places(np.arange(480))) == stored
    redact(tmp_path / "all", NamedSamples(indices=[7]), tmp_path / "report.json")
    data = StoredDataSet(tmp_path / "all")
    assert [each["text"] for each in data.samples(data.present())] == texts[:7] + texts[8:]
    whole(tmp_path / "all")


def test_a_redaction_reaches_merged_segments(tmp_path: Path, pairs: None) -> None:
    """No file of the collection has the bytes, neither the old segments nor the merged one."""
    folder = tmp_path / "all"
    for number in range(4):
        grow(folder, 10 * number, 10, mark="of-ada" if number == 2 else "of-bob")
    compact(folder)
    report = redact(folder, NamedSamples(keys=["of-ada/"]), tmp_path / "report.json")
    assert len(report["segments"]) == 2
    assert [name for name, data in files_below(folder).items() if b"of-ada" in data] == []
    every = [*samples(0, 20, mark="of-bob"), *samples(20, 10, mark="of-ada"), *samples(30, 10, mark="of-bob")]
    check(folder, Model(tuple(every), frozenset(range(20, 30))))
    whole(folder)
    tidy(folder)


def test_segments_without_samples_are_merged(tmp_path: Path, pairs: None) -> None:
    """All their samples are deleted and compacted away: with or without a neighbour that has some."""
    folder = tmp_path / "all"
    for number in range(4):
        grow(folder, 100 * number, 8**number)
    delete(folder, NamedSamples(indices=range(73)))
    compact(folder)
    assert [(part.first, part.end, part.samples) for part in version_of(folder).parts] == [(0, 73, 0), (73, 585, 512)]
    every = [each for number in range(4) for each in samples(100 * number, 8**number)]
    check(folder, Model(tuple(every), frozenset(range(73))))
    whole(folder)
    grow(folder, 5000, 512)
    compact(folder, forget=True)
    check(folder, Model((*every, *samples(5000, 512)), frozenset(range(73))))
    whole(folder)


def test_merged_samples_are_not_added_twice(tmp_path: Path, pairs: None) -> None:
    """Neither those of an append long ago, nor a merged segment itself."""
    folder = tmp_path / "all"
    for number in range(4):
        grow(folder, 100 * number, 10)
        compact(folder)
    delete(folder, NamedSamples(indices=[3]))
    compact(folder, forget=True)
    for number in range(4):
        with pytest.raises(UsageError, match="in the collection already, among 0 to 39"):
            grow(folder, 100 * number, 10)
    (part,) = version_of(folder).parts
    other = tmp_path / "other"
    for number in range(4):
        grow(other, 100 * number, 10)
    compact(other)
    merged = other / version_of(other).parts[0].name
    with pytest.raises(UsageError, match="in the collection already, as 0 to 39"):
        append_data_set(merged, other)
    assert part.merged is not None
    tidy(folder)


def test_a_state_is_of_the_old_version(ten: tuple[Path, Model]) -> None:
    """It loads on the version before the compaction; on the new one it is migrated, as after any change."""
    folder, model = ten
    state = BrandSampler(BrandDataset(folder, server="none"), seed=3).state_dict()
    compact(folder, above=0.5)
    with pytest.raises(UsageError, match="is of version 16 of the collection"):
        fetched(folder, state)
    assert sorted(fetched(f"{folder}@16", state)) == model.present
    new = BrandSampler(BrandDataset(folder, server="none"), seed=3)
    assert sorted(fetched(folder, migrate_state(state, new))) == model.present


def fetched(path: Path | str, state: dict[str, Any]) -> list[int]:
    """The indices of the epoch of a state."""
    data = BrandDataset(path, fields=("index",), server="none")
    sampler = BrandSampler(data, seed=3)
    sampler.load_state_dict(state)
    return [int(index) for (batch,) in DataLoader(data, batch_size=7, sampler=sampler) for index in batch]


def test_a_deletion_that_was_undone_meanwhile_stops_a_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new segment lacks a sample that is there again: nothing is published, and the next run is right."""
    folder = tmp_path / "all"
    grow(folder, 0, 10)
    delete(folder, NamedSamples(indices=[3, 4]))
    real = rewriting.rewrite_parts

    def meanwhile(*given: Any) -> Any:
        made = real(*given)
        undelete(folder, [3])
        return made

    monkeypatch.setattr("brand.collect.compacting.rewrite_parts", meanwhile)
    with pytest.raises(StorageError, match="has changed these segments meanwhile"):
        compact(folder)
    monkeypatch.undo()
    check(folder, Model(tuple(samples(0, 10)), frozenset({4})))
    compact(folder)
    check(folder, Model(tuple(samples(0, 10)), frozenset({4})))
    tidy(folder)


def test_appends_during_a_compaction_stay(tmp_path: Path, pairs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The long work takes no lock: what is appended, deleted and overlaid meanwhile is in the new version."""
    folder = tmp_path / "all"
    for number in range(2):
        grow(folder, 100 * number, 10)
    real = rewriting.rewrite_parts

    def meanwhile(*given: Any) -> Any:
        made = real(*given)
        grow(folder, 200, 10)
        delete(folder, NamedSamples(indices=[5]))
        overlay(folder, "score", np.arange(30) / 2)
        return made

    monkeypatch.setattr("brand.collect.compacting.rewrite_parts", meanwhile)
    compact(folder)
    assert [part.end for part in version_of(folder).parts] == [20, 30]
    every = (*samples(0, 10), *samples(100, 10), *samples(200, 10))
    check(folder, Model(every, frozenset({5}), frozenset(), {"score": [each / 2 for each in range(30)]}))
    whole(folder)


def test_an_append_succeeds_whoever_merges(tmp_path: Path, pairs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another command has merged the same segments meanwhile: the append has nothing to merge, and no error."""
    folder = tmp_path / "all"
    grow(folder, 0, 10)
    real = rewriting.rewrite_parts

    def meanwhile(*given: Any) -> Any:
        made = real(*given)
        monkeypatch.undo()
        monkeypatch.setattr(tiers, "FANOUT", 2)
        compact(folder)
        return made

    monkeypatch.setattr("brand.collect.compacting.rewrite_parts", meanwhile)
    report = append_samples(samples(100, 10), folder, SCHEMA, options=ONE, compact=True)
    assert report.notes[-1] == "Version 2: the new samples are 10 to 19 of 20"
    assert [line.note for line in versions(folder)][2:] == ["compact 2 segments into 1"]
    check(folder, Model((*samples(0, 10), *samples(100, 10))))
    tidy(folder)


def test_an_append_is_done_if_its_merge_fails(tmp_path: Path, pairs: None) -> None:
    """An old segment is damaged: the error says where, that the new samples are there, and in which version."""
    folder = tmp_path / "all"
    grow(folder, 0, 10)
    chunk = sorted((folder / "parts").glob("*/chunks/*"))[0]
    whole_chunk = chunk.read_bytes()
    chunk.write_bytes(whole_chunk[:-1] + bytes([whole_chunk[-1] ^ 1]))
    with pytest.raises(MergeError, match="version 2 has the new samples, 10 to 19 of 20: do not append") as caught:
        grow(folder, 100, 10, compact=True)
    assert caught.value.version == 2
    assert isinstance(caught.value.__cause__, ChecksumError)
    assert str(chunk) in str(caught.value)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy), copy.version) == (MergeError, str(caught.value), 2)
    chunk.write_bytes(whole_chunk)
    check(folder, Model((*samples(0, 10), *samples(100, 10))))
    tidy(folder)
    grow(folder, 200, 10, compact=True)
    assert [part.end for part in version_of(folder).parts] == [30]


def test_a_full_collection_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is converted; with `compact`, the append makes room by itself."""
    monkeypatch.setattr(home_module, "MOST_PARTS", 8)
    monkeypatch.setattr("brand.collect.append.MOST_PARTS", 8)
    folder = tmp_path / "all"
    for number in range(8):
        grow(folder, 100 * number, 10)

    def never() -> Iterator[dict[str, Any]]:
        raise AssertionError("it is read")
        yield {}

    with pytest.raises(UsageError, match=r"`brand compact` merges them\. Run it, then the same command again"):
        append_samples(never(), folder, SCHEMA)
    grow(folder, 800, 10, compact=True)
    assert [part.end for part in version_of(folder).parts] == [80, 90]
    tidy(folder)


def test_an_append_says_that_a_compaction_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From many segments on, and only if merging makes fewer."""
    monkeypatch.setattr(compacting, "CROWD", 9)
    folder = tmp_path / "all"
    told = [
        append_samples(samples(100 * number, 10), folder, SCHEMA, options=ONE if number else Options(chunk_size=8))
        for number in range(9)
    ]
    due = "The collection has 9 segments of at most 256: `brand compact` merges them"
    assert [due in report.notes for report in told] == [False] * 8 + [True]
    report = append_samples(samples(900, 10), folder, compact=True)
    assert "Version 11 has the same samples in 3 segments" in report.notes


def test_many_segments_are_merged_with_few_descriptors(tmp_path: Path) -> None:
    """64 of them at a limit that a quarter of them reach."""
    folder, every = tmp_path / "all", list[dict[str, Any]]()
    for number in range(66):
        grow(folder, 100 * number, 2)
        every += samples(100 * number, 2)
    command = f"ulimit -n 96; exec {shlex.quote(sys.executable)} -m brand compact {shlex.quote(str(folder))}"
    subprocess.run(["bash", "-c", command], check=True)  # a process of its own: this one may have any number open
    assert [part.samples for part in version_of(folder).parts] == [128, 2, 2]
    check(folder, Model(tuple(every)))


@pytest.mark.slow
def test_three_hundred_appends_stay_small(tmp_path: Path) -> None:
    """The number of segments stays small, and an append to as many segments does the same work at the end as before."""
    folder, every = tmp_path / "all", list[dict[str, Any]]()
    early, late = dict[tuple[int, int], Work](), dict[tuple[int, int], Work]()
    before, windows = (0, 0), (range(30, 70), range(250, 290))
    for number in range(300):
        append = partial(grow, folder, 100 * number, 1 + number % 3, compact=True)
        measured = any(number in window for window in windows)
        found = work_of(append, folder) if measured else append()
        every += samples(100 * number, 1 + number % 3)
        parts = version_of(folder).parts
        held = len(parts), sum(part.merged is not None for part in parts)
        assert held[0] <= 24
        if found is not None and held == (before[0] + 1, before[1]):  # it merged nothing
            (early if number in windows[0] else late).setdefault(before, found)
        before = held
    check(folder, Model(tuple(every)))
    same = early.keys() & late.keys()
    assert len(same) >= 3
    for segments in same:
        assert (late[segments].opened, late[segments].listed) == (early[segments].opened, early[segments].listed)
        origins = 300 * 8  # numbers of 8 bytes, by which samples that were added already are known
        assert late[segments].read - early[segments].read < origins + 2000
        assert abs(late[segments].written - early[segments].written) < 2000
    assert [line.samples for line in versions(folder)][-1] == 600


def test_an_append_after_a_thousand_versions_does_the_same_work(tmp_path: Path) -> None:
    """It lists none of them, and opens, reads and writes what it did before; so does opening the collection."""
    few, many = tmp_path / "few", tmp_path / "many"
    for number in range(3):
        grow(few, 100 * number, 5)
    shutil.copytree(few, many)
    version = version_of(many)
    for _ in range(1000):
        facts = version.parts, version.deleted, version.overlays
        version = make_version(version.collection, version.number + 1, *facts, version.id, "nothing")
        (many / version_name(version.number)).write_bytes(pack_version(version))
    for folder in (few, many):
        grow(folder, 300, 5)  # the first one after a copy lists the versions
    assert (version_of(few).number, version_of(many).number) == (4, 1004)
    for action in (StoredDataSet, lambda folder: grow(folder, 400, 5)):
        old, new = (work_of(partial(action, folder), folder) for folder in (few, many))
        assert (new.opened, new.listed) == (old.opened, old.listed)
        assert "versions" not in new.listed
        assert abs(new.read - old.read) < 100
        assert abs(new.written - old.written) < 100
    check(many, Model(tuple(each for number in range(5) for each in samples(100 * number, 5))))


def test_an_append_reads_no_old_version(tmp_path: Path) -> None:
    """So its time does not grow with their number. After a writer that was killed, they are read once."""
    folder = tmp_path / "all"
    for number in range(3):
        grow(folder, 100 * number, 5)
    first = folder / "versions/00000001.json"
    kept = first.read_bytes()
    first.write_bytes(b"damaged")
    grow(folder, 300, 5)
    first.write_bytes(kept)
    (folder / "lists/stray.npy").touch()
    (folder / UNNAMED).touch()
    with writing(folder):
        pass
    tidy(folder)
    assert version_of(folder).samples == 20


def block(number: int) -> list[dict[str, Any]]:
    """The samples of one append."""
    return samples(100 * number, 5 + number % 3)


def append_blocks(folder: Path, numbers: Sequence[int], *, compact: bool = False) -> None:
    for number in numbers:
        grow(folder, 100 * number, len(block(number)), compact=compact)


def blocks_of(folder: Path) -> list[int]:
    """The appends whose samples the present version has, in order."""
    data = StoredDataSet(folder)
    keys = [data.sample(index)["key"] for index in data.present().tolist()]
    return list(dict.fromkeys(int(key.split("/")[1]) // 100 for key in keys))


@contextmanager
def training(folder: Path) -> Iterator[None]:
    """Train on the present version, epoch after epoch, from before the block until after it."""
    command = [sys.executable, "-m", "tests.collect.training", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline().endswith(b" samples\n")
            yield
        finally:
            process.stdin.close()
            epochs = process.stdout.read()
    assert (process.returncode, b"samples" in epochs) == (0, True)


@pytest.mark.slow
@rounds(6)
def test_a_killed_compaction_changes_all_or_nothing(tmp_path: Path, pairs: None, chance: Chance) -> None:
    """Killed before any change of a file, or at any time: the old version or the new one is whole, and work goes on.

    It is `compact`, or an append that merges; in some rounds beside another process that appends, and a training.
    """
    folder, rng = tmp_path / "all", chance.rng
    append_blocks(folder, range(4))
    gone = frozenset({2, version_of(folder).samples - 1})
    delete(folder, NamedSamples(indices=sorted(gone)))
    company = chance.number % 2 == 1
    forget = not company and rng.random() < 0.5  # it would remove the version of the training
    every = blocks_of(folder)
    with training(folder) if company else nullcontext():
        for attempt in range(6):
            append_blocks(folder, [40 + 2 * attempt, 41 + 2 * attempt])  # so that a merge is due
            every += [40 + 2 * attempt, 41 + 2 * attempt]
            mine, others = 10 + attempt, [20 + 2 * attempt, 21 + 2 * attempt] if company else []
            growing = rng.random() < 0.5
            action = (
                partial(append_blocks, folder, [mine], compact=True)
                if growing
                else partial(compact, folder, forget=forget)
            )
            steps = rng.randint(1, 120) if rng.random() < 0.7 else 0
            with beside(partial(append_blocks, folder, others), folder):
                dead = killed(action, folder, steps, after_s=rng.uniform(0, 0.1))
            found = blocks_of(folder)
            assert found[: len(every)] == every
            new = {*found[len(every) :]}
            assert new - {mine} == {*others}
            if mine in new or not dead:
                assert growing == (mine in new)
            every = found
            check(folder, Model(tuple(each for number in every for each in block(number)), gone))
    compact(folder, forget=forget)
    check(folder, Model(tuple(each for number in every for each in block(number)), gone, gone))
    whole(folder)
    with writing(folder):
        pass
    tidy(folder)


@pytest.mark.slow
@rounds(6)
def test_a_history_with_merges_reads_like_its_model(tmp_path: Path, pairs: None, chance: Chance) -> None:
    """Appends that compact, deletions, columns, redactions, in any order, some of them killed."""
    folder = tmp_path / "all"
    model = some_history(folder, chance.rng, changes=12, share_killed=0.3, merging=True)
    if model.samples:
        whole(folder)


def test_the_histories_have_merges(tmp_path: Path, pairs: None) -> None:
    """So that the test before tests them."""
    folder, model, merged = tmp_path / "all", Model(), 0
    rng = Random(5)
    for _ in range(20):
        change, model = some_change(model, rng, folder, merging=True)
        change(folder)
        merged += any(part.merged is not None for part in version_of(folder).parts)
    assert merged >= 5
