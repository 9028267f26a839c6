"""Symbolic links: within the folder they are files; out of it, and to folders, with `--follow-links`; loops end."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from brand.chunker import convert_images
from brand.errors import SourceError
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.maintenance.unpack import unpack
from tests.support import brand, options


@pytest.fixture
def folder(photos: Path, tmp_path: Path) -> Path:
    """Two classes with one real picture each, and one outside of the folder."""
    source = tmp_path / "source"
    for place in ("a/1.png", "b/1.png"):
        (source / place).parent.mkdir(parents=True)
        shutil.copy(photos / "tools" / "key.png", source / place)
    (tmp_path / "outside").mkdir()
    shutil.copy(photos / "documents" / "page.png", tmp_path / "outside" / "page.png")
    return source


def keys(target: Path) -> list[str]:
    """Keys in index order."""
    stored = StoredDataSet(target)
    return [stored.sample(index)["key"] for index in range(len(stored))]


def test_a_link_to_a_file_inside_is_a_file(folder: Path, tmp_path: Path) -> None:
    """It is a sample of its own, with the bytes it leads to."""
    (folder / "a" / "2.png").symlink_to("../b/1.png")
    convert_images(folder, tmp_path / "set", options())
    assert keys(tmp_path / "set") == ["a/1.png", "a/2.png", "b/1.png"]
    unpack(tmp_path / "set", tmp_path / "back")
    assert (tmp_path / "back" / "a" / "2.png").read_bytes() == (folder / "b" / "1.png").read_bytes()


@pytest.mark.parametrize("relative", [True, False])
def test_a_link_out_of_the_folder_is_followed_only_when_told(folder: Path, tmp_path: Path, relative: bool) -> None:
    """Otherwise it is a problem that names where it leads and the option."""
    goal = tmp_path / "outside" / "page.png"
    (folder / "a" / "2.png").symlink_to(Path("../../outside/page.png") if relative else goal)
    with pytest.raises(SourceError, match=r"a/2\.png.*out of the folder.*page\.png.*--follow-links"):
        convert_images(folder, tmp_path / "set", options())
    report = convert_images(folder, tmp_path / "skipped", options(skip_errors=True))
    assert [problem.path for problem in report.skipped] == ["a/2.png"]
    convert_images(folder, tmp_path / "followed", options(follow_links=True))
    assert keys(tmp_path / "followed") == ["a/1.png", "a/2.png", "b/1.png"]


def test_a_link_to_a_folder_is_followed_only_when_told(folder: Path, tmp_path: Path) -> None:
    """Inside a class: a problem, or a folder as any other."""
    (folder / "a" / "more").symlink_to(tmp_path / "outside")
    with pytest.raises(SourceError, match=r"a/more.*--follow-links"):
        convert_images(folder, tmp_path / "set", options())
    convert_images(folder, tmp_path / "followed", options(follow_links=True))
    assert keys(tmp_path / "followed") == ["a/1.png", "a/more/page.png", "b/1.png"]


def test_a_class_folder_that_is_a_link_is_followed_only_when_told(folder: Path, tmp_path: Path) -> None:
    """The message speaks of the link and of `--follow-links`; with it, the link is a class."""
    (folder / "c").symlink_to(tmp_path / "outside")
    told = brand("convert", "images", folder, tmp_path / "set")
    assert told.code in (1, 2)
    assert "--follow-links" in told.err, told.err
    convert_images(folder, tmp_path / "followed", options(follow_links=True))
    assert StoredDataSet(tmp_path / "followed").header.classes == ("a", "b", "c")
    assert keys(tmp_path / "followed") == ["a/1.png", "b/1.png", "c/page.png"]


@pytest.mark.parametrize("goal", [".", "..", "../a", "../../source/a"])
def test_a_loop_ends_and_is_named(folder: Path, tmp_path: Path, goal: str) -> None:
    """With `--follow-links`, a link to a folder above itself is a problem and not an endless walk."""
    (folder / "a" / "loop").symlink_to(goal)
    report = convert_images(folder, tmp_path / "set", options(follow_links=True, skip_errors=True))
    assert report.skipped
    assert all("loop" in problem.path and "folder above" in problem.reason for problem in report.skipped)
    assert {"a/1.png", "b/1.png"} <= set(keys(tmp_path / "set"))


@pytest.mark.parametrize("follow", [True, False])
def test_links_that_lead_to_each_other_are_a_problem(folder: Path, tmp_path: Path, follow: bool) -> None:
    """`x -> y -> x` cannot be read, whatever is followed."""
    (folder / "a" / "x").symlink_to("y")
    (folder / "a" / "y").symlink_to("x")
    report = convert_images(folder, tmp_path / "set", options(follow_links=follow, skip_errors=True))
    assert [problem.path for problem in report.skipped] == ["a/x", "a/y"]


def test_two_links_to_one_folder_are_two_folders(folder: Path, tmp_path: Path) -> None:
    """Only a loop is refused, not a folder that is met twice."""
    for name in ("one", "two"):
        (folder / "a" / name).symlink_to(tmp_path / "outside")
    convert_images(folder, tmp_path / "set", options(follow_links=True))
    assert keys(tmp_path / "set") == ["a/1.png", "a/one/page.png", "a/two/page.png", "b/1.png"]


def test_the_source_itself_may_be_a_link(folder: Path, tmp_path: Path) -> None:
    """Links inside it are inside."""
    (folder / "a" / "2.png").symlink_to(folder / "b" / "1.png")
    (tmp_path / "link").symlink_to(folder)
    convert_images(tmp_path / "link", tmp_path / "set", options())
    assert keys(tmp_path / "set") == ["a/1.png", "a/2.png", "b/1.png"]
