"""The storage refuses or the target is taken: a clear error, nothing half-published, and the same command goes on."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from brand.chunker import convert_images
from brand.errors import NotADataSetError, TargetExistsError, UsageError
from brand.storage.dataset.dataset import StoredDataSet
from tests.support import Disk, Outcome, brand, brand_process, files_below, options, tree_digest


def assert_refused(told: Outcome, target: Path, *words: str) -> None:
    """Exit code 1 with a message for people, and nothing that reads as a data set."""
    assert told.code == 1, (told.code, told.err)
    assert all(word in told.err for word in words), told.err
    assert "Traceback" not in told.err
    assert "Errno" not in told.err
    with pytest.raises(NotADataSetError):
        StoredDataSet(target)


@pytest.mark.slow
@pytest.mark.parametrize("kilobytes", [4, 40, 600, 768, 784, 800])
def test_a_full_disk_is_a_clear_error_and_with_space_it_goes_on(
    photos: Path, tmp_path: Path, disk: Disk, kilobytes: int
) -> None:
    """Full while listing, before the first chunk, while chunks are written, or while the index is: all the same."""
    disk.mount(f"size={kilobytes}k")
    target = disk.folder / "set"
    command = ("convert", "images", photos, target, "--chunk-size", 4, "-j", 2)
    assert_refused(brand_process(*command), target, "ree some space", "same command again")
    disk.mount("remount", "size=8m")
    assert brand_process(*command).code == 0
    convert_images(photos, tmp_path / "whole", options(4))
    assert tree_digest(target) == tree_digest(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("kilobytes", [208, 216, 224])
def test_a_disk_that_fills_up_under_a_mapped_file_is_no_bus_error(fashion: Path, disk: Disk, kilobytes: int) -> None:
    """Lists and order of 3,000 files take about 220 kB: full in the middle of them is a message and not a signal."""
    disk.mount(f"size={kilobytes}k")
    target = disk.folder / "set"
    told = brand_process("convert", "images", fashion / "train", target, "-j", 1)
    assert_refused(told, target, "ree some space")


@pytest.mark.slow
@pytest.mark.parametrize("kilobytes", [8, 104, 124, 136, 148])
def test_a_disk_that_fills_up_while_samples_are_spooled_is_a_clear_error(
    tmp_path: Path, disk: Disk, repository: Path, kilobytes: int
) -> None:
    """`brand.pack` of a generator: StorageError, not a bus error, in any of its steps."""
    disk.mount(f"size={kilobytes}k")
    code = (
        "import sys, brand\n"
        "from brand.errors import StorageError\n"
        "try:\n"
        "    brand.pack(({'n': n, 's': 'x' * 20} for n in range(2000)), sys.argv[1],"
        " {'n': 'int', 's': 'str'}, jobs=1, compression='none')\n"
        "except StorageError as error:\n"
        "    sys.exit(f'storage: {error}')\n"
    )
    target = disk.folder / "set"
    done = subprocess.run([sys.executable, "-c", code, str(target)], capture_output=True, text=True, check=False)
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert done.stderr.startswith("storage: ")
    assert not (target / "brand.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("limit", [2_000, 10_000, 60_000])
def test_a_limit_on_file_sizes_is_a_clear_error(photos: Path, tmp_path: Path, limit: int) -> None:
    """`ulimit -f`: no chunk is published that could not be written whole, and without the limit it goes on."""
    target = tmp_path / "set"
    command = ("convert", "images", photos, target, "--chunk-size", 4, "-j", 2)
    told = brand_process(
        *command, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    )
    assert_refused(told, target, "larger than allowed")
    assert brand(*command).code == 0
    convert_images(photos, tmp_path / "whole", options(4))
    assert tree_digest(target) == tree_digest(tmp_path / "whole")


def test_a_read_only_target_is_a_clear_error(photos: Path, disk: Disk) -> None:
    """The message names the target and says read-only."""
    disk.mount("size=1m,ro")
    target = disk.folder / "set"
    told = brand("convert", "images", photos, target)
    assert told.code == 1
    assert "read-only" in told.err
    assert str(target) in told.err
    assert "Errno" not in told.err


@pytest.mark.slow
def test_too_few_open_files_is_a_clear_error_or_none_at_all(fashion: Path, tmp_path: Path) -> None:
    """With `ulimit -n 40` files cannot be read 64 at a time: no traceback, and nothing wrong is written."""
    target = tmp_path / "set"
    told = brand_process(
        "convert",
        "images",
        fashion / "test",
        target,
        "-j",
        1,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40)),
    )
    assert "Traceback" not in told.err
    if told.code:
        assert "open files" in told.err
        assert brand("convert", "images", fashion / "test", target, "-j", 1).code == 0
    convert_images(fashion / "test", tmp_path / "whole", options())
    assert tree_digest(target) == tree_digest(tmp_path / "whole")


def test_a_part_of_the_path_that_is_a_file_is_a_clear_error(photos: Path, tmp_path: Path) -> None:
    """`file/set` cannot be made."""
    (tmp_path / "file").write_text("")
    told = brand("convert", "images", photos, tmp_path / "file" / "set")
    assert told.code in (1, 2)
    assert "file, not a folder" in told.err
    assert "Traceback" not in told.err


def test_folders_above_the_target_are_made(photos: Path, tmp_path: Path) -> None:
    """As `mkdir -p` does."""
    convert_images(photos, tmp_path / "a" / "b" / "set", options())
    assert len(StoredDataSet(tmp_path / "a" / "b" / "set")) == 31


@pytest.mark.parametrize("kind", ["file", "folder", "data set", "link to nowhere", "link to a file"])
def test_a_taken_target_is_wrong_use_and_stays_as_it_is(
    photos: Path, photos_set: Path, tmp_path: Path, kind: str
) -> None:
    """Nothing is overwritten, mixed or removed."""
    target = tmp_path / "set"
    if kind == "file":
        target.write_text("mine")
    elif kind == "folder":
        target.mkdir()
        (target / "mine.txt").write_text("mine")
    elif kind == "data set":
        shutil.copytree(photos_set, target)
    else:
        target.symlink_to(tmp_path / "file")
        if kind == "link to a file":
            (tmp_path / "file").write_text("mine")
    before = files_below(tmp_path)
    told = brand("convert", "images", photos, target)
    assert told.code == 2
    assert str(target) in told.err
    assert "remove it" in told.err or "empty it" in told.err
    assert files_below(tmp_path) == before
    with pytest.raises(TargetExistsError):
        convert_images(photos, target)


def test_an_empty_folder_is_a_target(photos: Path, tmp_path: Path) -> None:
    """It is used; so is a link to one."""
    (tmp_path / "set").mkdir()
    convert_images(photos, tmp_path / "set", options())
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    convert_images(photos, tmp_path / "link", options())
    assert tree_digest(tmp_path / "set") == tree_digest(tmp_path / "real")


@pytest.mark.parametrize("below", ["set", "tools/set", "."])
def test_a_target_inside_the_source_is_wrong_use(photos: Path, tmp_path: Path, below: str) -> None:
    """It would become part of what is converted; links and dots do not hide it."""
    source = tmp_path / "source"
    shutil.copytree(photos, source)
    before = tree_digest(source)
    (tmp_path / "link").symlink_to(source)
    for target in (source / below, tmp_path / "link" / below, source / "tools" / ".." / below):
        with pytest.raises(UsageError, match="inside"):
            convert_images(source, target, options())
    assert tree_digest(source) == before


def test_a_source_inside_the_target_is_wrong_use(photos: Path, tmp_path: Path) -> None:
    """The target is not empty then."""
    shutil.copytree(photos, tmp_path / "set" / "source")
    with pytest.raises(TargetExistsError):
        convert_images(tmp_path / "set" / "source", tmp_path / "set", options())


def test_a_dry_run_checks_the_target_and_touches_nothing(photos: Path, photos_set: Path, tmp_path: Path) -> None:
    """It says what the conversion would say, and leaves the target as it is."""
    told = brand("convert", "images", photos, tmp_path / "new" / "set", "--dry-run")
    assert told.code == 0
    assert list(tmp_path.iterdir()) == []
    before = tree_digest(photos_set)
    assert brand("convert", "images", photos, photos_set, "--dry-run").code == 2
    assert tree_digest(photos_set) == before
