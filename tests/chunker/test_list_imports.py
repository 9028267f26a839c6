"""Lists in data of other tools: of files, texts and numbers, in Parquet, Arrow, tar files and JSON lines."""

from __future__ import annotations

import io
import json
import re
import shlex
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import brand
from brand.chunker import Options, Report, convert_from
from brand.chunker.importers.fields import FieldMapping
from brand.chunker.importers.jsonfiles import JsonLines
from brand.chunker.sources.shards import Block
from brand.errors import SourceError, UsageError
from tests.support import brand as run
from tests.torch.test_lists import png, wav

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

FILE = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])


def documents() -> list[dict[str, Any]]:
    """Rows with 0 to 5 pictures, as structs and as bytes, two clips, five captions, and numbers."""
    return [
        {
            "images": [{"bytes": png(4 + at, 5, 10 * row), "path": f"{at}.png"} for at in range((row + 1) % 6)],
            "raw": [png(3, 3, row)] * (row % 3 + 1),
            "clips": [wav(9 + row)] * 2,
            "captions": [f"caption {at} of {row}" for at in range(5)],
            "tokens": list(range(row)),
            "boxes": [[0.5] * at for at in range(row % 3)],
        }
        for row in range(13)
    ]


SCHEMA = pyarrow.schema([
    ("images", pyarrow.list_(FILE)), ("raw", pyarrow.large_list(pyarrow.binary())),
    ("clips", pyarrow.list_(pyarrow.binary(), 2)), ("captions", pyarrow.list_(pyarrow.string())),
    ("tokens", pyarrow.list_(pyarrow.int16())), ("boxes", pyarrow.list_(pyarrow.list_(pyarrow.float32()))),
])  # fmt: skip


def write_parquet(folder: Path, rows: list[dict[str, Any]], schema: Any = SCHEMA) -> Path:
    """One Parquet file."""
    path = folder / "a.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), path)
    return path


def convert(kind: str, source: Path, target: Path, *, skip: bool = False, **choice: Any) -> tuple[Any, Report]:
    """The data set, undecoded, and the report."""
    options = Options(skip_errors=skip, jobs=1)
    report = convert_from(kind, source, target, options, choice=FieldMapping(**choice))
    return brand.BrandDataset(target, decode=False), report


def test_lists_of_parquet(tmp_path: Path) -> None:
    """Files and texts become lists, numbers stay arrays of their dtype, and nothing is lost on the way."""
    data, _ = convert("parquet", write_parquet(tmp_path, documents()), tmp_path / "set")
    assert data.schema == {
        "images": "list[image]", "raw": "list[image]", "clips": "list[audio]", "captions": "list[str]",
        "tokens": "ndarray", "boxes": "json",
    }  # fmt: skip
    for index, row in enumerate(documents()):
        found = data[index]
        assert found["images"] == [file["bytes"] for file in row["images"]]
        assert [found[name] for name in ("raw", "clips", "captions", "boxes")] == [
            row[name] for name in ("raw", "clips", "captions", "boxes")
        ]
        assert found["tokens"].dtype == np.int16
        assert found["tokens"].tolist() == row["tokens"]


def test_other_codecs_of_lists(tmp_path: Path) -> None:
    """`--field` makes lists of numbers and of arrays, which keep the dtype, also if they are empty."""
    codecs = {"tokens": "list[int]", "boxes": "list[ndarray]", "captions": "json"}
    data, _ = convert("parquet", write_parquet(tmp_path, documents()), tmp_path / "set", codecs=codecs)
    assert data.schema | codecs == data.schema
    for index, row in enumerate(documents()):
        assert data[index]["tokens"] == row["tokens"]
        assert [box.tolist() for box in data[index]["boxes"]] == row["boxes"]
        assert all(box.dtype == np.float32 for box in data[index]["boxes"])
        assert data[index]["captions"] == row["captions"]


def test_lists_without_a_file_at_the_front_need_a_codec(tmp_path: Path) -> None:
    """The codec is not guessed; the command of the message works."""
    path = write_parquet(tmp_path, [{"raw": []}, {"raw": []}], pyarrow.schema([SCHEMA.field("raw")]))
    with pytest.raises(UsageError, match=r"no file in the rows that were read.*--field raw=list\[image\]"):
        convert("parquet", path, tmp_path / "set")
    data, _ = convert("parquet", path, tmp_path / "set", codecs={"raw": "list[image]"})
    assert [data[index]["raw"] for index in range(2)] == [[], []]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"captions": None}, r"row 9, field 'captions' \(list\[str\]\): expected a list, found NoneType"),
        ({"captions": ["a", None]}, "element 1: expected str, found NoneType"),
        (
            {"images": [{"bytes": b"no picture" * 9, "path": None}]},
            "element 0: not an image file: its contents are text",
        ),
        ({"images": [{"bytes": None, "path": "a.png"}]}, "element 0: expected bytes, found str"),
        ({"images": [None]}, "element 0: expected bytes, found NoneType"),
        ({"raw": [png(2, 2, 1), wav(3)]}, "element 1: not an image file: its contents are audio/wav"),
    ],
)
def test_an_element_that_does_not_fit_is_named(tmp_path: Path, row: Mapping[str, Any], message: str) -> None:
    """And its sample can be left out; a missing list can be replaced."""
    rows = documents()
    rows[9] |= row
    path = write_parquet(tmp_path, rows)
    with pytest.raises(SourceError, match=message):
        convert("parquet", path, tmp_path / "set")
    data, report = convert("parquet", path, tmp_path / "set", skip=True)
    assert (len(data), len(report.skipped)) == (12, 1)
    if row == {"captions": None}:
        data, _ = convert("parquet", path, tmp_path / "all", nulls={"captions": '["none"]'})
        assert data[9]["captions"] == ["none"]


def test_a_null_of_a_list_is_a_list(tmp_path: Path) -> None:
    """`--null captions=none` is refused: it is no list."""
    with pytest.raises(UsageError, match=r"--null captions=none: that is not a value for a field of codec list\[str\]"):
        convert("parquet", write_parquet(tmp_path, documents()), tmp_path / "set", nulls={"captions": "none"})


@pytest.mark.parametrize("route", ["save_to_disk", "parquet", "pack"])
@pytest.mark.parametrize("form", ["List", "Sequence", "short"])
def test_lists_of_hugging_face(tmp_path: Path, route: str, form: str) -> None:
    """`List(Image())`, in all its spellings and by all routes, gives the pictures that `datasets` decodes."""
    datasets = pytest.importorskip("datasets")
    image = datasets.Image()
    feature = {"List": datasets.List(image), "Sequence": datasets.Sequence(image), "short": [image]}[form]
    texts, numbers = datasets.List(datasets.Value("string")), datasets.List(datasets.Value("int32"))
    features = datasets.Features({"images": feature, "captions": texts, "n": numbers})
    rows = [{"images": row["images"], "captions": row["captions"], "n": row["tokens"]} for row in documents()[5:]]
    theirs = datasets.Dataset.from_list(rows, features=features)  # the first list is empty
    if route == "pack":
        brand.pack(theirs, tmp_path / "set", jobs=1)
    elif route == "parquet":
        theirs.to_parquet(tmp_path / "a.parquet")
        convert("parquet", tmp_path / "a.parquet", tmp_path / "set")
    else:
        theirs.save_to_disk(tmp_path / "saved")
        convert("hf", tmp_path / "saved", tmp_path / "set")
    data = brand.BrandDataset(tmp_path / "set")
    assert data.schema == {"images": "list[image]", "captions": "list[str]", "n": "ndarray"}
    for index, row in enumerate(theirs):
        found = data[index]
        assert [picture.tobytes() for picture in found["images"]] == [picture.tobytes() for picture in row["images"]]
        assert found["captions"] == row["captions"]
        assert found["n"].tolist() == row["n"]


def write_tar(path: Path, samples: Mapping[str, Mapping[str, bytes]]) -> Path:
    """A tar file of samples: key -> ending -> contents."""
    with tarfile.open(path, "w") as tar:
        for key, files in samples.items():
            for ending, data in files.items():
                member = tarfile.TarInfo(f"{key}.{ending}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return path


def test_numbered_files_of_a_tar_are_lists(tmp_path: Path) -> None:
    """In the order of their numbers, which differs from that of the names and of the files; a sample may have none."""
    pictures = [png(at + 1, 2, at) for at in range(11)]
    shuffled = {f"{at}.png": pictures[at] for at in (10, 2, 1, 0, 3, 4, 5, 6, 7, 8, 9)}
    samples = {
        "a": {"0.png": pictures[0], "1.jpg": pictures[1], "0.txt": b"one", "1.txt": b"two", "json": b"{}"},
        "b": {"json": b"[]"},
        "c": {**shuffled, "json": b"3", "00.txt": b"from zero"},
        "d": {"1.png": pictures[3], "2.PNG": pictures[4], "json": b"4"},
    }
    data, report = convert("webdataset", write_tar(tmp_path / "a.tar", samples), tmp_path / "set")
    assert data.schema == {"images": "list[image]", "texts": "list[str]", "json": "json", "key": "str"}
    found = [data[index] for index in range(4)]
    assert [sample["images"] for sample in found] == [pictures[:2], [], pictures, pictures[3:5]]
    assert [sample["texts"] for sample in found] == [["one", "two"], [], ["from zero"], []]
    assert "numbered files, such as a.0.png, are elements of the list 'images' of their sample" in report.notes


def test_a_list_that_grows_behind_the_first_samples(tmp_path: Path) -> None:
    """A fifth picture in sample 100 is an element, not a field that the first samples lack."""
    samples = {f"s{at:03}": {f"{n}.png": png(2, 2, n) for n in range(1 + 4 * (at == 100))} for at in range(120)}
    data, _ = convert("webdataset", write_tar(tmp_path / "a.tar", samples), tmp_path / "set")
    assert [len(data[at]["images"]) for at in (99, 100, 101)] == [1, 5, 1]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"0.png": png(1, 1, 1), "2.png": png(1, 1, 2)}, "numbers 0 to 2, and number 1 is missing"),
        ({"2.png": png(1, 1, 1), "3.png": png(1, 1, 2)}, "numbers 2 to 3, and number 1 is missing"),
        ({"17.png": png(1, 1, 1), "4001.png": png(1, 1, 2)}, "numbers 17 to 4001, and number 1 is missing"),
        ({"0.png": png(1, 1, 1), "0.jpg": png(1, 1, 2)}, "two files of number 0"),
        ({"0.txt": b"\xff", "0.png": png(1, 1, 1)}, r"field 'texts' \(list\[str\]\): 'utf-8'"),
    ],
)
def test_numbers_that_are_no_list_are_refused(tmp_path: Path, files: Mapping[str, bytes], message: str) -> None:
    """A missing file would move the others up; images of a folder with dots in their names are no list."""
    path = write_tar(tmp_path / "a.tar", {"a": {"0.png": png(1, 1, 1)}, "b": files})
    with pytest.raises(SourceError, match=message):
        convert("webdataset", path, tmp_path / "set")
    data, report = convert("webdataset", path, tmp_path / "set", skip=True)
    assert (len(data), len(report.skipped)) == (1, 1)


def test_named_endings_stay_fields(tmp_path: Path) -> None:
    """The hint of the message above, followed: each file is a field of its own, as before."""
    views = {at: {"0.png": png(1, 1, 1), "2.png": png(2, 1, 2)} for at in "ab"}
    path = write_tar(tmp_path / "a.tar", views)
    data, _ = convert("webdataset", path, tmp_path / "set", columns=("0.png", "2.png"))
    assert data.schema == {"_0_png": "image", "_2_png": "image"}
    assert data[1] == {"_0_png": png(1, 1, 1), "_2_png": png(2, 1, 2), "index": 1, "key": "1"}


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """A folder with pictures, and JSON lines that name them."""
    (tmp_path / "img").mkdir()
    for at in range(3):
        (tmp_path / "img" / f"{at}.png").write_bytes(png(at + 1, 2, at))
    return tmp_path


def write_lines(folder: Path, rows: list[Any]) -> Path:
    """JSON lines next to the pictures."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_names_of_files_in_json_lines(named: Path) -> None:
    """A text in a field of images is the path of one, below the folder of the lines, alone as in lists."""
    rows = [
        {"images": [f"img/{at}.png" for at in range(row % 4)], "cover": "img/2.png", "text": "x"} for row in range(9)
    ]
    codecs = {"images": "list[image]", "cover": "image"}
    data, _ = convert("jsonl", write_lines(named, rows), named / "set", codecs=codecs)
    assert data.schema == {"images": "list[image]", "cover": "image", "text": "str"}
    for row in range(9):
        assert data[row]["images"] == [png(at + 1, 2, at) for at in range(row % 4)]
        assert data[row]["cover"] == png(3, 2, 2)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["img/0.png", "img/9.png"], r"line 2: .*img/9.png: No such file"), (["img"], r"line 2: .*Is a directory"),
        (["../img/0.png"], "line 2: it names the file '../img/0.png', which is not below the folder"),
        (["/etc/passwd"], "line 2: it names the file '/etc/passwd', which is not below the folder"),
        ("img/9.png", r"line 2: .*img/9.png: No such file"), (None, "line 2, .*expected a list, found NoneType"),
        (["rows.jsonl"], "line 2, .*element 0: not an image file"), ([3], "line 2, .*element 0: expected bytes"),
        ([["img/0.png"]], "line 2, .*element 0: expected bytes, found list"), (["a\0b"], "line 2: embedded null byte"),
    ],
)  # fmt: skip
def test_a_name_without_a_file_is_a_bad_line(named: Path, value: Any, message: str) -> None:
    """It names line and file, and only that line is left out."""
    path = write_lines(named, [{"images": ["img/1.png"]}, {"images": value}, {"images": []}])
    codecs = {"images": "list[image]"}
    with pytest.raises(SourceError, match=message):
        convert("jsonl", path, named / "set", codecs=codecs)
    data, report = convert("jsonl", path, named / "set", skip=True, codecs=codecs)
    assert [data[at]["images"] for at in range(2)] == [[png(2, 2, 1)], []]
    assert len(report.skipped) == 1


def test_lists_in_json_lines_and_csv(tmp_path: Path) -> None:
    """`--field` makes lists of texts and numbers; in CSV a cell holds JSON."""
    lines = write_lines(tmp_path, [{"t": ["a", "b"], "n": [1, 2**62], "f": [1, 0.5]}, {"t": [], "n": [], "f": []}])
    codecs = {"t": "list[str]", "n": "list[int]", "f": "list[float]"}
    data, _ = convert("jsonl", lines, tmp_path / "lines.brand", codecs=codecs)
    assert {name: data[0][name] for name in codecs} == {"t": ["a", "b"], "n": [1, 2**62], "f": [1.0, 0.5]}
    (tmp_path / "a.csv").write_text('t,n\n"[""a"", ""b,c""]",[1]\n[],"[2, 3]"\n')
    data, _ = convert("csv", tmp_path / "a.csv", tmp_path / "csv.brand", codecs={"t": "list[str]", "n": "list[int]"})
    assert [(data[at]["t"], data[at]["n"]) for at in range(2)] == [(["a", "b,c"], [1]), ([], [2, 3])]


def test_many_named_files_are_read_in_small_blocks(named: Path) -> None:
    """A line names a file of a megabyte: two hundred lines do not make one block of two hundred."""
    (named / "large.png").write_bytes(png(2, 2, 2) + bytes(1 << 20))
    path = write_lines(named, [{"image": "large.png"}] * 200)
    source = JsonLines(path, FieldMapping(codecs={"image": "image"}))
    sizes = [len(block) for block in source.read(0) if isinstance(block, Block)]
    assert sum(sizes) == 200
    assert max(sizes) <= 5


@pytest.mark.parametrize("files", [[png(2, 2, 1), wav(3)], [b"neither", b"nor"]])
def test_lists_of_two_kinds_or_none_have_no_codec(tmp_path: Path, files: list[bytes]) -> None:
    """The user decides, and the elements that do not fit are refused."""
    path = write_parquet(tmp_path, [{"raw": files}], pyarrow.schema([SCHEMA.field("raw")]))
    with pytest.raises(UsageError, match=r"both images and audio|other bytes than images or audio"):
        convert("parquet", path, tmp_path / "set")


def test_an_odd_file_at_the_front_is_a_bad_sample(tmp_path: Path) -> None:
    """It does not make another codec of the column."""
    rows = documents()
    rows[0]["raw"] = [png(2, 2, 1), b"something else" * 9]
    data, report = convert("parquet", write_parquet(tmp_path, rows), tmp_path / "set", skip=True)
    assert data.schema["raw"] == "list[image]"
    assert [problem.path for problem in report.skipped] == ["a.parquet, row 0"]


def test_a_link_in_a_list_is_a_bad_sample(tmp_path: Path) -> None:
    """As one file that has no contents of its own; a list that is left out does not mind."""
    path = write_tar(tmp_path / "a.tar", {key: {"0.png": png(1, 1, 1), "json": b"1"} for key in "abc"})
    with tarfile.open(path, "a") as tar:
        link = tarfile.TarInfo("c.1.png")
        link.type, link.linkname = tarfile.SYMTYPE, "a.0.png"
        tar.addfile(link)
    with pytest.raises(SourceError, match=r"sample 'c': its file \.1\.png is "):
        convert("webdataset", path, tmp_path / "set")
    assert convert("webdataset", path, tmp_path / "some", skip=True)[1].samples == 2
    assert convert("webdataset", path, tmp_path / "left", columns=("json",))[1].samples == 3


def test_lists_of_hugging_face_decode_upright(tmp_path: Path) -> None:
    """As `datasets` decodes them, and as one image does."""
    datasets, image, file = pytest.importorskip("datasets"), Image.new("RGB", (3, 2)), io.BytesIO()
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(file, "JPEG", exif=exif)
    features = datasets.Features({"images": datasets.List(datasets.Image())})
    rows = [{"images": [{"bytes": file.getvalue(), "path": None}] * 2}]
    brand.pack(datasets.Dataset.from_list(rows, features=features), tmp_path / "set", jobs=1)
    assert [found.size for found in brand.BrandDataset(tmp_path / "set")[0]["images"]] == [(2, 3), (2, 3)]


def test_images_that_several_rows_name_are_counted(tmp_path: Path) -> None:
    """Each row stores them again; the command of the note stores them once."""
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(png(2, 2, ord(name[0])))
    table = tmp_path / "captions.csv"
    table.write_text("image,caption\na.png,one\nb.png,two\na.png,three\na.png,four\n")
    report = convert_from("csv", table, tmp_path / "set", choice=FieldMapping(codecs={"image": "image"}))
    (fact,) = [fact for fact in report.noticed if fact.what == "files_named_again"]
    assert (report.samples, fact.count, fact.example) == (4, 2, "a.png")
    assert fact.text == (
        "at least 2 times, a file is named again, and its contents are stored again; `brand convert images FOLDER DST"
        " --table TABLE --key NAME --gather COLUMN` stores each image once"
    )
    folder = tmp_path / "images"
    folder.mkdir()
    for name in ("a.png", "b.png"):
        (tmp_path / name).rename(folder / name)
    options = ["--table", table, "--key", "image", "--gather", "caption"]
    assert run("convert", "images", folder, tmp_path / "once", *options).code == 0
    data = brand.BrandDataset(tmp_path / "once", expand="caption")
    assert [data[at]["caption"] for at in range(4)] == ["one", "three", "four", "two"]


def test_one_name_in_a_field_of_lists_is_a_list_of_one_file(named: Path) -> None:
    """LLaVA writes one name, a list of names, or none: `--field image=list[image]` takes all three."""
    rows: list[dict[str, Any]] = [{"image": "img/0.png"}, {"image": ["img/0.png", "img/1.png"]}, {}, {"image": None}]
    (named / "llava.json").write_text(json.dumps(rows))
    told = run("convert", "jsonl", named / "llava.json", named / "set", "--field", "image=list[image]")
    hint = re.search(r"--null 'image=\[\]' replaces each missing value", told.err)
    assert hint, told.err
    command = ["convert", "jsonl", named / "llava.json", named / "set", "--field", "image=list[image]"]
    told = run(*command, *shlex.split(hint[0])[:2])
    assert told.code == 0, told.err
    one, other = (named / "img/0.png").read_bytes(), (named / "img" / "1.png").read_bytes()
    data = brand.BrandDataset(named / "set", decode=False)
    assert [data[n]["image"] for n in range(4)] == [[one], [one, other], [], []]


@pytest.mark.parametrize(
    ("kind", "text", "column", "field"),
    [
        ("jsonl", '{"file": "img/0.png", "n": 1}\n', "file", "file=image"),
        ("jsonl", '[{"n": 1}, {"n": 2, "image": ["img/0.png", "img/1.png"]}]', "image", "image=list[image]"),
        ("jsonl", '{"path": "c.WAV"}\n', "path", "path=audio"),
        ("jsonl", '{"Bild-Datei": "img/1.png"}\n', "Bild-Datei", "Bild_Datei=image"),
        ("csv", "n,file\n1,img/0.png\n", "file", "file=image"),
        ("csv", "file,n\n,1\nc.WAV,2\n", "file", "file=audio"),
    ],
)
def test_a_column_of_names_of_files_is_told(named: Path, kind: str, text: str, column: str, field: str) -> None:
    """The report says that only the names are stored, with the option that stores the files; that option does so."""
    (named / "c.WAV").write_bytes(wav(9))
    source = named / f"rows.{kind if kind == 'csv' else 'json'}"
    source.write_text(text)
    told = run("convert", kind, source, named / "set", "--json")
    (note,) = [note for note in told.json["notes"] if "names" in note]
    assert note.startswith(f"column {column!r} names files, such as ")
    hint = re.search(r"--field (\S+) stores their contents", note)
    assert hint, note
    assert shlex.split(hint[1]) == [field]
    more = ["--on-error", "skip"] if kind == "csv" else []
    more += ["--null", "image=[]"] if "list" in field else []
    told = run("convert", kind, source, named / "whole", "--field", *shlex.split(hint[1]), "--json", *more)
    assert told.code == 0, told.stdout
    assert not [note for note in told.json["notes"] if "names files" in note]
    name = field.partition("=")[0]
    data = brand.BrandDataset(named / "whole", decode=False)
    assert isinstance(data[len(data) - 1][name], list if "list" in field else bytes)


@pytest.mark.parametrize("more", [[], ["--field", "audio_filepath=audio"]], ids=["names", "whole recordings"])
def test_a_manifest_of_segments_is_told(tmp_path: Path, more: list[str]) -> None:
    """Lines with an offset name parts of recordings: neither the name nor the whole recording is meant."""
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "long.wav").write_bytes(wav(16_000))
    rows = [{"audio_filepath": "long.wav", "offset": n / 10, "duration": 0.1, "text": f"{n}"} for n in range(5)]
    (tmp_path / "a b" / "manifest.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = run("convert", "jsonl", tmp_path / "a b" / "manifest.json", tmp_path / "set", "--json", *more)
    (note,) = [note for note in told.json["notes"] if "`brand convert audio" in note]
    assert bool(more) == ("each sample holds a whole recording" in note)
    hint = re.search(r"`brand (convert audio .*) DST (--transcripts .*)`", note)
    assert hint, note
    told = run(*shlex.split(hint[1]), tmp_path / "cut", *shlex.split(hint[2]))
    assert told.code == 0, told.err
    data = brand.BrandDataset(tmp_path / "cut")
    assert [(data[n]["text"], round(data[n]["duration"], 3)) for n in range(5)] == [(f"{n}", 0.1) for n in range(5)]


@pytest.mark.parametrize(
    "text",
    [
        '{"file": "missing.png"}\n',
        '{"file": "https://example.org/a.png"}\n',
        '{"file": "/a.png"}\n',
        '{"file": "../names/img/0.png"}\n',
        '{"file": "lines.jsonl"}\n',
        '{"text": "a.png is a picture"}\n',
        '{"list": [1, "img/0.png"]}\n',
        '{"long": "' + "x" * 5000 + '.png"}\n',
        '{"nul": "\\u0000.png"}\n',
        '{"odd": "\\ud800.png"}\n',
    ],
)
def test_other_texts_are_no_names_of_files(named: Path, text: str) -> None:
    """Only a name of an image or a recording that is there is told."""
    (named / "rows.jsonl").write_text(text)
    told = run("convert", "jsonl", named / "rows.jsonl", named / "set", "--json")
    assert not [note for note in told.json.get("notes", []) if "names files" in note]


def test_lists_with_missing_elements_have_a_hint_that_helps(tmp_path: Path) -> None:
    """OBELICS has as many images as texts, and null at the places of the others; as published, images are URLs."""
    rows: list[dict[str, Any]] = [
        {"images": ["https://a/1.jpg", None, "https://a/2.jpg"], "texts": [None, "Text", None]},
        {"images": [None], "texts": ["Only text"]},
    ]
    names = pyarrow.list_(pyarrow.string())
    path = write_parquet(tmp_path, rows, pyarrow.schema([("images", names), ("texts", names)]))
    options: list[str] = []
    for _ in range(2):
        told = run("convert", "parquet", path, tmp_path / "set", *options)
        hint = re.search(r"(--field \w+=json) keeps missing elements", told.err)
        assert hint, told.err
        options += hint[1].split()
    told = run("convert", "parquet", path, tmp_path / "set", *options)
    assert told.code == 0, told.err
    data = brand.BrandDataset(tmp_path / "set")
    assert [{name: data[n][name] for name in rows[0]} for n in range(2)] == rows


def test_lists_of_files_with_missing_elements_name_a_way(tmp_path: Path) -> None:
    """An image that is missing in a list cannot be stored; `pack` takes what is left."""
    rows = [{"images": [None, {"bytes": png(2, 2, 1), "path": None}]}]
    path = write_parquet(tmp_path, rows, pyarrow.schema([("images", pyarrow.list_(FILE))]))
    with pytest.raises(SourceError, match=r"element 0: .*A list of files has no missing elements: brand\.pack takes"):
        convert("parquet", path, tmp_path / "set")


def test_paths_without_files_in_parquet_are_told(tmp_path: Path) -> None:
    """Lists of structs with a path and no bytes: the hint helps, as `datasets.save_to_disk` embeds the files."""
    rows = [{"images": [{"bytes": None, "path": "a.png"}]}]
    path = write_parquet(tmp_path, rows, pyarrow.schema([("images", pyarrow.list_(FILE))]))
    with pytest.raises(UsageError, match="'images' holds the paths of files, and not the files") as failed:
        convert("parquet", path, tmp_path / "set")
    assert "--field images=list[image]" not in str(failed.value)


def test_an_absolute_path_below_the_folder_is_read(named: Path) -> None:
    """Another one is refused, and so is a URL, by its name."""
    inside = str(named / "img" / "0.png")
    path = write_lines(named, [{"image": inside}, {"image": [inside, "img/1.png"]}])
    data, _ = convert("jsonl", path, named / "set", codecs={"image": "list[image]"})
    assert [data[n]["image"] for n in range(2)] == [[png(1, 2, 0)], [png(1, 2, 0), png(2, 2, 1)]]
    for bad, why in {
        "/etc/hostname": "which is not below the folder",
        str(named / "img" / ".." / ".." / "x"): "which is not below the folder",
        "https://example.org/a.png": "'https://example.org/a.png' is a URL, and URLs are not downloaded",
    }.items():
        path = write_lines(named, [{"image": bad}])
        with pytest.raises(SourceError, match=why):
            convert("jsonl", path, named / "other", codecs={"image": "list[image]"})


def test_names_that_the_user_wants_as_texts_are_not_told(named: Path) -> None:
    """With `--field file=str`, and in a table beside a folder, whose names find the files."""
    (named / "img" / "metadata.jsonl").write_text("".join(f'{{"file_name": "{n}.png", "n": {n}}}\n' for n in range(3)))
    told = run("convert", "images", named / "img", named / "pictures", "--json")
    assert [note for note in told.json["notes"] if "names" in note] == []
    path = write_lines(named, [{"file": "img/0.png"}])
    told = run("convert", "jsonl", path, named / "set", "--json", "--field", "file=str")
    assert [note for note in told.json["notes"] if "names" in note] == []
