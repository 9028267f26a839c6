"""Sources in a store: each importer reads a URL as a stream, and makes the same data set as from a folder."""

from __future__ import annotations

import io
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brand.chunker import Options, convert_from
from brand.chunker.importers.fields import FieldMapping
from brand.chunker.sources.objects import LARGE_BLOCK, SMALL_BLOCK, ObjectPath, connections
from brand.errors import SourceError, UsageError
from brand.formats.constants import MANIFEST_NAME
from brand.stores.opening import open_store
from tests.chunker.test_importers import FORMATS, SOURCES
from tests.shop import SPEECHES, Shop, Speech, shop
from tests.support import brand as run
from tests.tools.objects import Fault, Faults, Reset, WrongETag
from tests.torch.test_lists import png

STREAMED = [name for name in FORMATS if name != "hf"]
PATTERNS = {
    "webdataset": ["/part-{000..001}.tar", "/*.tar", ""],
    "jsonl": ["/{0..1}.jsonl", "/[01].jsonl", ""],
    "csv": ["/{0..1}.csv", "/?.csv", ""],
}


@pytest.fixture(params=SPEECHES)
def at(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """A bucket with the sources of all importers."""
    speech: Speech = request.param
    with shop(speech, tmp_path / "shop", monkeypatch) as opened:
        for name in ("webdataset", "parquet", "mds", "mds-zstd", "litdata", "litdata-zstd", "litdata-rows"):
            shutil.copytree(SOURCES / name, opened.folder(name))
        for number in range(2):
            for name, line in (("jsonl", '{{"n": {0}, "t": "a{0}"}}\n'), ("csv", "{0},a{0}\n")):
                opened.folder(name).mkdir(exist_ok=True)
                head = "n,t\n" if name == "csv" else ""
                text = head + "".join(line.format(row) for row in range(number * 200, number * 200 + 200))
                (opened.folder(name) / f"{number}.{name}").write_text(text)
        yield opened


def data_set_id(path: Path) -> Any:
    return json.loads((path / MANIFEST_NAME).read_bytes())["id"]


def same_as_from_the_folder(at: Shop, kind: str, name: str, pattern: str, tmp_path: Path, jobs: int) -> None:
    """The chunks are those of a conversion of the folder: the id of a data set covers its contents."""
    options = Options(chunk_size=5, jobs=jobs)
    convert_from(kind, str(at.folder(name)) + pattern, tmp_path / "local", options)
    convert_from(kind, at.url(name) + pattern, tmp_path / "streamed", options)
    assert data_set_id(tmp_path / "streamed") == data_set_id(tmp_path / "local")


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMED)
def test_a_folder(at: Shop, name: str, tmp_path: Path) -> None:
    kind = FORMATS[name][0]
    if at.speech == "http" and name in ("webdataset", "parquet"):
        with pytest.raises(UsageError, match=r"a web server does not list files: name them, as .*\.tar"):
            convert_from(kind, at.url(name), tmp_path / "set")
        return
    same_as_from_the_folder(at, kind, name, "", tmp_path, jobs=1 if at.speech == "gs" else 2)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "number"), [(kind, n) for kind in ("webdataset", "jsonl", "csv") for n in range(3)])
def test_a_pattern(at: Shop, kind: str, number: int, tmp_path: Path) -> None:
    pattern = PATTERNS[kind][number]
    if (at.speech == "http" and "{" not in pattern) or "?" in pattern:  # which may begin a secret
        with pytest.raises(UsageError, match=r"does not list files|must not hold a query"):
            convert_from(kind, at.url(kind) + pattern, tmp_path / "set")
        return
    same_as_from_the_folder(at, kind, kind, pattern, tmp_path, jobs=2)


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """A bucket."""
    with shop("s3", tmp_path / "shop", monkeypatch) as opened, connections():
        yield opened


def test_what_is_not_there(s3: Shop, tmp_path: Path) -> None:
    """The message names the object, or what to give."""
    shutil.copytree(SOURCES / "webdataset", s3.folder("tars"))
    (s3.folder("empty")).mkdir()
    for src, text in {
        "s3://bucket/tars/part-{000..004}.tar": "tars/part-003.tar: there is no such object, and 1 other of",
        "s3://bucket/tars/none-*.tar": "there is no object that matches it",
        "s3://bucket/nothing": "there is no tar file in this folder. Their names end with .tar",
        "s3://bucket/*.tar": "s3://bucket is a whole bucket: name a folder in it",
        "s3://other/tars": "cannot be listed",
        "s3://bucket/tars/part-000.tar?x=1": "must not hold a query",
    }.items():
        with pytest.raises((SourceError, UsageError)) as caught:
            convert_from("webdataset", src, tmp_path / "set", Options(jobs=1))
        assert text in str(caught.value), src


def test_a_hidden_object_is_no_source(s3: Shop, tmp_path: Path) -> None:
    shutil.copytree(SOURCES / "webdataset", s3.folder("tars"))
    (s3.folder("tars") / ".tmp").mkdir()
    (s3.folder("tars") / ".tmp" / "x.tar").write_bytes(b"no tar")
    assert convert_from("webdataset", "s3://bucket/tars", tmp_path / "set", Options(jobs=1)).samples == 12


def test_connections_that_break(s3: Shop, tmp_path: Path) -> None:
    """Each third read is cut; the data set is that of the folder."""
    rows = "".join(f'{{"n": {n}, "t": "{random.Random(n).randbytes(200).hex()}"}}\n' for n in range(9000))
    s3.folder("rows").mkdir()
    (s3.folder("rows") / "0.jsonl").write_text(rows)
    s3.store.faults = Faults(Fault(Reset(after=100_000), "GET", share=0.3), seed=3)
    convert_from("jsonl", str(s3.folder("rows")), tmp_path / "local", Options(jobs=1))
    convert_from("jsonl", "s3://bucket/rows", tmp_path / "streamed", Options(jobs=1))
    assert data_set_id(tmp_path / "streamed") == data_set_id(tmp_path / "local")


def test_an_object_that_is_replaced(s3: Shop, tmp_path: Path) -> None:
    """Never a mixture: between two reads of a conversion it is an error; the next conversion has all new bytes."""
    s3.folder("rows").mkdir()
    file = s3.folder("rows") / "0.jsonl"

    def convert(text: str) -> Any:
        file.write_text("".join(f'{{"n": {n}, "t": "{text * 4000}"}}\n' for n in range(LARGE_BLOCK // 10_000)))
        convert_from("jsonl", s3.url("rows"), tmp_path / text, Options(jobs=1))
        return data_set_id(tmp_path / text)

    old = convert("old")
    s3.store.faults = Faults(Fault(WrongETag(), "GET", "bucket/rows/*", only=range(2, 100)))
    with pytest.raises(SourceError, match=r"0\.jsonl.*replaced"):
        convert("other")
    s3.store.faults = Faults()
    assert convert("new") != old


def test_the_file_of_an_object(s3: Shop) -> None:
    """Any reads and jumps give the bytes of the object; a read to the end sends few requests."""
    data = random.Random(1).randbytes(3 * LARGE_BLOCK + 12345)
    (s3.bucket / "folder").mkdir()
    (s3.bucket / "folder" / "object.bin").write_bytes(data)
    path = ObjectPath.of("s3://bucket/folder") / "object.bin"
    assert (path.name, path.suffix, path.suffixes, str(path.parent)) == (
        "object.bin",
        ".bin",
        [".bin"],
        "s3://bucket/folder",
    )
    assert path.is_file()
    assert not (path.parent / "other").exists()
    assert path.read_bytes() == data
    before = len(s3.asked("object.bin"))
    with path.open() as file:
        assert file.read() == data
    assert len(s3.asked("object.bin")) - before <= 12
    choose = random.Random(2)
    with path.open() as file:
        for _ in range(60):
            at, size = choose.randrange(len(data) + 10), choose.choice([1, 100, SMALL_BLOCK, 2 * SMALL_BLOCK + 3])
            file.seek(at)
            assert file.tell() == at
            assert file.read(size) == data[at : at + size]
        file.seek(-10, io.SEEK_END)
        assert file.read() == data[-10:]


def test_a_process_that_has_used_a_store(s3: Shop, tmp_path: Path) -> None:
    """Its forked workers must not use a store themselves."""
    shutil.copytree(SOURCES / "webdataset", s3.folder("tars"))
    open_store("s3://bucket/tars").read("part-000.tar", 1 << 20)
    assert convert_from("webdataset", "s3://bucket/tars", tmp_path / "set", Options(jobs=2)).samples == 12


def test_the_command(s3: Shop, tmp_path: Path) -> None:
    """Braces are the command's, not those of the shell."""
    shutil.copytree(SOURCES / "webdataset", s3.folder("tars"))
    told = run("convert", "webdataset", "s3://bucket/tars/part-{000..001}.tar", tmp_path / "set")
    assert told.code == 0, told.err
    assert "10 samples" in told.out


def test_lines_that_name_images_in_the_store(s3: Shop, tmp_path: Path) -> None:
    """Names are paths below the folder of the lines, there, too; an object that is missing is a bad line."""
    folder = s3.folder("documents")
    (folder / "img").mkdir(parents=True)
    for at in range(3):
        (folder / "img" / f"{at}.png").write_bytes(png(at + 1, 2, at))
    rows = [{"images": [f"img/{at}.png" for at in range(row % 4)]} for row in range(6)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    choice = FieldMapping(codecs={"images": "list[image]"})
    for src, target in ((str(folder), "local"), (s3.url("documents"), "streamed")):
        convert_from("jsonl", src, tmp_path / target, Options(jobs=1), choice=choice)
    assert data_set_id(tmp_path / "streamed") == data_set_id(tmp_path / "local")
    (folder / "img" / "2.png").unlink()
    with pytest.raises(SourceError, match=r"line 4: s3://bucket/documents/img/2.png: .*no such"):
        convert_from("jsonl", s3.url("documents"), tmp_path / "set", Options(jobs=1), choice=choice)
