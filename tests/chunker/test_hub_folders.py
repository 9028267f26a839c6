"""Folders of the Hub are read as streams: the samples, ids and refusals of a local folder."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from brand.storage.dataset.dataset import StoredDataSet
from tests.hubserver import COMMIT, HubServer, hub_with
from tests.support import Outcome, brand

np = pytest.importorskip("numpy")
soundfile = pytest.importorskip("soundfile")
URL = "hf://datasets/owner/name"


def png(value: int) -> bytes:
    """A small image."""
    file = io.BytesIO()
    Image.new("RGB", (3, 2), (value, 0, 0)).save(file, "PNG")
    return file.getvalue()


def wav(count: int) -> bytes:
    """A short recording."""
    file = io.BytesIO()
    soundfile.write(file, np.zeros(count), 8000, format="WAV")
    return file.getvalue()


def tar(names: tuple[str, ...]) -> bytes:
    """A shard of texts."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in names:
            info = tarfile.TarInfo(f"{name}.txt")
            info.size = len(name)
            archive.addfile(info, io.BytesIO(name.encode()))
    return file.getvalue()


FILES = {
    "README.md": b"# A data set",
    ".gitattributes": b"x",
    "pics/train/cat/a b.png": png(1),
    "pics/train/cat/50%.png": png(2),
    "pics/train/dog/\u00e4+#.png": png(3),
    "pics/train/dog/deep/4.png": png(4),
    "pics/test/cat/5.png": png(5),
    "flat/1.png": png(6),
    "flat/2.png": png(7),
    "flat/metadata.csv": b"file_name,n\n1.png,10\n2.png,20\n",
    "sound/a.wav": wav(800),
    "sound/a.txt": b"one",
    "sound/b.wav": wav(1600),
    "sound/b.txt": b"two",
    "rows/en.csv": b"a,b\n1,x\n2,y\n",
    "rows/de.csv": b"a,b\n3,z\n",
    "lines/train.jsonl": b'{"a": 1}\n{"a": 2}\n',
    "tars/000.tar": tar(("p", "q")),
    "tars/001.tar": tar(("r",)),
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """The Hub of this process and of those that it starts."""
    with hub_with(FILES, str(tmp_path / "cache"), monkeypatch) as found:
        yield found


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A clone."""
    for name, data in FILES.items():
        (tmp_path / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "clone" / name).write_bytes(data)
    return tmp_path / "clone"


def converted(kind: str, source: object, target: Path, *more: object) -> Outcome:
    """Convert a source."""
    return brand("convert", kind, source, target, "--seed", 1, *more)


def samples(target: Path) -> list[dict[str, Any]]:
    """The samples of a data set, by index."""
    stored = StoredDataSet(target)
    return [stored.sample(index) for index in range(len(stored))]


CONVERSIONS = [
    ("images", "/pics/train", (), 4),
    ("audio", "/sound", (), 2),
    ("webdataset", "/tars/{000..001}.tar", (), 3),
    pytest.param("images", "/pics", ("--split", "test"), 1, marks=pytest.mark.slow),
    pytest.param("images", "/flat", (), 2, marks=pytest.mark.slow),
    pytest.param("images", "/pics", ("--split", "all", "--no-labels"), 5, marks=pytest.mark.slow),
    pytest.param("csv", "/rows", ("--split", "all"), 3, marks=pytest.mark.slow),
    pytest.param("csv", "/rows/d*.csv", (), 1, marks=pytest.mark.slow),
    pytest.param("jsonl", "/lines/train.jsonl", (), 2, marks=pytest.mark.slow),
    pytest.param("webdataset", "/tars", (), 3, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("kind", "below", "more", "count"), CONVERSIONS)
def test_samples_are_those_of_a_clone(
    kind: str, below: str, more: tuple[str, ...], count: int, server: HubServer, local: Path, tmp_path: Path
) -> None:
    """With their ids and labels; the files that are not converted are not read."""
    told = converted(kind, URL + below, tmp_path / "hub", *more, "-j", 1)
    assert told.code == 0, told.err
    assert converted(kind, f"{local}{below}", tmp_path / "local", *more, "-j", 1).code == 0
    assert samples(tmp_path / "hub") == samples(tmp_path / "local")
    assert len(samples(tmp_path / "hub")) == count
    assert StoredDataSet(tmp_path / "hub").classes == StoredDataSet(tmp_path / "local").classes
    folder = below.strip("/").partition("/")[0]
    assert all(name.startswith(f"{folder}/") for name in server.sent if name != "README.md")


@pytest.mark.slow
def test_the_whole_repository_and_a_revision(server: HubServer, local: Path, tmp_path: Path) -> None:
    """The commit itself is a revision, too."""
    for number, revision in enumerate(("", "@main", f"@{COMMIT}")):
        told = converted("webdataset", f"{URL}{revision}", tmp_path / str(number), "--split", "all", "-j", 1)
        assert told.code == 0, told.err
        assert len(samples(tmp_path / str(number))) == 3


def test_worker_processes_read_the_commit_of_their_parent(server: HubServer, local: Path, tmp_path: Path) -> None:
    """Two processes decode and read."""
    told = converted("images", f"{URL}/pics/train", tmp_path / "hub", "-j", 2, "--validate")
    assert told.code == 0, told.err
    assert converted("images", local / "pics/train", tmp_path / "local").code == 0
    assert samples(tmp_path / "hub") == samples(tmp_path / "local")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "below", "says"),
    [
        ("images", "/pics", "holds the splits test, train"),
        ("images", "/nothing", "there is no such folder"),
        ("images", "/flat/1.png", "is a file, not a folder"),
        ("csv", "/pics", "there is no CSV file in this folder"),
        ("csv", "", "--split flat, --split rows"),
        ("csv", "/rows/x*.csv", "there is no object that matches it"),
        ("tokens", "/tars", "a source is read from the disk of this machine"),
    ],
)
def test_a_source_that_is_refused(kind: str, below: str, says: str, server: HubServer, tmp_path: Path) -> None:
    """As a folder in a bucket."""
    told = converted(kind, URL + below, tmp_path / "set")
    assert (told.code in (1, 2), says in told.err) == (True, True), told.err


def test_a_data_set_that_the_hub_does_not_know(server: HubServer, tmp_path: Path) -> None:
    """Is named, in a short message."""
    told = converted("images", "hf://datasets/owner/other/x", tmp_path / "set")
    assert told.code == 2
    assert "hf://datasets/owner/other: it is not on the Hub, or the Hub does not answer" in told.err


@pytest.mark.slow
def test_append_takes_the_folder(server: HubServer, local: Path, tmp_path: Path) -> None:
    """Its samples follow those of the clone."""
    for source in (local / "pics/train", f"{URL}/pics/test"):
        told = brand("append", "images", source, tmp_path / "set", "--no-labels", "-j", 1)
        assert told.code == 0, told.err
    assert len(samples(tmp_path / "set")) == 5


@pytest.mark.slow
def test_another_commit_meanwhile_does_not_mix(server: HubServer, tmp_path: Path) -> None:
    """The same command converts the files of the new commit, and says nothing of the old one."""
    assert converted("images", f"{URL}/pics/test", tmp_path / "one", "-j", 1).code == 0
    server.commit, server.files = "beef" * 10, server.files | {"pics/test/cat/5.png": png(50)}
    assert converted("images", f"{URL}/pics/test", tmp_path / "two", "-j", 1).code == 0
    images = [samples(tmp_path / name)[0]["image"] for name in ("one", "two")]
    assert images == [png(5), png(50)]
