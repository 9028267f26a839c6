"""Sources that are broken, incomplete or mixed end in an error that names file and sample, and says what to do."""

from __future__ import annotations

import io
import json
import re
import shutil
import struct
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from brand.storage.dataset.dataset import StoredDataSet
from tests.chunker.test_importers import SOURCES
from tests.support import Outcome, brand

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
WAV = b"RIFF\0\0\0\0WAVE" + bytes(20)


def tar_of(files: dict[str, bytes] | list[tuple[str, bytes]]) -> bytes:
    """An archive of these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in files.items() if isinstance(files, dict) else files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def imported(kind: str, src: Path, target: Path, *more: str) -> Outcome:
    """The command in this process."""
    return brand("convert", kind, src, target, "-j", 1, *more)


def samples_of(target: Path) -> list[dict[str, Any]]:
    stored = StoredDataSet(target)
    return [dict(stored.sample(i)) for i in range(len(stored))]


WHOLE = tar_of({"a.png": PNG, "a.cls": b"1", "b.png": PNG, "b.cls": b"2", "c.png": PNG, "c.cls": b"3"})


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (WHOLE[:2048], "x.tar: it ends without the mark of its end: it is truncated"),
        (WHOLE[:2052], "x.tar: a header in it is damaged: it is truncated"),
        (WHOLE[:530], "x.tar: it is truncated within 'a.png'"),
        (WHOLE[:1024] + b"?" * 512 + WHOLE[1536:], "x.tar: a header in it is damaged"),
        (b"", "x.tar: it ends without the mark of its end"),
        (b"no tar at all" * 100, "x.tar: a header in it is damaged"),
        (bytes(10240), "hold no samples"),
        (tar_of({"README": b"x", ".hidden.png": PNG}), "hold no samples"),
        (tar_of({"a.png": PNG, "a.cls": b"one"}), "x.tar: sample 'a', field 'label': expected int, found str ('one')"),
        (
            tar_of({"a.png": WAV}),
            "x.tar: sample 'a', field 'image' (image): not an image file: its contents are audio/wav",
        ),
        (tar_of({"a.png": b"<html>404</html>"}), "its contents are text. --field NAME=CODEC stores"),
        (tar_of({"a.json": b"{1}"}), "x.tar: sample 'a': field 'json' (json): Expecting property name"),
        (tar_of({"a.npy": b"no array"}), "x.tar: sample 'a': field 'npy' (ndarray):"),
        (tar_of([("a.txt", b"x"), ("a.txt", b"y")]), "x.tar: sample 'a' has two files .txt: it was written twice"),
        (
            tar_of({"a.png": PNG, "a.cls": b"1", "b.png": PNG}),
            "sample 'b': it has no file for the field 'label', which other samples have. --null label=VALUE replaces",
        ),
    ],
)
def test_a_broken_tar_file_names_the_sample(data: bytes, says: str, tmp_path: Path) -> None:
    """And nothing is left behind."""
    (tmp_path / "x.tar").write_bytes(data)
    told = imported("webdataset", tmp_path / "x.tar", tmp_path / "set")
    assert told.code == 1
    assert says in told.err
    assert not (tmp_path / "set").exists()


SPECIAL = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE]


@pytest.mark.parametrize("kind", SPECIAL)
def test_a_link_in_a_tar_file_is_one_bad_sample(kind: bytes, tmp_path: Path) -> None:
    """Its contents are elsewhere. The other samples of the archive are read, and the message names the link."""
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name in ("a.txt", "b.txt", "c.txt"):
            member = tarfile.TarInfo(name)
            if name == "b.txt":
                member.type, member.linkname = kind, "a.txt"
                tar.addfile(member)
            else:
                member.size = 1
                tar.addfile(member, io.BytesIO(name[:1].encode()))
    told = imported("webdataset", tmp_path / "x.tar", tmp_path / "set").err
    assert "x.tar: sample 'b': its file .txt is a link or a special file, which has no contents in the archive" in told
    assert imported("webdataset", tmp_path / "x.tar", tmp_path / "set", "--on-error", "skip").code == 0
    assert [sample["text"] for sample in samples_of(tmp_path / "set")] == ["a", "c"]
    assert "x.tar, sample 'b'\tits file .txt is a link" in (tmp_path / "set" / "skipped.tsv").read_text()


def test_an_archive_is_made_again_without_links_as_the_message_says(tmp_path: Path) -> None:
    """Symbolic and hard links, with the options of the message."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "a.txt").write_text("a")
    (folder / "b.txt").symlink_to("a.txt")
    (folder / "c.txt").hardlink_to(folder / "a.txt")
    names = ["a.txt", "b.txt", "c.txt"]
    subprocess.run(["tar", "-cf", tmp_path / "x.tar", "-C", folder, *names], check=True)
    told = imported("webdataset", tmp_path / "x.tar", tmp_path / "set").err
    options = re.search(r"tar (--[\w-]+ --[\w-]+) makes an archive without links", told)
    assert options is not None, told
    subprocess.run(["tar", *options[1].split(), "-cf", tmp_path / "x.tar", "-C", folder, *names], check=True)
    assert imported("webdataset", tmp_path / "x.tar", tmp_path / "set").code == 0
    assert [sample["text"] for sample in samples_of(tmp_path / "set")] == ["a", "a", "a"]


def test_a_link_without_an_ending_is_no_sample(tmp_path: Path) -> None:
    """As a folder: it is not a file that could be one."""
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        link = tarfile.TarInfo("latest")
        link.type, link.linkname = tarfile.SYMTYPE, "a"
        tar.addfile(link)
    (tmp_path / "x.tar").write_bytes((tmp_path / "x.tar").read_bytes() + WHOLE)
    assert imported("webdataset", tmp_path / "x.tar", tmp_path / "set").code == 0
    assert len(samples_of(tmp_path / "set")) == 3


@pytest.mark.parametrize("kind", ["png", "wav"])
def test_an_empty_file_in_a_tar_is_refused(kind: str, tmp_path: Path) -> None:
    """No decoder opens 0 bytes."""
    whole = {"png": PNG, "wav": WAV}[kind]
    (tmp_path / "x.tar").write_bytes(tar_of({f"a.{kind}": whole, f"b.{kind}": b"", f"c.{kind}": whole}))
    told = imported("webdataset", tmp_path / "x.tar", tmp_path / "set")
    assert told.code == 1
    assert "x.tar: sample 'b', field" in told.err
    assert "its contents are empty" in told.err
    told = imported("webdataset", tmp_path / "x.tar", tmp_path / "set", "--on-error", "skip")
    assert (told.code, len(samples_of(tmp_path / "set"))) == (0, 2)


def test_names_with_dots_that_make_one_sample_are_told_with_a_count(tmp_path: Path) -> None:
    """As webdataset cuts names, so that the user sees it before the training."""
    pictures = {f"photo.{day}-{n}.txt": b"x" for n in range(5) for day in ("mon", "tue")}
    (tmp_path / "x.tar").write_bytes(tar_of(pictures))
    told = imported("webdataset", tmp_path / "x.tar", tmp_path / "set")
    assert told.code == 0
    assert len(samples_of(tmp_path / "set")) == 1
    assert "10 files such as photo.mon-0.txt and photo.tue-0.txt are one sample 'photo'" in told.out
    (tmp_path / "y.tar").write_bytes(tar_of({name.replace(".", "-", 1): data for name, data in pictures.items()}))
    told = imported("webdataset", tmp_path / "y.tar", tmp_path / "cured")
    assert (told.code, len(samples_of(tmp_path / "cured"))) == (0, 10)
    assert "first dot" not in told.out


def test_a_damaged_array_in_a_tar_is_one_bad_sample(tmp_path: Path) -> None:
    """Its head is Python, so NumPy raises SyntaxError and others for it."""
    buffer = io.BytesIO()
    np.save(buffer, np.arange(3))
    whole, files = buffer.getvalue(), dict[str, bytes]()
    for at in range(len(whole)):
        files[f"{at:04d}.npy"] = whole[:at] + b"(" + whole[at + 1 :]
    (tmp_path / "x.tar").write_bytes(tar_of({"whole.npy": whole, **files}))
    told = imported("webdataset", tmp_path / "x.tar", tmp_path / "set", "--on-error", "skip")
    assert told.code == 0, told.err
    assert samples_of(tmp_path / "set")[0]["npy"].tolist() == [0, 1, 2]


def test_archives_behind_each_other_are_read_to_the_end(tmp_path: Path) -> None:
    """As `cat a.tar b.tar` makes them: no sample is lost."""
    (tmp_path / "x.tar").write_bytes(WHOLE + tar_of({"d.png": PNG, "d.cls": b"4"}))
    assert imported("webdataset", tmp_path / "x.tar", tmp_path / "set").code == 0
    assert [sample["label"] for sample in samples_of(tmp_path / "set")] == [1, 2, 3, 4]


def test_missing_files_are_filled_or_left_out(tmp_path: Path) -> None:
    """As the message says."""
    (tmp_path / "x.tar").write_bytes(
        tar_of({"a.txt": b"A", "a.cls": b"1", "b.txt": b"B", "c.txt": b"C", "c.cls": b"3"})
    )
    assert imported("webdataset", tmp_path / "x.tar", tmp_path / "filled", "--null", "label=-1").code == 0
    assert [sample["label"] for sample in samples_of(tmp_path / "filled")] == [1, -1, 3]
    assert imported("webdataset", tmp_path / "x.tar", tmp_path / "few", "--columns", "text").code == 0
    assert [sample["text"] for sample in samples_of(tmp_path / "few")] == ["A", "B", "C"]
    told = imported("webdataset", tmp_path / "x.tar", tmp_path / "skipped", "--on-error", "skip")
    assert "1 sample cannot be used; all are listed in" in told.out
    assert [sample["text"] for sample in samples_of(tmp_path / "skipped")] == ["A", "C"]
    rows = (tmp_path / "skipped" / "skipped.tsv").read_text().splitlines()
    assert rows[1] == "x.tar, sample 'b'\tit has no file for the field 'label', which other samples have"


def test_a_file_that_the_first_samples_have_not_is_refused(tmp_path: Path) -> None:
    """It would be lost; `--columns` says that this is meant."""
    many = {f"{n:03d}.txt": b"x" for n in range(70)}
    (tmp_path / "x.tar").write_bytes(tar_of(many | {"070.txt": b"x", "070.cls": b"1"}))
    told = imported("webdataset", tmp_path / "x.tar", tmp_path / "set")
    assert (
        "sample '070': it has a file .cls, and the first samples have none. --columns text,key reads no others"
        in told.err
    )
    assert imported("webdataset", tmp_path / "x.tar", tmp_path / "set", "--columns", "text,key").code == 0


def test_endings_of_one_kind_are_one_field_and_two_in_a_sample_are_two(tmp_path: Path) -> None:
    """`image` holds .jpg and .PNG; two pictures of a sample have the names of their endings."""
    (tmp_path / "x.tar").write_bytes(tar_of({"a.png": PNG, "b.jpg": b"\xff\xd8\xff" + bytes(20), "c.PNG": PNG}))
    assert imported("webdataset", tmp_path / "x.tar", tmp_path / "one").code == 0
    assert StoredDataSet(tmp_path / "one").header.schema.names == ("image", "key")
    (tmp_path / "y.tar").write_bytes(tar_of({"a.left.png": PNG, "a.right.png": PNG, "a.png": PNG, "a.webp": PNG}))
    assert imported("webdataset", tmp_path / "y.tar", tmp_path / "two").code == 0
    assert StoredDataSet(tmp_path / "two").header.schema.names == ("left_png", "right_png", "png", "webp", "key")


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("jsonl", '{"a": 1}\n{"a": }\n', "x.jsonl: line 2: it is no JSON"),
        ("jsonl", '{"a": 1}\n\n[1]\n', "x.jsonl: line 3: it holds a list, and a sample is an object"),
        (
            "jsonl",
            '{"a": 1}\n{"a": 2, "b": 3}\n',
            "field 'b': expected int, found NoneType (None); for a missing number give a",
        ),
        ("jsonl", '{"a": 1}\n{"a": null}\n', "x.jsonl: line 2, field 'a': expected int, found NoneType"),
        ("jsonl", '{"a": 1}\n{}\n', "--null a=VALUE replaces each missing value"),
        (
            "jsonl",
            '{"a": "x"}\n{"a": 1}\n',
            "'a' is str in x.jsonl, line 1, and int in x.jsonl, line 2: give --field a=json",
        ),
        ("jsonl", '{"a": null}\n', "column 'a' has no values in the rows that were read"),
        ("jsonl", '{"a": 1e400, "b": NaN}\n{"a": [NaN], "b": 1}\n', "'a' is float in x.jsonl, line 1, and json"),
        ("jsonl", "\n\n", "there are no samples: every file is empty"),
        ("csv", "a,b\n1,2\n3\n", "x.csv: line 3: it has 1 cell, and the header has 2 columns"),
        ("csv", "a,b\n1,2\n,4\n", "x.csv: line 3, field 'a': expected int, found NoneType"),
        ("csv", "a,a\n1,2\n", "two columns have the name 'a'"),
        ("csv", 'a,b\n1,"2\n', "x.csv: line 2: a quote that opens in it is not closed properly"),
        ("csv", "", "x.csv: the file is empty"),
        ("csv", "a,b\n", "there are none: every shard is empty"),
        ("csv", "index,b c,b_c\n1,2,3\n", "columns 'b c' and 'b_c' would both be field 'b_c'"),
    ],
)
def test_a_broken_text_names_the_line(kind: str, text: str, says: str, tmp_path: Path) -> None:
    """With the cure."""
    (tmp_path / f"x.{kind}").write_text(text)
    told = imported(kind, tmp_path, tmp_path.parent / f"{tmp_path.name}-set")
    assert told.code in (1, 2)
    assert says in told.err


def test_text_in_another_encoding_names_the_line(tmp_path: Path) -> None:
    """With the command that converts it."""
    (tmp_path / "x.csv").write_bytes("a,b\nx,Ärger\n".encode("latin1"))
    told = imported("csv", tmp_path / "x.csv", tmp_path / "set")
    assert "x.csv: line 2: it is not UTF-8" in told.err
    assert "iconv -f latin1" in told.err
    (tmp_path / "x.jsonl").write_bytes(b'{"a": "x"}\n{"a": "\xc4"}\n')
    assert "line 2: it is not UTF-8" in imported("jsonl", tmp_path / "x.jsonl", tmp_path / "set").err


def test_a_text_late_in_a_column_of_numbers_is_named_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the cure works."""
    monkeypatch.setattr("brand.chunker.importers.csvfiles.ROWS_LOOKED_AT", 2)
    (tmp_path / "x.csv").write_text("n;x\n1;a\n2;b\nnone;c\n")
    told = imported("csv", tmp_path / "x.csv", tmp_path / "set")
    assert "x.csv: line 4: field 'n': expected int, as in the first rows, found str ('none')" in told.err
    assert "--field n=str" in told.err
    assert imported("csv", tmp_path / "x.csv", tmp_path / "set", "--field", "n=str").code == 0
    assert [sample["n"] for sample in samples_of(tmp_path / "set")] == ["1", "2", "none"]


def test_files_with_other_columns_are_named(tmp_path: Path) -> None:
    """Another order is no other columns."""
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "a.csv").write_text("n,x\n1,a\n")
    (tmp_path / "csv" / "b.csv").write_text("x,n\nb,2\n")
    assert imported("csv", tmp_path / "csv", tmp_path / "set").code == 0
    assert [sample["n"] for sample in samples_of(tmp_path / "set")] == [1, 2]
    (tmp_path / "csv" / "c.csv").write_text("n,y\n1,a\n")
    told = imported("csv", tmp_path / "csv", tmp_path / "other")
    assert "c.csv: its columns are not those of a.csv: it has 'y', it lacks 'x'" in told.err


def copied(kind: str, folder: Path) -> Path:
    """A copy of a source."""
    folder.mkdir()
    for path in (SOURCES / kind).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def change_index(folder: Path, change: Callable[[Any], None]) -> None:
    path = folder / "index.json"
    told = json.loads(path.read_text())
    change(told)
    path.write_text(json.dumps(told))


def _set(where: list[Any], value: Any) -> Callable[[Any], None]:
    def change(told: Any) -> None:
        for key in where[:-1]:
            told = told[key]
        told[where[-1]] = value

    return change


@pytest.mark.parametrize(
    ("kind", "change", "says"),
    [
        (
            "mds",
            _set(["shards", 1, "samples"], 4),
            "shard.00001.mds: it states 5 samples, and the index 4",
        ),
        (
            "mds",
            _set(["shards", 1, "raw_data", "bytes"], 9),
            "shard.00001.mds: it has 3,841 bytes, and index.json says 9",
        ),
        (
            "mds",
            _set(["shards", 0, "raw_data", "basename"], "../x"),
            "names the file '../x', which is not in the folder",
        ),
        ("mds", _set(["shards", 0, "raw_data", "basename"], "none.mds"), "none.mds: cannot be read: No such file"),
        (
            "mds",
            _set(["shards", 1, "column_names", 0], "id"),
            "shard.00001.mds: its columns are not those of shard.00000",
        ),
        ("mds", _set(["shards"], []), "it lists no shards"),
        ("mds", _set(["shards", 0], {}), "it is not an index of MDS shards"),
        ("litdata", _set(["chunks", 1, "chunk_size"], 4), "chunk-0-1.bin: it states 5 samples"),
        ("litdata", _set(["config", "encryption"], {"algorithm": "fernet"}), "the chunks are encrypted"),
        ("litdata", _set(["config", "item_loader"], "ParquetLoader"), "`brand convert parquet` reads them"),
        (
            "litdata",
            _set(["config", "data_format", 8], "pickle"),
            "'tokens' has the format 'pickle', which is a pickle",
        ),
        ("litdata", _set(["config", "compression"], "zstd"), "its compressed bytes are damaged"),
        ("litdata", _set(["chunks"], []), "it lists no chunks"),
    ],
)
def test_a_folder_whose_index_says_something_else_is_named(
    kind: str, change: Callable[[Any], None], says: str, tmp_path: Path
) -> None:
    """The file at fault, or the column."""
    folder = copied(kind, tmp_path / "source")
    change_index(folder, change)
    told = imported(kind, folder, tmp_path / "set")
    assert told.code in (1, 2)
    assert says in told.err, told.err


def test_columns_leave_out_what_cannot_be_read(tmp_path: Path) -> None:
    """A pickle is never read; the other columns of its shards are."""
    folder = copied("mds", tmp_path / "source")

    def pickled(told: Any) -> None:
        for shard in told["shards"]:
            shard["column_encodings"][shard["column_names"].index("facts")] = "pkl"

    change_index(folder, pickled)
    told = imported("mds", folder, tmp_path / "set")
    assert "column 'facts' has the encoding 'pkl', which is a pickle, and reading one can run any program" in told.err
    assert imported("mds", folder, tmp_path / "set", "--columns", "key,image,label").code == 0


@pytest.mark.parametrize("kind", ["mds", "mds-zstd", "litdata", "litdata-zstd", "litdata-rows", "parquet", "hf"])
def test_files_cut_short_are_named(kind: str, tmp_path: Path) -> None:
    """At half, and by one byte."""
    folder = copied(kind, tmp_path / "source")
    victim = sorted(p for p in folder.iterdir() if p.suffix != ".json")[1]
    data = victim.read_bytes()
    for size in (len(data) // 2, len(data) - 1, 0):
        victim.write_bytes(data[:size])
        told = imported(kind.partition("-")[0], folder, tmp_path / f"set-{size}")
        if kind == "hf" and size == len(data) - 1:
            continue  # the end mark of a stream may be missing
        assert told.code == 1, (size, told.out)
        assert victim.name in told.err
        assert "Traceback" not in told.err


def test_a_bare_folder_and_a_missing_one(tmp_path: Path) -> None:
    """Each format says what it looks for."""
    (tmp_path / "empty").mkdir()
    for kind, says in {
        "webdataset": "there is no tar file in this folder. Their names end with .tar",
        "parquet": "there is no Parquet file",
        "mds": "index.json: there is no such file",
        "litdata": "index.json: there is no such file",
        "jsonl": "there is no JSONL file",
        "csv": "there is no CSV file",
        "hf": "no state.json",
    }.items():
        told = imported(kind, tmp_path / "empty", tmp_path / "set")
        assert (told.code, says in told.err) == (1, True), told.err
        assert imported(kind, tmp_path / "missing", tmp_path / "set").code == 1


def parquet(path: Path, **columns: Any) -> None:
    """A file with these columns."""
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def test_parquet_files_with_other_columns_or_types_are_named(tmp_path: Path) -> None:
    """Wider numbers are the same kind."""
    import pyarrow

    folder = tmp_path / "source"
    folder.mkdir()
    parquet(folder / "a.parquet", n=pyarrow.array([1, 2], "int32"), t=["x", "y"])
    parquet(folder / "b.parquet", n=pyarrow.array([3], "int64"), t=["z"])
    assert imported("parquet", folder, tmp_path / "set").code == 0
    assert [sample["n"] for sample in samples_of(tmp_path / "set")] == [1, 2, 3]
    parquet(folder / "c.parquet", n=["three"], t=["z"])
    told = imported("parquet", folder, tmp_path / "other")
    assert "c.parquet: its column 'n' is string, which is another kind of values; it is not as in a.parquet" in told.err
    parquet(folder / "c.parquet", n=[3])
    assert "c.parquet: it lacks the column 't'" in imported("parquet", folder, tmp_path / "other").err
    assert imported("parquet", folder, tmp_path / "other", "--columns", "n").code == 0


def test_nulls_of_parquet_are_named_by_file_and_row(tmp_path: Path) -> None:
    """And filled on demand, in numbers as in texts."""
    parquet(tmp_path / "x.parquet", n=[1, None, 3], t=["a", "b", None])
    told = imported("parquet", tmp_path / "x.parquet", tmp_path / "set")
    assert "x.parquet: row 1, field 'n': expected int, found NoneType" in told.err
    assert "--null n=VALUE" in told.err
    told = imported("parquet", tmp_path / "x.parquet", tmp_path / "set", "--null", "n=-1", "--null", "t=")
    assert told.code == 0, told.err
    assert samples_of(tmp_path / "set") == [{"n": 1, "t": "a"}, {"n": -1, "t": "b"}, {"n": 3, "t": ""}]
    told = imported("parquet", tmp_path / "x.parquet", tmp_path / "skip", "--on-error", "skip", "--json")
    assert [problem["path"] for problem in told.json["skipped"]] == ["x.parquet, row 1", "x.parquet, row 2"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--columns", "nope"), "the source has no column 'nope'; there are n, t"),
        (("--field", "n=integer"), "there is no such codec; the codecs are int, float"),
        (("--field", "n"), "write --field NAME=CODEC"),
        (("--null", "n=x"), "--null n=x: that is not a value for a field of codec int"),
        (("--field", "t=ndarray"), "row 0, field 't' (ndarray): arrays of dtype"),
    ],
)
def test_a_wrong_choice_says_what_there_is(more: tuple[str, ...], says: str, tmp_path: Path) -> None:
    """Before anything is written."""
    parquet(tmp_path / "x.parquet", n=[1], t=["a"])
    told = imported("parquet", tmp_path / "x.parquet", tmp_path / "set", *more)
    assert says in told.err
    assert not (tmp_path / "set").exists()


def test_splits_are_converted_one_by_one(tmp_path: Path) -> None:
    """The message says how."""
    (tmp_path / "hub" / "data").mkdir(parents=True)
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        parquet(tmp_path / "hub" / "data" / f"{name}.parquet", n=[1])
    told = imported("hf", tmp_path / "hub", tmp_path / "set")
    assert told.code == 2
    assert "more than one split or configuration: test (1 file), train (2 files)" in told.err
    assert imported("hf", tmp_path / "hub/data/train-*.parquet", tmp_path / "set").code == 0
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": []}')
    assert "it has no splits" in imported("hf", tmp_path / "saved", tmp_path / "x").err
    for split in ("test", "train"):
        shutil.copytree(SOURCES / "hf", tmp_path / "saved" / split)
    told = imported("hf", tmp_path / "saved", tmp_path / "x")
    assert "--split test, --split train" in told.err
    for split in ("test", "train"):
        assert imported("hf", tmp_path / "saved", tmp_path / split, "--split", split).code == 0
    assert (
        "convert each of them, with --split test"
        in imported("hf", tmp_path / "saved", tmp_path / "x", "--split", "all").err
    )


def test_a_frame_of_zstd_that_is_cut_short_is_no_end(tmp_path: Path) -> None:
    """The library ends there without a word."""
    lines = b"".join(b'{"n": %d}\n' % n for n in range(100_000))
    packed = zstandard.compress(lines)
    (tmp_path / "x.jsonl.zst").write_bytes(packed[: len(packed) // 2])
    told = imported("jsonl", tmp_path / "x.jsonl.zst", tmp_path / "set")
    assert "x.jsonl.zst: its compressed bytes are damaged or truncated: the last zstd frame" in told.err


LIES = [
    struct.pack("<I", 5),
    struct.pack("<7I", 5, 28, 28, 28, 28, 28, 1 << 31),
    struct.pack("<7I", 5, 28, 40, 30, 40, 40, 40) + bytes(12),
    struct.pack("<7I", 5, 4, 40, 40, 40, 40, 40) + bytes(12),
    struct.pack("<I", 5) + bytes(4000),
]
"""Chunks whose offsets lie."""


@pytest.mark.parametrize("body", LIES)
def test_offsets_that_lie_are_refused(body: bytes, tmp_path: Path) -> None:
    """No memory is allocated by them."""
    folder = copied("litdata", tmp_path / "source")
    (folder / "chunk-0-0.bin").write_bytes(body)
    told = imported("litdata", folder, tmp_path / "set")
    assert told.code == 1
    assert "chunk-0-0.bin: " in told.err
    assert "Traceback" not in told.err
