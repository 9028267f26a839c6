"""Index and label of each file are those of torchvision's ImageFolder."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from brand.chunker import Options
from brand.chunker.plan.report import StageProgress, silent
from brand.chunker.sources.folders import ScannedFolder, scan_folder
from brand.errors import SourceError, UsageError
from tests.rounds import examples

# Names that sort oddly: '-' < '.' < '/' < '0' < 'A' < 'a' < 'é' < '日', and one name may be the start of another.
NAMES = st.text(alphabet="aAbZ0-_. ~é日\u0301", min_size=1, max_size=4).filter(lambda name: name[0] != ".")
PATHS = st.lists(NAMES, min_size=2, max_size=4).map(tuple)


def image_folder(root: Path) -> tuple[list[str], list[tuple[str, int]]]:
    """Classes and (path, label) of each sample as torchvision 0.x documents them: `find_classes` and `make_dataset`."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    samples = []
    for label, name in enumerate(classes):
        for folder, _, files in sorted(os.walk(root / name, followlinks=True)):
            samples += [(os.path.relpath(os.path.join(folder, file), root), label) for file in sorted(files)]
    return classes, samples


def plant(root: Path, paths: list[tuple[str, ...]]) -> None:
    """Make the files of these paths; one that would need a file to be a folder is passed over."""
    for parts in paths:
        path = root.joinpath(*parts)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * len(parts))
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            continue


def scan(root: Path, *, labels: bool = True, sidecars: bool = False, follow_links: bool = False) -> ScannedFolder:
    """A scan that keeps its lists in a temporary folder until the process ends."""
    work = Path(tempfile.mkdtemp(dir=root.parent))
    options = Options(labels=labels, follow_links=follow_links)
    return scan_folder(root, work, options, sidecars=(".txt", ".lab") if sidecars else (), on_progress=silent)


def found(folder: ScannedFolder) -> list[tuple[str, int]]:
    """(key, label) in index order."""
    labels = folder.listing.entries["label"].tolist()
    return [(folder.listing.key(index), labels[index]) for index in range(len(folder.listing))]


@pytest.mark.slow
@examples(60)
@given(st.lists(PATHS, min_size=1, max_size=14))
@example([("c", "a-b"), ("c", "a", "b"), ("c", "a.b"), ("c", "a0")])
@example([("c", "a", "x"), ("c", "a-b", "x"), ("c", "a", "b", "x"), ("c", "B"), ("c", "b")])
@example([("B", "1"), ("a", "1"), ("é", "1"), ("A", "10"), ("A", "9")])
def test_classes_labels_and_order_are_image_folders(paths: list[tuple[str, ...]]) -> None:
    """For any tree of class folders, index and label of each file are what ImageFolder gives it."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "root"
        plant(root, paths)
        folder = scan(root)
        classes, samples = image_folder(root)
        if any(len(parts) == 2 for parts in paths) or samples:
            assert list(folder.classes or ()) == classes
            assert found(folder) == samples
            assert folder.problems == []


@pytest.mark.slow
@examples(40)
@given(st.lists(st.lists(NAMES, min_size=1, max_size=3).map(tuple), min_size=1, max_size=12))
@example([("a-b",), ("a", "b"), ("a.b",), ("a", "c", "d"), ("Z",)])
def test_without_labels_all_files_come_in_the_order_of_a_sorted_walk(paths: list[tuple[str, ...]]) -> None:
    """`labels=False` takes files at any depth, folders by path and files by name."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "root"
        root.mkdir()
        plant(root, paths)
        folder = scan(root, labels=False)
        walk = [
            os.path.normpath(os.path.join(os.path.relpath(at, root), name))
            for at, _, names in sorted(os.walk(root))
            for name in sorted(names)
        ]
        assert folder.classes is None
        assert found(folder) == [(name, -1) for name in walk]


def test_a_flat_folder_has_no_classes(tmp_path: Path) -> None:
    """Files that lie directly in the folder are samples without labels, in the order of their names."""
    plant(tmp_path / "flat", [("b",), ("a",), ("C",), ("10",), ("9",)])
    folder = scan(tmp_path / "flat")
    assert folder.classes is None
    assert found(folder) == [("10", -1), ("9", -1), ("C", -1), ("a", -1), ("b", -1)]


def test_files_beside_class_folders_are_wrong_use(tmp_path: Path) -> None:
    """It is not guessed whether they are a class of their own: the message says what to do."""
    plant(tmp_path / "mixed", [("stray.png",), ("cats", "1.png")])
    with pytest.raises(UsageError, match=r"stray\.png.*--no-labels"):
        scan(tmp_path / "mixed")
    assert len(scan(tmp_path / "mixed", labels=False).listing) == 2


def test_an_empty_class_folder_keeps_its_number(tmp_path: Path) -> None:
    """Labels of the others do not move, and the folder is remembered."""
    plant(tmp_path / "root", [("a", "1"), ("c", "1")])
    (tmp_path / "root" / "b").mkdir()
    (tmp_path / "root" / "c" / "deep" / "deeper").mkdir(parents=True)
    folder = scan(tmp_path / "root")
    assert folder.classes == ("a", "b", "c")
    assert found(folder) == [("a/1", 0), ("c/1", 2)]
    assert sorted(folder.empty_folders) == ["b", "c/deep/deeper"]


def test_hidden_files_are_ignored_and_counted(tmp_path: Path) -> None:
    """Names with a leading dot and the leavings of file managers are no samples, no classes and no problems."""
    plant(
        tmp_path / "root",
        [("a", "1"), ("a", ".DS_Store"), ("a", "Thumbs.db"), (".git", "x"), ("__MACOSX", "y"), (".hidden",)],
    )
    folder = scan(tmp_path / "root")
    assert folder.classes == ("a",)
    assert found(folder) == [("a/1", 0)]
    assert folder.ignored == 5
    assert folder.problems == []


def test_an_empty_folder_is_a_source_error(tmp_path: Path) -> None:
    """A folder without any file is said to be empty."""
    with pytest.raises(SourceError, match="no files"):
        scan(tmp_path)


def test_the_scan_tells_how_far_it_is(tmp_path: Path) -> None:
    """The last word of a scan is the number of files and their bytes."""
    plant(tmp_path / "root", [("a", "1"), ("a", "b", "2")])
    (tmp_path / "work").mkdir()
    told: list[StageProgress] = []
    scan_folder(tmp_path / "root", tmp_path / "work", Options(), on_progress=told.append)
    assert told[-1] == StageProgress("scan", 2, 2, 5, 5)


def test_the_real_photos_are_in_image_folders_order(photos: Path) -> None:
    """The small real set, too."""
    with tempfile.TemporaryDirectory() as work:
        folder = scan_folder(photos, Path(work), Options(), on_progress=silent)
        classes, samples = image_folder(photos)
        assert list(folder.classes or ()) == classes
        assert found(folder) == samples


@pytest.mark.parametrize(
    ("options", "count", "reader"),
    [
        (Options(), 3, "ImageFolder"),
        (Options(natural_order=True), 5, "timm"),
        (Options(leaf_classes=True), 5, "timm"),
    ],
)
def test_files_that_another_reader_leaves_out_are_counted(
    tmp_path: Path, options: Options, count: int, reader: str
) -> None:
    """A file with such an ending is counted, because later indices differ; so is a file below a class folder."""
    names = ["a/1.JPG", "a/2.gif", "a/3.tif", "b/x/4.png", "b/5.avif", "b/6", "b/7.webp"]
    plant(tmp_path / "in", [tuple(name.split("/")) for name in names])
    (tmp_path / "work").mkdir()
    found = scan_folder(tmp_path / "in", tmp_path / "work", options, images=True, on_progress=silent).noticed
    texts = {fact.what: fact.text for fact in found}
    assert texts.pop("endings_left_out") == (
        f"{count} files have an ending that {reader} leaves out: later indices are not its own"
    )
    deep = "1 file is in a folder below its class folder: --leaf-classes makes the folder that holds a file its class"
    assert texts == ({} if options.leaf_classes else {"deep_folders": deep})


@pytest.mark.parametrize(("labels", "images"), [(False, True), (True, False)])
def test_without_classes_or_images_no_endings_are_counted(tmp_path: Path, labels: bool, images: bool) -> None:
    """Audio, and folders without labels."""
    plant(tmp_path / "in", [("a", "1.gif"), ("b", "x", "2.wav")])
    (tmp_path / "work").mkdir()
    options = Options(labels=labels)
    assert scan_folder(tmp_path / "in", tmp_path / "work", options, images=images, on_progress=silent).noticed == ()
