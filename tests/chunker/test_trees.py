"""Folders of images and audio in a store or in a zip: the data set is that of the folder on this machine."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brand.chunker import Options, convert_audio, convert_from, convert_images, convert_tokens
from brand.chunker.distributed import plan_images, run, seal
from brand.chunker.importers.fields import FieldMapping
from brand.chunker.plan.report import StageProgress
from brand.chunker.sources.objects import ObjectPath, connections
from brand.chunker.sources.trees import FileFacts, ObjectTree, contents
from brand.errors import BrandError, SourceError, UsageError
from brand.formats.constants import MANIFEST_NAME
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.maintenance.unpack import unpack
from tests.chunker.test_importers import FORMATS, SOURCES
from tests.shop import Shop, Speech, shop
from tests.support import brand as command
from tests.support import files_below, running_brand, wait_until
from tests.tools.audiofiles import tone, written
from tests.torch.test_lists import png

PLACES = ("s3", "zip", "zip in s3")


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """A bucket."""
    with shop("s3", tmp_path / "shop", monkeypatch) as opened, connections():
        yield opened


def zipped(folder: Path, to: Path, method: int = zipfile.ZIP_DEFLATED) -> Path:
    """A zip of a folder, which is at its top."""
    with zipfile.ZipFile(to, "w", method) as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder.parent))
    return to


def placed(place: str, s3: Shop, name: str) -> str:
    """The URL or path of a copy of a folder of the bucket."""
    if place == "s3":
        return s3.url(name)
    made = zipped(s3.folder(name), s3.folder(f"{name}.zip"))
    return f"{made}/{name}" if place == "zip" else f"{s3.url(made.name)}/{name}"


def data_set_id(path: Path) -> Any:
    return json.loads((path / MANIFEST_NAME).read_bytes())["id"]


def pictures(folder: Path, *classes: str, count: int = 3) -> Path:
    """A folder of classes."""
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for at in range(count):
            (folder / name / f"{at}.png").write_bytes(png(at + 1, number + 2, at))
    return folder


IMAGES: dict[str, tuple[Callable[[Path], object], Options, dict[str, Any]]] = {
    "classes": (lambda at: pictures(at, "cat", "dog", "b c", "ä"), Options(), {}),
    "one class": (lambda at: pictures(at, "cat"), Options(), {}),
    "no labels": (lambda at: pictures(at, "cat", "dog"), Options(labels=False), {}),
    "flat": (lambda at: pictures(at, "."), Options(), {}),
    "an order of paths": (lambda at: pictures(at, "a/x", "a-b/x", "a/x-y", "a.b"), Options(), {}),
    "natural": (lambda at: pictures(at, "c10", "c2", "c1"), Options(natural_order=True), {}),
    "leaves": (lambda at: pictures(at, "a/x", "a/y", "b/x"), Options(leaf_classes=True), {}),
    "given classes": (lambda at: pictures(at, "a", "b"), Options(classes=("b", "z", "a")), {}),
    "a split": (lambda at: pictures(at, "train/a", "train/b", "test/a"), Options(split="train"), {}),
    "all splits": (lambda at: pictures(at, "train/a", "test/a"), Options(split="all"), {}),
    "hidden": (
        lambda at: (pictures(at, "a", ".hidden", "__MACOSX"), (at / "a" / ".DS_Store").write_bytes(b"")),
        Options(),
        {},
    ),
    "texts": (
        lambda at: (
            pictures(at, "a", "b"),
            (at / "a" / "1.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo "),
            (at / "b" / "0.json").write_text('{"x": [1, 2]}'),
            (at / "b" / "0.txt").write_text("three"),
        ),
        Options(),
        {},
    ),
    "metadata": (
        lambda at: (
            pictures(at, "i"),
            (at / "metadata.csv").write_text("file_name,n\ni/0.png,5\ni/1.png,6\ni/2.png,7\n"),
        ),
        Options(),
        {},
    ),
    "lines": (
        lambda at: (
            pictures(at, "."),
            (at / "metadata.jsonl").write_text("".join(f'{{"file_name": "{n}.png", "t": "x{n}"}}\n' for n in range(3))),
        ),
        Options(),
        {},
    ),
    "masks": (
        lambda at: (
            pictures(at, "i", "m"),
            (at / "metadata.csv").write_text("file_name,mask_file_name\ni/0.png,m/0.png\ni/1.png,m/2.png\n"),
        ),
        Options(),
        {},
    ),
    "odd names": (
        lambda at: [(pictures(at, "a") / "a" / name).write_bytes(png(2, 3, 4)) for name in ("a+b %20#?&=.png",)],
        Options(),
        {},
    ),
    "bad files": (
        lambda at: (
            pictures(at, "a", "b"),
            (at / "a" / "no.png").write_text("text"),
            (at / "a" / "empty.png").write_bytes(b""),
            (at / "b" / "cut.png").write_bytes(png(30, 30, 1)[:60]),
            (at / "b" / "cut.txt").write_text("of a bad file"),
        ),
        Options(skip_errors=True),
        {},
    ),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", IMAGES)
def test_images(s3: Shop, name: str, place: str, tmp_path: Path) -> None:
    """The id of a data set covers its contents, classes and order; the report tells the same, too."""
    make, options, more = IMAGES[name]
    make(s3.folder("set"))
    options = replace(options, jobs=1 if place == "zip" else 2)
    local = convert_images(str(s3.folder("set")), tmp_path / "local", options, **more)
    there = convert_images(placed(place, s3, "set"), tmp_path / "there", options, **more)
    assert data_set_id(tmp_path / "there") == data_set_id(tmp_path / "local")
    assert (there.classes, there.skipped, there.noticed) == (local.classes, local.skipped, local.noticed)
    assert set(local.notes) <= set(there.notes)


def test_a_table_in_the_store(s3: Shop, tmp_path: Path) -> None:
    """`--table URL --key NAME`, also next to a folder of this machine."""
    pictures(s3.folder("set"), ".")
    s3.folder("train.csv").write_text("id,age\n" + "".join(f"{n},{n + 30}\n" for n in range(3)))
    sources: list[tuple[Path | str, Path | str]] = [
        (s3.folder("set"), s3.folder("train.csv")),
        (s3.url("set"), s3.url("train.csv")),
    ]
    sources += [(s3.folder("set"), s3.url("train.csv")), (s3.url("set"), s3.folder("train.csv"))]
    for number, (src, table) in enumerate(sources):
        convert_images(src, tmp_path / str(number), Options(jobs=1), table=table, key="id")
        assert data_set_id(tmp_path / str(number)) == data_set_id(tmp_path / "0")


def wav(seconds: float) -> bytes:
    return written(tone(seconds), "WAV", "PCM_16")


def speech(at: Path) -> Path:
    (at / "a").mkdir(parents=True)
    (at / "b").mkdir()
    for number in range(3):
        (at / "a" / f"{number}.wav").write_bytes(wav(0.5 + number / 10))
    (at / "b" / "x.wav").write_bytes(wav(1.0))
    return at


AUDIO: dict[str, tuple[Callable[[Path], object], str, dict[str, Any]]] = {
    "classes": (speech, "", {}),
    "texts next to files": (lambda at: (speech(at), (at / "a" / "1.lab").write_text("eins")), "", {}),
    "LibriSpeech": (lambda at: (speech(at), (at / "a" / "a.trans.txt").write_text("0 ONE\n1 TWO\n2 THREE\n")), "", {}),
    "a table": (
        lambda at: (speech(at), (at.parent / "t.tsv").write_text("path\ttext\tage\na/0.wav\tnull\t7\nb/x.wav\tx\t8\n")),
        "t.tsv",
        {"columns": ("age",)},
    ),
    "NeMo": (
        lambda at: (
            speech(at),
            (at.parent / "t.jsonl").write_text(
                '{"audio_filepath": "b/x.wav", "offset": 0.2, "duration": 0.3, "text": "a"}\n'
                '{"audio_filepath": "b/x.wav", "offset": 0.5, "duration": 0.3, "text": "b"}\n'
                '{"audio_filepath": "a/0.wav", "text": "c"}\n'
            ),
        ),
        "t.jsonl",
        {},
    ),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", AUDIO)
def test_audio(s3: Shop, name: str, place: str, tmp_path: Path) -> None:
    """Tables and manifests are in the bucket, too."""
    make, table, more = AUDIO[name]
    make(s3.folder("set"))
    options = Options(jobs=1, labels=not table)
    for src, told, target in (
        (str(s3.folder("set")), s3.folder(table), "local"),
        (placed(place, s3, "set"), s3.url(table), "there"),
    ):
        given = {"transcripts": str(told), **more} if table else more
        convert_audio(src, tmp_path / target, options, **given)
    assert data_set_id(tmp_path / "there") == data_set_id(tmp_path / "local")


def test_what_is_restored(s3: Shop, tmp_path: Path) -> None:
    """Texts and empty folders of the source are kept in `extras.zip`."""
    make, _, _ = IMAGES["texts"]
    make(s3.folder("set"))
    (s3.folder("set") / "empty").mkdir()
    for place in ("zip", "zip in s3"):
        target = tmp_path / place.replace(" ", "-")
        convert_images(placed(place, s3, "set"), target, Options(jobs=1))
        unpack(target, tmp_path / f"{target.name}-back")
        assert files_below(tmp_path / f"{target.name}-back") == files_below(s3.folder("set"))
        assert (tmp_path / f"{target.name}-back" / "empty").is_dir()


def test_one_request_for_each_object(s3: Shop, tmp_path: Path) -> None:
    """Neither a query beforehand, nor a second read; texts next to the images are read with them."""
    IMAGES["texts"][0](s3.folder("set"))
    convert_images(Path(s3.url("set")), tmp_path / "set", Options(jobs=1, compression="none"))  # it has lost a slash
    for name in ("a/0.png", "b/2.png"):
        assert set(s3.asked(f"set/{name}")) == {"GET"}
    assert s3.asked("set/").count("HEAD") == 0


def test_objects_that_change(s3: Shop, tmp_path: Path) -> None:
    """An object that vanishes, or is replaced, after it was listed is an error that names it."""
    changed_since = "the file changed while it was being converted"
    changes: tuple[tuple[Callable[[Path], object], str], ...] = (
        (os.unlink, "cannot be read: there is no such object"),
        (lambda path: path.write_bytes(png(3, 3, 9)), changed_since),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), changed_since),
    )
    for number, (change, reason) in enumerate(changes):
        folder = pictures(s3.folder(f"set{number}"), "a", "b")
        with connections():
            tree = ObjectTree(ObjectPath.of(s3.url(folder.name)))
            facts = [tree.facts(f"a/{at}.png") for at in range(3)]
            change(folder / "a" / "1.png")
            files = [file for file in facts if isinstance(file, FileFacts)]
            first, second, third = contents(tree.root, files)
        assert (first, third) == ((folder / "a" / "0.png").read_bytes(), (folder / "a" / "2.png").read_bytes())
        assert isinstance(second, SourceError)
        assert (second.path, second.reason) == ("a/1.png", reason)

    def vanish(progress: StageProgress) -> None:
        if progress.stage == "scan" and progress.total == 6:
            (s3.folder("set") / "b" / "1.png").unlink(missing_ok=True)

    pictures(s3.folder("set"), "a", "b")
    with pytest.raises(SourceError, match=r"^b/1.png: cannot be read: there is no such object"):
        convert_images(s3.url("set"), tmp_path / "out", Options(jobs=1), on_progress=vanish)


def test_what_is_no_folder(s3: Shop, tmp_path: Path) -> None:
    """Each message says what is there, or what to do."""
    pictures(s3.folder("set"), "a")
    zipped(s3.folder("set"), s3.folder("set.zip"))
    with zipfile.ZipFile(s3.folder("outer.zip"), "w") as outer:
        outer.write(s3.folder("set.zip"), "set.zip")
    zipfile.ZipFile(s3.folder("empty.zip"), "w").close()
    s3.folder("none.zip").write_bytes(b"PK no zip")
    local = str(s3.bucket)
    for src, text in {
        "s3://bucket/set/a/1.png": "s3://bucket/set/a/1.png is a file, not a folder",
        "s3://bucket/nothing": "s3://bucket/nothing: there is no such folder, or nothing in it",
        "s3://bucket/nothing.zip": "s3://bucket/nothing.zip: there is no such folder, or nothing in it",
        "s3://other/set": "s3://other/set: cannot be listed: there is no such bucket",
        "s3://bucket": "s3://bucket is a whole bucket: name a folder in it",
        "https://host/set": "https://host/set: a source is read from the disk of this machine. Copy it first",
        f"{local}/set.zip/b": "set.zip/b: there is no such folder, or nothing in it",
        f"{local}/set.zip/set/a/0.png": "set.zip/set/a/0.png is a file, not a folder",
        f"{local}/outer.zip/set.zip": "outer.zip/set.zip is a zip in a zip: unzip the outer one",
        f"{local}/empty.zip": "empty.zip: there is no such folder, or nothing in it",
        f"{local}/none.zip": "none.zip: it is not a whole zip: its list of files, which is at the end, is missing",
        s3.url("none.zip"): "s3://bucket/none.zip: it is not a whole zip",
    }.items():
        with pytest.raises((UsageError, SourceError)) as caught:
            convert_images(src, tmp_path / "out", Options(jobs=1))
        assert text in str(caught.value), src


def test_a_zip_is_no_target_and_no_data_set(s3: Shop, tmp_path: Path) -> None:
    """A data set in a zip is not trained from, and tokens need a file that can be mapped."""
    convert_images(pictures(tmp_path / "photos", "a"), tmp_path / "set.brand", Options(jobs=1))
    made = zipped(tmp_path / "set.brand", tmp_path / "set.zip")
    with pytest.raises(BrandError):
        StoredDataSet(made)
    with pytest.raises(UsageError, match="is a converted data set already"):
        convert_images(made, tmp_path / "out", Options(jobs=1))
    with pytest.raises(UsageError, match=r"set\.zip is in a zip, .*: unzip it, and convert the files"):
        convert_tokens(made, tmp_path / "out", Options(jobs=1))


def files(archive: zipfile.ZipFile) -> None:
    for name in ("a/0.png", "a/1.png", "b/0.png"):
        archive.writestr(name, png(2, 3, len(name)))


def archive(path: Path, more: Callable[[zipfile.ZipFile], object] = files, method: int = zipfile.ZIP_DEFLATED) -> Path:
    """A zip with three images and more."""
    with zipfile.ZipFile(path, "w", method) as made:
        files(made)
        if more is not files:
            more(made)
    return path


def changed(path: Path, change: Callable[[bytearray], object]) -> Path:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    return path


def entry(data: bytearray, number: int = -1) -> int:
    """Return the offset of a file's entry in the directory of a zip."""
    places = [at for at in range(len(data)) if data[at : at + 4] == b"PK\x01\x02"]
    return places[number]


def put(data: bytearray, at: int, value: int, size: int) -> bytearray:
    data[at : at + size] = value.to_bytes(size, "little")
    return data


def moved_to(place: int) -> Callable[[bytearray], object]:
    return lambda data: put(data, entry(data) + 42, place, 4)


def symbolic(made: zipfile.ZipFile) -> None:
    link = zipfile.ZipInfo("a/x.png")
    link.create_system, link.external_attr = 3, 0o120777 << 16
    made.writestr(link, "0.png")


def one_more(made: zipfile.ZipFile) -> None:
    made.writestr("a/x.png", png(40, 40, 5))


def renamed(data: bytearray) -> None:
    data[:] = data.replace(b"x.png", b"\xe9.png")


ODD: dict[str, tuple[Callable[[zipfile.ZipFile], object], Callable[[bytearray], object], str]] = {
    "out": (lambda z: z.writestr("../x.png", b"1"), lambda _: None, "../x.png: the name is not that of a file below"),
    "absolute": (lambda z: z.writestr("/x.png", b"1"), lambda _: None, "/x.png: the name is not that of a file below"),
    "double": (lambda z: z.writestr("a//x.png", b"1"), lambda _: None, "a//x.png: the name is not that of a file"),
    "link": (symbolic, lambda _: None, "a/x.png: a symbolic link: unzip it, and convert the folder"),
    "empty": (lambda z: z.writestr("a/x.png", b""), lambda _: None, "a/x.png: the file is empty"),
    "encrypted": (one_more, lambda d: put(d, entry(d) + 8, 1, 2), "a/x.png: it is encrypted: unzip it"),
    "method": (one_more, lambda d: put(d, entry(d) + 10, 9, 2), "a/x.png: it is compressed with deflate64, which"),
    "name": (one_more, renamed, r"a/\xe9.png: the name is not valid UTF-8: unzip the file with -O ENCODING"),
    "contents": (one_more, lambda d: put(d, d.index(b"x.png") + 60, 0, 8), "a/x.png: cannot be read: its bytes in the"),
    "shorter": (one_more, lambda d: put(d, entry(d) + 24, 50, 4), "a/x.png: cannot be read: its bytes in the zip"),
    "longer": (one_more, lambda d: put(d, entry(d) + 24, 1 << 31, 4), "a/x.png: cannot be read: its bytes in the zip"),
    "packed": (one_more, lambda d: put(d, entry(d) + 20, 50, 4), "a/x.png: cannot be read: its bytes in the zip"),
    "outside": (one_more, lambda d: put(d, entry(d) + 42, 1 << 30, 4), "a/x.png: its place in the zip is that of"),
    "other type": (lambda z: z.writestr("a/x.zip", b"PK\x03\x04"), lambda _: None, "a/x.zip: not an image file"),
}


@pytest.mark.parametrize("where", ["here", "s3"])
@pytest.mark.parametrize("name", ODD)
def test_an_odd_file_of_a_zip(s3: Shop, name: str, where: str, tmp_path: Path) -> None:
    """It is an error that names it, and one that `--on-error skip` leaves out; the others are read."""
    more, change, text = ODD[name]
    made = changed(archive(s3.folder("x.zip"), more), change)
    src = str(made) if where == "here" else s3.url("x.zip")
    with pytest.raises(SourceError) as caught:
        convert_images(src, tmp_path / "out", Options(jobs=1))
    assert str(caught.value).startswith(text)
    report = convert_images(src, tmp_path / "out", Options(jobs=1, skip_errors=True))
    assert (report.samples, report.classes) == (3, ("a", "b"))
    assert [f"{bad.path}: {bad.reason}"[: len(text)] for bad in report.skipped] in ([text], [text.split(". ")[0]])


def test_files_of_one_name_and_one_place(tmp_path: Path) -> None:
    """Which of them is meant is not known: each is a fault. So is a bomb, whose files share their bytes."""
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = archive(tmp_path / "twice.zip", lambda made: made.writestr("a/0.png", png(4, 4, 4)))
    report = convert_images(twice, tmp_path / "twice", Options(jobs=1, skip_errors=True))
    assert [bad.reason for bad in report.skipped] == ["the zip holds several files of this name"]
    for at in (0, 9, 50):
        bomb = changed(archive(tmp_path / "bomb.zip", one_more), moved_to(at))
        report = convert_images(bomb, tmp_path / f"bomb{at}", Options(jobs=1, skip_errors=True))
        assert [bad.path for bad in report.skipped] == ["a/0.png", "a/x.png"]


class _Pipe(io.RawIOBase):
    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.data += data
        return len(data)


def test_kinds_of_zips(tmp_path: Path) -> None:
    """All compressions of Python, zip64, written to a pipe, behind a program, from Windows: one data set."""
    made = [archive(tmp_path / f"{method}.zip", method=method) for method in (0, 8, 12, 14)]
    pipe = _Pipe()
    with zipfile.ZipFile(pipe, "w") as stream:
        files(stream)
    (tmp_path / "pipe.zip").write_bytes(pipe.data)
    (tmp_path / "PROGRAM.ZIP").write_bytes(b"#!/bin/sh\n" * 99 + made[0].read_bytes())
    with zipfile.ZipFile(tmp_path / "large.zip", "w") as large, zipfile.ZipFile(made[0]) as small:
        for name in small.namelist():
            with large.open(zipfile.ZipInfo(name), "w", force_zip64=True) as file:
                file.write(small.read(name))
    with zipfile.ZipFile(tmp_path / "windows.zip", "w") as windows, zipfile.ZipFile(made[0]) as small:
        for name in small.namelist():
            info = zipfile.ZipInfo(name)
            info.filename, info.create_system = name.replace("/", "\\"), 0
            windows.writestr(info, small.read(name))
    with zipfile.ZipFile(tmp_path / "top.zip", "w") as top, zipfile.ZipFile(made[0]) as small:
        for name in small.namelist():
            top.writestr(f"./{name}", small.read(name))
            top.writestr(f"__MACOSX/._{name}", b"x")
    ids = set()
    for path in [
        *made,
        *(tmp_path / name for name in ("pipe.zip", "PROGRAM.ZIP", "large.zip", "windows.zip", "top.zip")),
    ]:
        convert_images(path, tmp_path / "out" / path.stem, Options(jobs=1))
        ids.add(data_set_id(tmp_path / "out" / path.stem))
    with zipfile.ZipFile(made[0]) as plain:
        plain.extractall(tmp_path / "folder")
    convert_images(tmp_path / "folder", tmp_path / "out" / "folder", Options(jobs=1))
    assert ids == {data_set_id(tmp_path / "out" / "folder")}


def test_names_in_utf8_without_a_mark(tmp_path: Path) -> None:
    """Info-ZIP writes the bytes that the file system has."""
    made = archive(tmp_path / "x.zip", one_more, zipfile.ZIP_STORED)
    changed(made, lambda data: data.__setitem__(slice(None), data.replace(b"a/x.png", "a/é.jp".encode())))
    convert_images(made, tmp_path / "out", Options(jobs=1))
    stored = StoredDataSet(tmp_path / "out")
    assert "a/é.jp" in {stored.sample(index)["key"] for index in range(len(stored))}


def test_the_folder_at_the_top_of_a_zip(tmp_path: Path) -> None:
    """If it is alone, its contents are the source, and the report says so; splits in it are refused as in a folder."""
    pictures(tmp_path / "pets", "train/cat", "train/dog", "val/cat")
    made = zipped(tmp_path / "pets", tmp_path / "pets.zip")
    with pytest.raises(UsageError, match=r"pets\.zip/pets holds the splits train, val, .*--split train, --split val"):
        convert_images(made, tmp_path / "out", Options(jobs=1))
    report = convert_images(made, tmp_path / "out", Options(jobs=1, split="train"))
    assert report.classes == ("cat", "dog")
    assert "The files are those of the folder pets/train of the zip" in report.notes
    convert_images(f"{made}/pets/train", tmp_path / "same", Options(jobs=1))
    assert data_set_id(tmp_path / "same") == data_set_id(tmp_path / "out")


@pytest.mark.parametrize("name", [name for name in FORMATS if (SOURCES / name).is_dir()])
def test_data_of_other_tools(s3: Shop, name: str, tmp_path: Path) -> None:
    """Each importer reads a folder of a zip, compressed or not, here and in a bucket, as it reads the folder."""
    kind, source = FORMATS[name][0], SOURCES / name
    convert_from(kind, source, tmp_path / "local", Options(jobs=1))
    for number, method in enumerate((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)):
        made = zipped(source, s3.folder(f"{number}.zip"), method)
        src = f"{made}/{name}" if number else f"{s3.url(made.name)}/{name}"
        convert_from(kind, src, tmp_path / str(number), Options(jobs=1))
        assert data_set_id(tmp_path / str(number)) == data_set_id(tmp_path / "local")


def test_tables_in_a_zip(tmp_path: Path) -> None:
    """A whole zip, a folder, a pattern or one file of it; a damaged file is named."""
    (tmp_path / "t").mkdir()
    for number in range(2):
        rows = "".join(f"{row},a{row}\n" for row in range(2000 * number, 2000 * number + 2000))
        (tmp_path / "t" / f"{number}.csv").write_text(f"n,t\n{rows}")
    made = zipped(tmp_path / "t", tmp_path / "t.zip")
    convert_from("csv", tmp_path / "t", tmp_path / "local", Options(jobs=1))
    for number, inside in enumerate(("", "/t", "/t/*.csv", "/t/{0..1}.csv")):
        convert_from("csv", f"{made}{inside}", tmp_path / str(number), Options(jobs=1))
        assert data_set_id(tmp_path / str(number)) == data_set_id(tmp_path / "local")
    assert convert_from("csv", f"{made}/t/1.csv", tmp_path / "one", Options(jobs=1)).samples == 2000
    changed(made, lambda data: put(data, 3000, 0, 8))
    with pytest.raises(SourceError, match=r"0\.csv: .*damaged"):
        convert_from("csv", f"{made}/t", tmp_path / "bad", Options(jobs=1))
    changed(made, lambda data: put(data, entry(data) + 8, 1, 2))
    with pytest.raises(SourceError, match=r"t\.zip/t/1\.csv: it is encrypted"):
        convert_from("csv", made, tmp_path / "bad", Options(jobs=1))


def test_tasks(s3: Shop, tmp_path: Path) -> None:
    """Several machines convert a bucket or a zip that all of them see."""
    pictures(s3.folder("set"), "a", "b", count=9)
    convert_images(s3.folder("set"), tmp_path / "local", Options(chunk_size=4, jobs=1))
    for place in PLACES:
        target = tmp_path / place.replace(" ", "-")
        job = plan_images(placed(place, s3, "set"), target, Options(chunk_size=4, jobs=1))
        assert sum(run(job, number).samples for number in range(job.chunks)) == 18
        seal(target)
        assert data_set_id(target) == data_set_id(tmp_path / "local")


@pytest.mark.parametrize("place", ["s3", "zip"])
def test_a_conversion_that_is_killed(s3: Shop, place: str, tmp_path: Path) -> None:
    """The same command finds the chunks that were made; if an object was replaced meanwhile, it refuses."""
    pictures(s3.folder("set"), "a", "b", count=400)
    src, target = placed(place, s3, "set"), tmp_path / "there"
    words = ("convert", "images", src, target, "--chunk-size", "2", "-j", "1")
    convert_images(s3.folder("set"), tmp_path / "local", Options(chunk_size=2, jobs=1))
    with running_brand(*words) as process:
        wait_until(lambda: len(list(target.glob("chunks/*"))) > 5, "some chunks")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert not (target / MANIFEST_NAME).exists()
    shutil.copytree(target, tmp_path / "other")
    told = command(*words)
    assert told.code == 0, told.err
    assert "found, from a run that was stopped" in told.out
    assert data_set_id(target) == data_set_id(tmp_path / "local")
    (s3.folder("set") / "a" / "7.png").write_bytes(png(8, 2, 99))
    again = command(*words[:2], placed(place, s3, "set"), tmp_path / "other", *words[4:])
    assert again.code != 0
    assert "of another source" in again.err or "has changed" in again.err, again.err


def test_the_command(s3: Shop, tmp_path: Path) -> None:
    pictures(s3.folder("set"), "a", "b")
    zipped(s3.folder("set"), tmp_path / "set.zip")
    assert "6 samples in 2 classes" in command("convert", "images", s3.url("set"), tmp_path / "1").out
    told = command("convert", "images", tmp_path / "set.zip", tmp_path / "2")
    assert "6 samples in 2 classes" in told.out
    assert "The files are those of the folder set of the zip" in told.out
    assert command("append", "images", s3.url("set"), tmp_path / "grown").code == 0
    choice = FieldMapping(codecs={"images": "list[image]"})
    (s3.folder("set") / "rows.jsonl").write_text('{"images": ["a/0.png", "b/1.png"]}\n')
    zipped(s3.folder("set"), tmp_path / "set.zip")
    convert_from("jsonl", tmp_path / "set.zip" / "set", tmp_path / "3", Options(jobs=1), choice=choice)
    assert len(StoredDataSet(tmp_path / "3").sample(0)["images"]) == 2


@pytest.mark.parametrize("kind", ["gs", "http"])
def test_other_stores(kind: Speech, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A web server has zips, and no lists of files."""
    with shop(kind, tmp_path / "shop", monkeypatch) as opened:
        zipped(pictures(opened.folder("set"), "a", "b c"), opened.folder("set.zip"))
        convert_images(opened.folder("set"), tmp_path / "local", Options(jobs=1))
        sources = ["set.zip", "set.zip/set", *(["set"] if kind == "gs" else [])]
        for number, name in enumerate(sources):
            convert_images(opened.url(name), tmp_path / str(number), Options(jobs=2))
            assert data_set_id(tmp_path / str(number)) == data_set_id(tmp_path / "local")
        if kind == "http":
            with pytest.raises(UsageError, match="Copy it first, for example with `wget --recursive"):
                convert_images(opened.url("set"), tmp_path / "out", Options(jobs=1))
