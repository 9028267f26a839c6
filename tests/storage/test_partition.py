"""A data set divided into shares: together they are the set, each can be used, and none looks finished too soon."""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import brand
from brand.errors import (
    BrandError,
    ChecksumError,
    ElsewhereError,
    FormatError,
    MissingFileError,
    NotADataSetError,
    TargetExistsError,
    UsageError,
)
from brand.formats.record import RecordDecoder
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.dataset.summary import summarise
from brand.storage.maintenance.partition import PartitionMade
from brand.storage.maintenance.reindex import reindex
from brand.storage.maintenance.unpack import unpack
from brand.storage.maintenance.verify import verify
from tests.storage.support import NOTES, SAMPLES, SCHEMA, chunk, divide, told_by_verify
from tests.support import files_below
from tests.tools.damage import flip_bit, truncate

WORK = ".brand-partition"


@pytest.fixture
def seven(tmp_path: Path) -> Path:
    """13 samples in seven chunks of two, the last one short."""
    samples = [SAMPLES[k % 10] for k in range(13)]
    brand.pack(samples, tmp_path / "seven.brand", SCHEMA, chunk_size=2, compression="none", jobs=1)
    return tmp_path / "seven.brand"


def outs(tmp_path: Path, nodes: int) -> list[Path]:
    """Folders for shares, which are not there."""
    return [tmp_path / "shares" / str(node) for node in range(nodes)]


def chunks_in(folder: Path) -> set[str]:
    """Names of the chunk files."""
    return {path.name for path in (folder / "chunks").iterdir()}


def inodes(folder: Path) -> set[int]:
    """Of all its files."""
    return {path.stat().st_ino for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("group_chunks", [1, 2, 3])
@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_the_shares_together_are_the_data_set(seven: Path, tmp_path: Path, nodes: int, group_chunks: int) -> None:
    """Every chunk is in one share, whole groups of them, and each share has every other file, byte for byte."""
    made = divide(seven, outs(tmp_path, nodes), group_chunks)
    whole = files_below(seven)
    found = [files_below(one.path) for one in made]
    for one, files in zip(made, found, strict=True):
        assert {name: whole[name] for name in files if name != "share.json"} == {
            name: data for name, data in files.items() if name != "share.json"
        }
        assert {name for name in whole if not name.startswith("chunks/")} <= files.keys()
        assert one.share.chunks.start % group_chunks == 0
        assert one.samples == len(StoredDataSet(one.path).indices(np.arange(13))[one.share.here(np.arange(13) // 2)])
        assert one.bytes == sum(len(data) for name, data in files.items() if name.startswith("chunks/"))
    chunks = [name for files in found for name in files if name.startswith("chunks/")]
    assert sorted(chunks) == sorted(name for name in whole if name.startswith("chunks/"))
    assert sum(one.samples for one in made) == 13


def test_a_share_knows_what_is_here(seven: Path, tmp_path: Path) -> None:
    """`here` says yes for the files that exist and for no other, without looking at them."""
    for one in divide(seven, outs(tmp_path, 3)):
        data_set = StoredDataSet(one.path)
        there = np.array([chunk(one.path, number).exists() for number in range(7)])
        shutil.rmtree(one.path / "chunks")
        assert data_set.here(np.arange(7)).tolist() == there.tolist()
        assert list(data_set.chunks_here) == np.flatnonzero(there).tolist()
        assert data_set.share == one.share


def test_in_a_whole_data_set_all_is_here(seven: Path) -> None:
    """Also for a chunk whose file is lost, as that is damage."""
    data_set = StoredDataSet(seven)
    chunk(seven, 3).unlink()
    assert data_set.share is None
    assert data_set.here(np.array([3, 0, 3])).tolist() == [True] * 3
    assert data_set.chunks_here == range(7)


def test_samples_of_a_share_are_read_and_others_are_elsewhere(dense: Path, tmp_path: Path) -> None:
    """With a dictionary, which the first chunk has and any other one, too."""
    seen: set[int] = set()
    for one in divide(dense, outs(tmp_path, 2)):
        data_set = StoredDataSet(one.path)
        assert np.array_equal(data_set.column("number"), StoredDataSet(dense).column("number"))
        assert len(data_set) == 130
        for index in range(130):
            if data_set.chunk_of(index) in one.share.chunks:
                assert data_set.sample(index) == NOTES[index]
                seen.add(index)
                continue
            with pytest.raises(ElsewhereError) as caught:
                data_set.sample(index)
            error = caught.value
            assert (error.path, error.chunk, error.sample) == (one.path, data_set.chunk_of(index), index)
            assert error.node == 1 - one.share.node
    assert seen == set(range(130))


def test_the_dictionary_is_taken_from_a_chunk_that_is_here(tmp_path: Path) -> None:
    """Also where the share begins far behind the first chunks."""
    folder = tmp_path / "notes"
    brand.pack(NOTES, folder, {"text": "str", "number": "int"}, chunk_size=10, compression="zstd", jobs=1)
    divide(folder, outs(tmp_path, 3))
    data_set = StoredDataSet(tmp_path / "shares" / "2")
    assert data_set.manifest.dictionary_size > 0
    assert data_set.chunks_here[0] > 8
    index = int(data_set.indices(np.array([129]))[0])
    assert data_set.sample(index) == NOTES[index]


def test_an_error_about_another_share_says_who_and_what_to_do(seven: Path, tmp_path: Path) -> None:
    """Node, chunk and sample, and it is no damage; it survives a pickle, as errors of workers do."""
    divide(seven, outs(tmp_path, 3))
    data_set = StoredDataSet(tmp_path / "shares" / "0")
    index = int(data_set.indices(np.array([12]))[0])
    with pytest.raises(ElsewhereError) as caught:
        data_set.sample(index)
    text = str(caught.value)
    assert f"chunk 6, sample {index}: it is in the partition of node 2" in text
    assert "undivided data set" in text
    assert not isinstance(caught.value, FormatError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again), vars(again)) == (ElsewhereError, text, vars(caught.value))
    assert str(ElsewhereError(text)) == text


def test_one_sample_from_elsewhere_fails_the_batch_and_is_named(seven: Path, tmp_path: Path) -> None:
    """It is the first of them that is named."""
    divide(seven, outs(tmp_path, 2))
    data_set = StoredDataSet(tmp_path / "shares" / "1")
    mine, other = (int(data_set.indices(np.array([place]))[0]) for place in (12, 0))
    decode = RecordDecoder(data_set.header.schema)
    with pytest.raises(ElsewhereError) as caught:
        data_set.samples(np.array([mine, other, mine]), decode)
    assert (caught.value.sample, caught.value.node) == (other, 0)


def test_a_lost_chunk_of_a_share_is_damage(seven: Path, tmp_path: Path) -> None:
    """A file that should be here and is not: missing, not elsewhere."""
    divide(seven, outs(tmp_path, 2))
    share = tmp_path / "shares" / "1"
    chunk(share, 6).unlink()
    with pytest.raises(MissingFileError):
        StoredDataSet(share).sample(int(StoredDataSet(share).indices(np.array([12]))[0]))


def test_a_share_is_pickled_as_a_data_set_is(seven: Path, tmp_path: Path) -> None:
    """It is a share in the other process, too."""
    divide(seven, outs(tmp_path, 2))
    data_set = StoredDataSet(tmp_path / "shares" / "1")
    assert pickle.loads(pickle.dumps(data_set)).share == data_set.share


def test_verify_checks_what_should_be_there(seven: Path, tmp_path: Path) -> None:
    """A whole share has no errors, and as many samples and bytes as it has."""
    for one in divide(seven, outs(tmp_path, 3)):
        steps = list(verify(one.path))
        assert [error for step in steps for error in step.errors] == []
        assert sum(step.samples for step in steps) == one.samples
        index = sum(path.stat().st_size for part in ("index", "columns") for path in (one.path / part).iterdir())
        assert sum(step.bytes for step in steps) == one.bytes + index


def test_verify_finds_what_is_wrong_in_a_share(seven: Path, tmp_path: Path) -> None:
    """A changed sample, a lost chunk, a changed index file: as in a whole data set."""
    divide(seven, outs(tmp_path, 2), copy=True)
    share = tmp_path / "shares" / "1"
    flip_bit(chunk(share, 4), 8 * (chunk(share, 4).stat().st_size - 1))
    chunk(share, 5).unlink()
    flip_bit(share / "index" / "place.npy", 8 * 130)
    told = {(type(error), error.chunk) for error in told_by_verify(share)}
    assert {(ChecksumError, None), (ChecksumError, 4), (MissingFileError, 5)} <= told
    assert told_by_verify(seven) == []


def test_a_share_with_a_damaged_share_file_is_no_whole_data_set(seven: Path, tmp_path: Path) -> None:
    """Neither reading nor verify guesses which chunks should be there."""
    divide(seven, outs(tmp_path, 2))
    share = tmp_path / "shares" / "1"
    flip_bit(share / "share.json", 8 * 30)
    for use in (StoredDataSet, lambda folder: list(verify(folder))):
        with pytest.raises(FormatError) as caught:
            use(share)
        assert caught.value.path == share / "share.json"


def test_a_summary_tells_the_share(seven: Path, tmp_path: Path) -> None:
    """Whose, of how many, which chunks; what is on disk is what is here, the rest is of the whole."""
    divide(seven, outs(tmp_path, 3), 2)
    facts = [summarise(StoredDataSet(folder)) for folder in (seven, *outs(tmp_path, 3))]
    assert facts[0].partition is None
    assert facts[2].partition == {
        "node": 1, "nodes": 3, "group_chunks": 2, "first_chunk": 4, "last_chunk": 5, "samples": 4,
    }  # fmt: skip
    assert {one.samples for one in facts} == {13}
    index = sum(path.stat().st_size for part in ("index", "columns") for path in (seven / part).iterdir())
    assert sum(one.disk_bytes - index for one in facts[1:]) == facts[0].disk_bytes - index


def test_files_are_linked_or_copied(seven: Path, tmp_path: Path) -> None:
    """Links take no space; with `copy` no file is shared."""
    linked = divide(seven, outs(tmp_path / "a", 2))
    copied = divide(seven, outs(tmp_path / "b", 2), copy=True)
    for one, other in zip(linked, copied, strict=True):
        assert one.ways == {"linked": len(one.share.chunks)}
        assert other.ways == {"copied": len(one.share.chunks)}
        assert inodes(one.path) - inodes(seven) == {(one.path / "share.json").stat().st_ino}
        assert not inodes(other.path) & inodes(seven)
        assert files_below(one.path) == files_below(other.path)


def test_progress_is_told_after_each_chunk(seven: Path, tmp_path: Path) -> None:
    """Chunks done, chunks in all, bytes that were copied: none by a link."""
    steps: list[tuple[int, int, int]] = []
    divide(seven, outs(tmp_path / "a", 3), on_chunk=lambda *step: steps.append(step))
    assert steps == [(number + 1, 7, 0) for number in range(7)]
    steps.clear()
    divide(seven, outs(tmp_path / "b", 3), copy=True, on_chunk=lambda *step: steps.append(step))
    assert steps == [(number + 1, 7, chunk(seven, number).stat().st_size) for number in range(7)]


def broken_off(seven: Path, tmp_path: Path, *, copy: bool) -> dict[str, bytes]:
    """A partition over two nodes that ended at chunk 5; returns what one that did not makes."""
    divide(seven, outs(tmp_path / "whole", 2), copy=copy)
    chunk(seven, 5).rename(tmp_path / "kept")
    with pytest.raises(MissingFileError):
        divide(seven, outs(tmp_path, 2), copy=copy)
    (tmp_path / "kept").rename(chunk(seven, 5))
    return files_below(tmp_path / "whole")


@pytest.mark.parametrize("copy", [False, True])
def test_a_partition_that_broke_off_goes_on(seven: Path, tmp_path: Path, copy: bool) -> None:
    """The first share is finished, the second is known as unfinished; the same call ends as if nothing had been."""
    whole = broken_off(seven, tmp_path, copy=copy)
    first, second = outs(tmp_path, 2)
    assert told_by_verify(first) == []
    assert chunks_in(second) == {"00000004.brand"}
    with pytest.raises(NotADataSetError, match="same `brand partition` command"):
        StoredDataSet(second)
    made = divide(seven, [first, second], copy=copy)
    assert [one.ways for one in made] == [{"found": 4}, {"found": 1, "copied" if copy else "linked": 2}]
    assert {f"shares/{name}": data for name, data in files_below(tmp_path / "shares").items()} == whole


def test_an_unfinished_share_is_not_reindexed_or_converted_into(seven: Path, tmp_path: Path) -> None:
    """Neither would make of it what it is to be."""
    broken_off(seven, tmp_path, copy=False)
    second = outs(tmp_path, 2)[1]
    before = files_below(second)
    with pytest.raises(UsageError, match="is a partition"):
        reindex(second)
    with pytest.raises(TargetExistsError):
        brand.pack(SAMPLES, second, SCHEMA, jobs=1)
    assert files_below(second) == before


@pytest.mark.parametrize("left", [(), ("lock",), ("lock", "copy")])
def test_the_leavings_of_a_killed_partition_do_no_harm(seven: Path, tmp_path: Path, left: tuple[str, ...]) -> None:
    """Killed before anything was said, or after the manifest: the same call tidies up."""
    divide(seven, outs(tmp_path / "whole", 2))
    divide(seven, [outs(tmp_path, 2)[0], tmp_path / "elsewhere"])
    for folder in outs(tmp_path, 2):
        (folder / WORK).mkdir(parents=True)
        for name in left:
            (folder / WORK / name).write_bytes(b"half")
    assert told_by_verify(outs(tmp_path, 2)[0]) == []
    divide(seven, outs(tmp_path, 2))
    assert files_below(tmp_path / "shares") == files_below(tmp_path / "whole" / "shares")


def test_a_second_partition_at_the_same_time_is_refused(seven: Path, tmp_path: Path) -> None:
    """The lock is another's; what it has made stays."""
    (tmp_path / "shares" / "0" / WORK).mkdir(parents=True)
    with (tmp_path / "shares" / "0" / WORK / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TargetExistsError, match="right now"):
            divide(seven, outs(tmp_path, 2))
        assert os.listdir(tmp_path / "shares" / "0") == [WORK]
    divide(seven, outs(tmp_path, 2))


def a_file(folder: Path, _: Path) -> None:
    folder.write_text("mine")


def a_link_to_nowhere(folder: Path, _: Path) -> None:
    folder.symlink_to(folder.parent / "nowhere")


def something(folder: Path, _: Path) -> None:
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")


def a_data_set(folder: Path, seven: Path) -> None:
    shutil.copytree(seven, folder)


def another_share(folder: Path, seven: Path) -> None:
    divide(seven, [folder.parent / "other", folder, folder.parent / "third"])


def a_huge_share_file(folder: Path, _: Path) -> None:
    folder.mkdir()
    (folder / "share.json").touch()
    truncate(folder / "share.json", 1 << 40)


TAKEN = [a_file, a_link_to_nowhere, something, a_data_set, another_share, a_huge_share_file]


@pytest.mark.parametrize("prepare", TAKEN)
def test_a_taken_folder_stays_as_it_is(seven: Path, tmp_path: Path, prepare: Callable[[Path, Path], None]) -> None:
    """Nothing is overwritten or mixed, and nothing is written to the others either."""
    (tmp_path / "shares").mkdir()
    first, second = outs(tmp_path, 2)
    prepare(second, seven)
    before = {path: os.lstat(path).st_mtime_ns for path in (tmp_path / "shares").rglob("*")}
    with pytest.raises(TargetExistsError) as caught:
        divide(seven, [first, second])
    assert str(second) in str(caught.value)
    assert "remove" in str(caught.value)
    assert {path: os.lstat(path).st_mtime_ns for path in (tmp_path / "shares").rglob("*")} == before


def test_an_empty_folder_is_a_target_and_so_is_a_link_to_one(seven: Path, tmp_path: Path) -> None:
    """The disk of a node may be mounted there."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "empty").mkdir()
    divide(seven, [tmp_path / "empty", tmp_path / "link"])
    assert told_by_verify(tmp_path / "real") == []


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a", "a"), "named twice"),
        (("a", "./b/../a"), "named twice"),
        (("a", "a/b"), "is inside"),
        (("a/b/c", "a"), "is inside"),
        (("seven.brand/a", "b"), "is inside"),
        (("a", "."), "is inside"),
    ],
)
def test_folders_lie_apart(seven: Path, tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    """One for each node, beside the data set; dots do not hide it."""
    before = files_below(tmp_path)
    with pytest.raises(UsageError, match=message):
        divide(seven, [tmp_path / name for name in names])
    assert files_below(tmp_path) == before


def test_a_data_set_is_not_its_own_share(seven: Path) -> None:
    """It is a finished data set."""
    with pytest.raises(TargetExistsError, match="finished data set"):
        divide(seven, [seven])


@pytest.mark.parametrize(
    ("group_chunks", "most"), [(1, "7 nodes"), (2, "4 groups of 2.*4 nodes"), (7, "at most 1 node,")]
)
def test_more_nodes_than_groups_are_refused(seven: Path, tmp_path: Path, group_chunks: int, most: str) -> None:
    """The message says how many there can be, and with so many it works."""
    groups = -(-7 // group_chunks)
    with pytest.raises(UsageError, match=most):
        divide(seven, outs(tmp_path, groups + 1), group_chunks)
    assert not (tmp_path / "shares").exists()
    assert len(divide(seven, outs(tmp_path, groups), group_chunks)) == groups


@pytest.mark.parametrize(
    ("use", "next_step"),
    [
        (lambda share, out: divide(share, [out]), "Partition the undivided data set"),
        (lambda share, out: unpack(share, out), "Unpack the undivided data set"),
        (lambda share, _: reindex(share), "from another partition"),
    ],
)
def test_what_needs_all_chunks_refuses_a_share(
    seven: Path, tmp_path: Path, use: Callable[[Path, Path], list[PartitionMade] | int], next_step: str
) -> None:
    """The message says what to do instead, and nothing is changed."""
    divide(seven, outs(tmp_path, 2))
    share = outs(tmp_path, 2)[1]
    before = files_below(tmp_path)
    with pytest.raises(UsageError, match=next_step):
        use(share, tmp_path / "out")
    assert files_below(tmp_path) == before


def test_the_index_of_another_share_mends_a_share(seven: Path, tmp_path: Path) -> None:
    """As the refused reindex says."""
    divide(seven, outs(tmp_path, 2), copy=True)
    good, bad = outs(tmp_path, 2)
    before = files_below(bad)
    shutil.rmtree(bad / "index")
    assert told_by_verify(bad) != []
    shutil.copytree(good / "index", bad / "index")
    assert files_below(bad) == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: flip_bit(folder / "index" / "place.npy", 8 * 130),
        lambda folder: flip_bit(folder / "columns" / "label.npy", 8 * 130),
        lambda folder: truncate(chunk(folder, 1), 300),
        lambda folder: chunk(folder, 1).unlink(),
        lambda folder: (folder / "brand.json").unlink(),
    ],
)
def test_a_damaged_data_set_is_not_handed_on(seven: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """Its index is compared with the manifest, its chunks with the index; no share looks finished."""
    damage(seven)
    with pytest.raises(BrandError):
        divide(seven, outs(tmp_path, 1))
    assert not (tmp_path / "shares" / "0" / "brand.json").exists()


def test_companions_are_in_every_share(clips_set: Path, tmp_path: Path) -> None:
    """Real clips with their table."""
    for one in divide(clips_set, outs(tmp_path, 2)):
        assert (one.path / "extras.zip").read_bytes() == (clips_set / "extras.zip").read_bytes()
        assert told_by_verify(one.path) == []
