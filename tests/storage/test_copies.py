"""A file comes into another folder by a link or as a copy, whole or not at all, and its source is never touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from brand.errors import UnreadableError
from brand.storage.maintenance.copies import link_or_copy
from tests.support import Disk

DATA = bytes(range(256)) * 5000


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of more than a megabyte."""
    (tmp_path / "source").write_bytes(DATA)
    return tmp_path / "source"


def test_a_link_is_the_same_file(source: Path, tmp_path: Path) -> None:
    """A second name for its bytes, and nothing is left beside it."""
    assert link_or_copy(source, tmp_path / "target", tmp_path / "spare", copy=False) == "linked"
    assert (tmp_path / "target").samefile(source)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


def test_a_copy_is_another_file_with_the_same_bytes(source: Path, tmp_path: Path) -> None:
    """Nothing is left beside it."""
    assert link_or_copy(source, tmp_path / "target", tmp_path / "spare", copy=True) == "copied"
    assert (tmp_path / "target").read_bytes() == DATA
    assert not (tmp_path / "target").samefile(source)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


def test_on_another_file_system_it_is_a_copy(source: Path, disk: Disk) -> None:
    """Nobody has to say so, and the spare file lies there, too."""
    disk.mount("size=8m")
    assert link_or_copy(source, disk.folder / "target", disk.folder / "spare", copy=False) == "copied"
    assert (disk.folder / "target").read_bytes() == DATA
    assert os.listdir(disk.folder) == ["target"]


def test_a_symbolic_link_gives_the_file_behind_it(source: Path, tmp_path: Path) -> None:
    """A link to the link would lead nowhere from another folder."""
    (tmp_path / "link").symlink_to("source")
    (tmp_path / "out").mkdir()
    assert link_or_copy(tmp_path / "link", tmp_path / "out" / "target", tmp_path / "spare", copy=False) == "linked"
    assert not (tmp_path / "out" / "target").is_symlink()
    assert (tmp_path / "out" / "target").samefile(source)


@pytest.mark.parametrize("copy", [False, True])
def test_what_is_there_is_found(source: Path, tmp_path: Path, copy: bool) -> None:
    """A second time nothing is done."""
    link_or_copy(source, tmp_path / "target", tmp_path / "spare", copy=copy)
    before = (tmp_path / "target").stat()
    assert link_or_copy(source, tmp_path / "target", tmp_path / "spare", copy=copy) == "found"
    assert os.path.samestat((tmp_path / "target").stat(), before)


@pytest.mark.parametrize("copy", [False, True])
def test_a_file_of_another_size_is_replaced(source: Path, tmp_path: Path, copy: bool) -> None:
    """It is not what was put there."""
    (tmp_path / "target").write_bytes(DATA[:-1])
    link_or_copy(source, tmp_path / "target", tmp_path / "spare", copy=copy)
    assert (tmp_path / "target").read_bytes() == DATA


def test_a_copy_takes_the_place_of_a_link_where_copies_are_wanted(source: Path, tmp_path: Path) -> None:
    """The other way round a copy is as good as a link."""
    link_or_copy(source, tmp_path / "target", tmp_path / "spare", copy=False)
    assert link_or_copy(source, tmp_path / "target", tmp_path / "spare", copy=True) == "copied"
    assert not (tmp_path / "target").samefile(source)
    assert link_or_copy(source, tmp_path / "target", tmp_path / "spare", copy=False) == "found"


def test_a_link_that_a_killed_run_left_is_not_written_through(source: Path, tmp_path: Path) -> None:
    """The spare name may still be a name of the source: a copy must not begin by emptying it."""
    os.link(source, tmp_path / "spare")
    assert link_or_copy(source, tmp_path / "target", tmp_path / "spare", copy=True) == "copied"
    assert source.read_bytes() == (tmp_path / "target").read_bytes() == DATA


def test_a_source_that_does_not_come_whole_is_an_error(tmp_path: Path) -> None:
    """Here it says that it has no bytes, and has some; the target does not appear."""
    with pytest.raises(UnreadableError, match="copied whole"):
        link_or_copy(Path("/proc/version"), tmp_path / "target", tmp_path / "spare", copy=True)
    assert not (tmp_path / "target").exists()


def test_a_source_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A folder in its place; it is not the target that is at fault."""
    (tmp_path / "source").mkdir()
    with pytest.raises(UnreadableError) as caught:
        link_or_copy(tmp_path / "source", tmp_path / "target", tmp_path / "spare", copy=True)
    assert caught.value.path == tmp_path / "source"
