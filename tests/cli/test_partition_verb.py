"""`brand partition`: what it says, what the other verbs say of a share, and that a stop at any moment does no harm."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from brand.chunker import convert_images
from brand.cli.output import size
from brand.storage.dataset.dataset import StoredDataSet
from tests.cli.test_terminal import on_terminal, plain
from tests.support import (
    Disk,
    Outcome,
    brand,
    brand_process,
    options,
    running_brand,
    tree_digest,
    wait_until,
)


@pytest.fixture
def shares(photos_set: Path, tmp_path: Path) -> Path:
    """The photos over three nodes: chunks 0 and 1, chunk 2, chunk 3."""
    assert brand("partition", photos_set, "--nodes", 3, tmp_path / "shares" / "{node}").code == 0
    return tmp_path / "shares"


def assert_refused(told: Outcome, code: int, *words: str) -> None:
    """A message for people, and these words in it."""
    assert told.code == code, (told.code, told.err)
    assert all(word in told.err for word in words), told.err
    assert "Traceback" not in told.err
    assert "Errno" not in told.err


def test_partition_says_what_it_made(photos_set: Path, tmp_path: Path) -> None:
    """Each share with its chunks, samples and bytes, and how it was made; progress goes to stderr in plain lines."""
    told = brand("partition", photos_set, "--nodes", 3, tmp_path / "{node}")
    assert told.code == 0
    assert "31 samples in 4 chunks are now in 3 partitions\n" in told.out
    held = [size(sum(path.stat().st_size for path in (tmp_path / f"{node}/chunks").iterdir())) for node in range(3)]
    assert f"  node 0: chunks 0 to 1 (16 samples, {held[0]}) in {tmp_path / '0'}, linked\n" in told.out
    assert f"  node 2: chunk 3 (7 samples, {held[2]}) in {tmp_path / '2'}, linked\n" in told.out
    assert f"`brand verify {tmp_path / '0'}`" in told.out
    assert "no more space" in told.out
    assert "partition: 4 of 4 (100 %)" in told.err
    again = brand("partition", photos_set, "--nodes", 3, tmp_path / "{node}", "--copy")
    assert f"in {tmp_path / '0'}, copied\n" in again.out
    assert "no more space" not in again.out


def test_a_folder_can_be_named_for_each_node(photos_set: Path, tmp_path: Path) -> None:
    """In their order; the braces in a name are then nothing special."""
    folders = [tmp_path / "b", tmp_path / "{node}", tmp_path / "a"]
    assert brand("partition", photos_set, *folders, "--nodes", 3).code == 0
    shares = [StoredDataSet(folder).share for folder in folders]
    assert [share.node for share in shares if share is not None] == [0, 1, 2]


def test_partition_as_json(photos_set: Path, tmp_path: Path) -> None:
    """stdout holds the result and nothing else, stderr nothing."""
    command = ("partition", photos_set, "--nodes", 2, "--group-chunks", 3, tmp_path / "{node}", "--json")
    told = brand(*command)
    assert (told.code, told.err) == (0, "")
    sizes = [(photos_set / f"chunks/{number:08d}.brand").stat().st_size for number in range(4)]
    assert told.json == {
        "path": str(photos_set),
        "nodes": 2,
        "group_chunks": 3,
        "partitions": [
            {
                "path": str(tmp_path / "0"), "node": 0, "first_chunk": 0, "last_chunk": 2, "samples": 24,
                "bytes": sum(sizes[:3]), "linked": 3, "copied": 0, "found": 0,
            },
            {
                "path": str(tmp_path / "1"), "node": 1, "first_chunk": 3, "last_chunk": 3, "samples": 7,
                "bytes": sizes[3], "linked": 1, "copied": 0, "found": 0,
            },
        ],
    }  # fmt: skip
    assert [share["found"] for share in brand(*command).json["partitions"]] == [3, 1]


def test_groups_larger_than_the_data_set_are_one_group(photos_set: Path, tmp_path: Path) -> None:
    """However large the number is."""
    told = brand("partition", photos_set, "--nodes", 1, "--group-chunks", 10**30, tmp_path / "all")
    assert told.code == 0
    assert brand("verify", tmp_path / "all").code == 0


def test_info_shows_the_share(shares: Path) -> None:
    """For people, and as JSON."""
    told = brand("info", shares / "1").out
    assert "partition    1 of 3, counted from 0: chunk 2, 8 samples" in told
    assert brand("info", shares / "1", "--json").json["partition"]["first_chunk"] == 2


def test_verify_says_that_a_share_is_whole(shares: Path) -> None:
    """And counts what it has; progress ends at 100 %."""
    told = brand("verify", shares / "0")
    assert told.code == 0
    assert "0 is partition 0 of 3 and whole: 16 samples in 2 chunks" in told.out
    assert "verify: 16 of 16 (100 %)" in told.err


def test_verify_tells_a_damaged_share_file(shares: Path) -> None:
    """Exit code 1 and the file's name."""
    (shares / "0" / "share.json").write_text("{}")
    assert_refused(brand("verify", shares / "0"), 1, "share.json", "brand partition")


def test_cat_of_a_sample_that_is_elsewhere_says_where(shares: Path) -> None:
    """Exit code 1, chunk, sample, node and the next step; as JSON with the error's name."""
    data_set = StoredDataSet(shares / "0")
    index = int(data_set.indices(np.array([30]))[0])
    assert brand("cat", shares / "2", index).code == 0
    told = brand("cat", shares / "0", index)
    assert_refused(told, 1, f"chunk 3, sample {index}", "partition of node 2", "undivided data set")
    assert brand("cat", shares / "0", index, "--json").json["error"]["type"] == "ElsewhereError"


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("unpack", ("partition 1 of 3", "undivided")),
        ("reindex", ("is a partition", "another partition")),
        ("partition", ("partition 1 of 3", "undivided")),
        ("convert", ("finished data set", "another target")),
    ],
)
def test_verbs_that_cannot_use_a_share_say_so(
    shares: Path, photos: Path, tmp_path: Path, verb: str, words: tuple[str, ...]
) -> None:
    """Wrong use, with what to do instead; the share stays as it is."""
    share = shares / "1"
    before = tree_digest(share)
    args: dict[str, tuple[object, ...]] = {
        "unpack": ("unpack", share, tmp_path / "out"),
        "reindex": ("reindex", share),
        "partition": ("partition", share, "--nodes", 1, tmp_path / "out"),
        "convert": ("convert", "images", photos, share),
    }
    assert_refused(brand(*args[verb]), 2, str(share), *words)
    assert tree_digest(share) == before
    assert not (tmp_path / "out").exists()


def test_more_nodes_than_chunks_are_wrong_use(photos_set: Path, tmp_path: Path) -> None:
    """The message says how many there can be."""
    told = brand("partition", photos_set, "--nodes", 5, tmp_path / "{node}")
    assert_refused(told, 2, "4 chunks", "at most 4 nodes, not over 5")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("source", ["nowhere", "unfinished"])
def test_only_a_finished_data_set_is_divided(photos_set: Path, tmp_path: Path, source: str) -> None:
    """Nothing is written."""
    shutil.copytree(photos_set, tmp_path / "unfinished")
    (tmp_path / "unfinished" / "brand.json").unlink()
    told = brand("partition", tmp_path / source, "--nodes", 2, tmp_path / "out" / "{node}")
    assert_refused(told, 1, str(tmp_path / source))
    assert not (tmp_path / "out").exists()


def test_an_unfinished_share_is_explained(shares: Path) -> None:
    """By every verb that reads: run the same command again."""
    (shares / "0" / "brand.json").unlink()
    for verb, more in (("info", ()), ("verify", ()), ("cat", (0,)), ("unpack", (shares / "out",))):
        assert_refused(brand(verb, shares / "0", *more), 1, "not finished", "same `brand partition` command again")


@pytest.mark.slow
def test_a_bar_is_shown_on_a_terminal(photos_set: Path, tmp_path: Path) -> None:
    """One line with counts that ends at 100 %; the result follows."""
    code, seen = on_terminal("partition", photos_set, "--nodes", 2, tmp_path / "{node}")
    assert code == 0
    told = plain(seen)
    assert "partition" in told
    assert "100 %" in told
    assert "4 of 4" in told
    assert told.rindex("4 of 4") < told.index("are now in 2 partitions")


def test_a_read_only_target_is_a_clear_error(photos_set: Path, tmp_path: Path, disk: Disk) -> None:
    """The message names the folder and says read-only."""
    disk.mount("size=1m,ro")
    told = brand("partition", photos_set, "--nodes", 2, tmp_path / "0", disk.folder / "1")
    assert_refused(told, 1, str(disk.folder / "1"), "read-only")


@pytest.mark.slow
@pytest.mark.parametrize("kilobytes", [4, 12, 40, 300, 560])
def test_a_full_disk_is_a_clear_error_and_with_space_it_goes_on(
    photos_set: Path, tmp_path: Path, disk: Disk, kilobytes: int
) -> None:
    """Full before the index, within it, or while chunks are copied: all the same, and no share looks finished."""
    disk.mount(f"size={kilobytes}k")
    command = ("partition", photos_set, "--nodes", 1, disk.folder / "share")
    assert_refused(brand_process(*command), 1, "no space left", "ree some space", "same command again")
    assert brand("info", disk.folder / "share").code == 1
    disk.mount("remount", "size=8m")
    told = brand(*command)
    assert told.code == 0, told.err
    assert brand("partition", photos_set, "--nodes", 1, tmp_path / "whole").code == 0
    assert tree_digest(disk.folder / "share") == tree_digest(tmp_path / "whole")


@pytest.mark.slow
def test_a_limit_on_file_sizes_is_a_clear_error(photos_set: Path, tmp_path: Path) -> None:
    """`ulimit -f`: a chunk that cannot be copied whole does not appear, and without the limit it goes on."""
    command = ("partition", photos_set, "--nodes", 1, tmp_path / "share", "--copy")
    told = brand_process(
        *command, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
    )
    assert_refused(told, 1, "larger than allowed")
    assert list((tmp_path / "share" / "chunks").iterdir()) == []
    assert brand(*command).code == 0
    assert brand("verify", tmp_path / "share").code == 0


@pytest.fixture(scope="module")
def many(fashion: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3,000 real pictures in 750 chunks."""
    target = tmp_path_factory.mktemp("many") / "set"
    convert_images(fashion / "train", target, options(4, jobs=2))
    return target


@pytest.fixture(scope="module")
def whole(many: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """The shares of three nodes, as a command that nothing stops writes them."""
    out = tmp_path_factory.mktemp("whole")
    assert brand("partition", many, "--nodes", 3, "--copy", "--group-chunks", 2, out / "{node}").code == 0
    return [tree_digest(out / str(node)) for node in range(3)]


def held(folder: Path) -> int:
    """Chunks of a share that are there."""
    return len(os.listdir(folder / "chunks")) if (folder / "chunks").exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("node", "moment", "stop"),
    [(0, 0, signal.SIGINT), (0, 100, signal.SIGKILL), (1, 1, signal.SIGKILL), (2, 200, signal.SIGINT)],
)
def test_stopped_at_any_moment_it_goes_on(
    many: Path, whole: list[dict[str, str]], tmp_path: Path, node: int, moment: int, stop: int
) -> None:
    """What looks finished is whole, what is not says so, and the same command ends as if nothing had been."""
    command = ("partition", str(many), "--nodes", "3", "--copy", "--group-chunks", "2", str(tmp_path / "{node}"))
    with running_brand(*command) as process:
        wait_until(lambda: (tmp_path / str(node)).exists() and held(tmp_path / str(node)) >= moment, "chunks")
        os.kill(process.pid, stop)
        code = process.wait()
    assert code in (-signal.SIGKILL, 130, 0)  # 0: it was faster
    for folder in (path for path in tmp_path.iterdir() if path.name.isdigit()):
        if (folder / "brand.json").exists():
            assert brand("verify", folder).code == 0
        elif (folder / "share.json").exists():
            assert_refused(brand("info", folder), 1, "same `brand partition` command again")
    done = brand(*command)
    assert done.code == 0, done.err
    assert [tree_digest(tmp_path / str(number)) for number in range(3)] == whole


@pytest.mark.slow
def test_a_share_that_is_copied_to_its_node_is_whole(many: Path, tmp_path: Path) -> None:
    """With `cp -r`, as any data set; the undivided one may be gone then."""
    shutil.copytree(many, tmp_path / "set")
    assert brand("partition", tmp_path / "set", "--nodes", 2, tmp_path / "{node}").code == 0
    subprocess.run(["cp", "-r", str(tmp_path / "1"), str(tmp_path / "node")], check=True)
    shutil.rmtree(tmp_path / "set")
    assert brand("verify", tmp_path / "node", "--json").json["errors"] == []
