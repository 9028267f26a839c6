"""Images with texts, JSON or a table beside them: every value is at its image, and nothing is left out unseen."""

from __future__ import annotations

import gc
import gzip
import json
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import brand
from brand.chunker import Options, Report, convert_images
from brand.chunker.distributed import Task, plan_images, run_task, seal
from brand.chunker.importers.fields import FieldMapping
from brand.collect import append_images
from brand.errors import SourceError, TargetExistsError, UsageError
from brand.storage.maintenance.unpack import unpack
from brand.storage.maintenance.verify import verify
from tests.support import brand as run
from tests.support import files_below
from tests.torch.test_lists import png

TWO: dict[str, bytes | str] = {"a.png": png(1, 2, 1), "b.png": png(2, 2, 2)}


def lay(folder: Path, files: Mapping[str, bytes | str]) -> Path:
    """Write files below a folder."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return folder


def converted(
    source: Path, *, skip: bool = False, table: str | None = None, split: str | None = None, **more: Any
) -> tuple[Any, Report]:
    """The data set, undecoded, and the report; folders of splits are converted together."""
    target = source.parent / "set"
    named = None if table is None else source / table
    report = convert_images(source, target, Options(skip_errors=skip, jobs=1, split=split), table=named, **more)
    assert [error for step in verify(target) for error in step.errors] == []
    return brand.BrandDataset(target, decode=False), report


def samples(data: Any) -> list[dict[str, Any]]:
    """All samples but their images and indices, by index."""
    return [{k: v for k, v in data[at].items() if k not in ("image", "index")} for at in range(len(data))]


METADATA = {
    "metadata.csv": 'file_name,n,score,text\na.png,1,0.5,x\nb.png,2,1,"y, z"\n',
    "metadata.jsonl": '{"file_name": "b.png", "n": 2, "score": 1.0, "text": "y, z"}\n'
    '{"file_name": "a.png", "n": 1, "score": 0.5, "text": "x"}\n',
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # `datasets` leaves the table open
@pytest.mark.parametrize("name", [*METADATA, "metadata.parquet"])
def test_the_convention_of_hugging_face(tmp_path: Path, name: str) -> None:
    """`metadata.*` with `file_name`: the values that `load_dataset("imagefolder")` gives, and the folder comes back."""
    datasets = pytest.importorskip("datasets")
    source = lay(tmp_path / "images", TWO)
    if name.endswith(".parquet"):
        pandas = pytest.importorskip("pandas")
        rows = {"file_name": ["b.png", "a.png"], "n": [2, 1], "score": [1.0, 0.5], "text": ["y, z", "x"]}
        pandas.DataFrame(rows).to_parquet(source / name)
    else:
        lay(source, {name: METADATA[name]})
    data, _ = converted(source)
    assert data.schema == {"image": "image", "n": "int", "score": "float", "text": "str", "key": "str"}
    assert data.column("n").tolist() == [1, 2]
    theirs = datasets.load_dataset("imagefolder", data_dir=str(source), cache_dir=str(tmp_path / "cache"))["train"]
    by_n = {row.pop("n"): row for row in theirs}
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):  # `datasets` leaves its file to it
        gc.collect()
    assert len(by_n) == len(data) == 2
    for at in range(2):
        mine, row = brand.BrandDataset(tmp_path / "set")[at], by_n[data[at]["n"]]
        assert mine["image"].tobytes() == row["image"].convert("RGB").tobytes()
        assert (mine["score"], mine["text"]) == (row["score"], row["text"])
    assert unpack(tmp_path / "set", tmp_path / "again") == 3
    assert files_below(tmp_path / "again") == files_below(source)


def test_folders_are_no_classes_beside_a_table(tmp_path: Path) -> None:
    """As `imagefolder` does; the report says so."""
    files: dict[str, bytes | str] = {f"{kind}/{name}": data for kind in ("cat", "dog") for name, data in TWO.items()}
    rows = "".join(f"./{name},{at}\n" for at, name in enumerate(files))
    data, report = converted(lay(tmp_path / "images", files | {"metadata.csv": "file_name,n\n" + rows}))
    assert report.classes is None
    assert [(sample["key"], sample["n"]) for sample in samples(data)] == [(name, at) for at, name in enumerate(files)]
    assert "Folders are no classes here: the table says what belongs to a file" in report.notes


KAGGLE = "image_id,label,score\n007,1,0.5\nb,2,0.25\n1e5,3,1\n"


def test_a_flat_folder_of_kaggle(tmp_path: Path) -> None:
    """`--table train.csv --key image_id`: names without the ending, which are no numbers, even if they look so."""
    files: dict[str, bytes | str] = {"007.png": TWO["a.png"], "b.jpg": TWO["b.png"], "1e5.png": TWO["a.png"]}
    source = lay(tmp_path / "train", files)
    lay(tmp_path, {"train.csv": KAGGLE})
    report = convert_images(source, tmp_path / "set", Options(jobs=1), table=tmp_path / "train.csv", key="image_id")
    assert report.samples == 3
    assert samples(brand.BrandDataset(tmp_path / "set")) == [
        {"label": 1, "score": 0.5, "key": "007.png"},
        {"label": 3, "score": 1.0, "key": "1e5.png"},
        {"label": 2, "score": 0.25, "key": "b.jpg"},
    ]
    choice = FieldMapping(columns=("label",), codecs={"label": "str"})
    append_images(source, tmp_path / "grown", table=tmp_path / "train.csv", key="image_id", choice=choice)
    assert samples(brand.BrandDataset(tmp_path / "grown"))[0] == {"label": "1", "key": "007.png"}


@pytest.mark.parametrize("name", ["train/007.png", "./train/007", "train/007.png "])
def test_names_with_folders(tmp_path: Path, name: str) -> None:
    """Below the folder that is converted, with or without the ending; an absolute path, too."""
    source = lay(tmp_path / "all", {"train/007.png": TWO["a.png"], "test/007.png": TWO["b.png"]})
    rows = f'id,n\n"{name}",1\n{source}/test/007.png,2\n'
    data, _ = converted(lay(source, {"rows.csv": rows}), table="rows.csv", key="id", split="all")
    assert [(sample["key"], sample["n"]) for sample in samples(data)] == [("test/007.png", 2), ("train/007.png", 1)]


@pytest.mark.parametrize(
    ("rows", "message", "left", "skipped"),
    [
        ("a.png,1\nb.png,2\nc.png,3\n", r"metadata.csv, line 4: there is no file 'c.png' in the folder", 2, 1),
        ("a.png,1\n", r"b.png: the table metadata.csv has no row for it", 1, 1),
        ("a.png,1\na.png,9\nb.png,2\n", r"metadata.csv, line 3: file 'a.png' is named a second time", 2, 1),
        ("a.png,1\na,9\nb.png,2\n", r"metadata.csv, line 3: file 'a' is named a second time", 2, 1),
        ("a.png,1\nb.png,\n", r"line 3: field 'n': expected int, found NoneType.*--null n=VALUE replaces", 1, 1),
        ("a.png,1\nb.png,2\n,3\n", r"line 4: there is no file '' in the folder", 2, 1),
        ("A.png,1\na.png,1\nb.png,2\n", r"line 2: there is no file 'A.png' in the folder", 2, 1),
        ("x.png,1\ny.png,2\na.png,0\n", r"2 more files cannot be used either", 1, 3),
    ],
)
def test_rows_and_files_that_do_not_fit(tmp_path: Path, rows: str, message: str, left: int, skipped: int) -> None:
    """They end the conversion, or they are left out, counted and listed; what is left has the right values."""
    source = lay(tmp_path / "images", TWO | {"metadata.csv": "file_name,n\n" + rows})
    with pytest.raises(SourceError, match=message):
        converted(source)
    data, report = converted(source, skip=True)
    assert (len(data), len(report.skipped)) == (left, skipped)
    given = {row.split(",")[0]: row.split(",")[1] for row in reversed(rows.splitlines())}
    assert all(given[sample["key"]] == str(sample["n"]) for sample in samples(data))
    assert (tmp_path / "set" / "skipped.tsv").read_text().count("\n") == 1 + skipped


def test_a_null_replaces_missing_values(tmp_path: Path) -> None:
    """The hint of the message above, followed."""
    source = lay(tmp_path / "images", TWO | {"metadata.csv": "file_name,n\na.png,1\nb.png,\n"})
    data, _ = converted(source, choice=FieldMapping(nulls={"n": "-1"}))
    assert data.column("n").tolist() == [1, -1]


def test_two_files_of_one_name_need_their_endings(tmp_path: Path) -> None:
    """A name without ending means neither; with the endings both have a row."""
    files: dict[str, bytes | str] = {"a.png": TWO["a.png"], "a.jpg": TWO["b.png"]}
    source = lay(tmp_path / "images", files | {"t.csv": "id,n\na,1\na.png,2\n"})
    with pytest.raises(SourceError, match="line 2: there are 2 files 'a', with several endings"):
        converted(source, table="t.csv", key="id")
    lay(source, {"t.csv": "id,n\na.jpg,1\na.png,2\n"})
    data, _ = converted(source, table="t.csv", key="id")
    assert data.column("n").tolist() == [1, 2]


@pytest.mark.parametrize(
    ("table", "key", "contents", "message"),
    [
        (None, "id", "", "about a table: name it with --table"),
        ("t.csv", None, "id,n\na,1\n", "name the column of the files with --key"),
        ("t.csv", "name", "id,n\na,1\n", r"t.csv: the source has no column 'name'; there are id, n"),
        ("t.csv", "id", "id,image,n\na,1,2\n", "column 'image' has the name of a field .*: --columns n leaves it out"),
        ("t.csv", "id", "id,key,n\na,x,2\n", "column 'key' has the name"), ("t.csv", "id", "id\na\n", "no column but"),
        ("t.csv", "id", "", "empty"), ("other.csv", "id", None, "no such file"), (".", "id", None, "not a file"),
        ("t.xlsx", "id", "x", "one of the endings .csv"), ("a.png", "id", None, "one of the endings"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_used(
    tmp_path: Path, table: str | None, key: str | None, contents: str | None, message: str
) -> None:
    """The message names table and column, and what to do."""
    source = lay(tmp_path / "images", TWO)
    if table is not None and contents is not None:
        lay(source, {table: contents})
    with pytest.raises((UsageError, SourceError), match=message):
        converted(source, table=table, key=key)


def test_metadata_that_is_no_table_of_the_images(tmp_path: Path) -> None:
    """Or two of them: refused, with the way out."""
    source = lay(tmp_path / "images", TWO | {"metadata.csv": "name,n\na.png,1\n"})
    with pytest.raises(UsageError, match=r"no column 'file_name'; there are name, n. If it is no table of the files"):
        converted(source)
    data, _ = converted(lay(source, {"metadata.csv": "name,n\na,1\nb,2\n"}), table="metadata.csv", key="name")
    assert data.column("n").tolist() == [1, 2]
    lay(source, {"metadata.jsonl": "{}"})
    with pytest.raises(UsageError, match=r"has metadata\.csv and metadata\.jsonl: name one of them with --table"):
        converted(source)


def test_texts_and_json_next_to_images(tmp_path: Path) -> None:
    """`a.txt` and `a.json` belong to `a.png`; images without them are counted, and `unpack` gives all files back."""
    files: dict[str, bytes | str] = {
        "x/a.png": TWO["a.png"], "x/a.txt": "\ufeffhello\n", "x/a.json": '{"boxes": [[1, 2.5]], "é": null}',
        "y/b.png": TWO["b.png"], "y/b.txt": "grüezi", "y/c.png": TWO["a.png"],
    }  # fmt: skip
    source = lay(tmp_path / "images", files)
    data, report = converted(source)
    assert data.schema == {"image": "image", "label": "int", "text": "str", "json": "json", "key": "str"}
    assert samples(data) == [
        {"label": 0, "text": "hello", "json": {"boxes": [[1, 2.5]], "é": None}, "key": "x/a.png"},
        {"label": 1, "text": "grüezi", "json": None, "key": "y/b.png"},
        {"label": 1, "text": "", "json": None, "key": "y/c.png"},
    ]
    facts = {fact.what: (fact.field, fact.count, fact.example, fact.text) for fact in report.noticed}
    text, value = "1 image has no text next to it: the text is empty there", "the value is null there"
    assert facts["files_without_text"] == ("text", 1, "y/c.png", text)
    assert facts["files_without_json"] == ("json", 2, "y/b.png", f"2 images have no .json next to them: {value}")
    assert unpack(tmp_path / "set", tmp_path / "again") == 6
    assert files_below(tmp_path / "again") == files_below(source)


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("b.json", "{", "b.json: not JSON"), ("b.json", "", "b.json: not JSON"), ("b.json", "NaN", "b.json: not JSON"),
        ("b.json", b"\xff", "b.json: not JSON"), ("b.txt", b"\xff\xfe", "b.txt: not a text in UTF-8"),
        ("b.json", "[" * 100_000, "b.json: not JSON"),
    ],
)  # fmt: skip
def test_a_file_next_to_an_image_that_cannot_be_read(
    tmp_path: Path, name: str, contents: bytes | str, message: str
) -> None:
    """It ends the conversion, or its image is left out with it."""
    source = lay(tmp_path / "images", TWO | {"a.txt": "a", "a.json": "1", name: contents})
    with pytest.raises(SourceError, match=message):
        converted(source)
    data, report = converted(source, skip=True)
    assert [sample["key"] for sample in samples(data)] == ["a.png"]
    assert {problem.path for problem in report.skipped} == {"b.png", name}


@pytest.mark.parametrize("name", ["notes.txt", "b.txt2", "a.xml", "README"])
def test_other_files_are_still_no_images(tmp_path: Path, name: str) -> None:
    """Only a text or JSON with the name of an image belongs to one."""
    with pytest.raises(SourceError, match=f"{name}: not an image file"):
        converted(lay(tmp_path / "images", TWO | {name: "some text"}))


@pytest.mark.parametrize("beside", ["table", "sidecars"])
def test_tasks_make_the_same_bytes(tmp_path: Path, beside: str) -> None:
    """A conversion in tasks has the options of one in one run, and writes the same; other tables are refused."""
    source, more = tmp_path / "images", dict[str, Any]()
    lay(source, {f"{at:02}.png": png(1 + at, 2, at) for at in range(12)})
    if beside == "table":
        lay(tmp_path, {"t.csv": "id,n,text\n" + "".join(f"{at:02},{at},text {at}\n" for at in range(12))})
        more = {"table": tmp_path / "t.csv", "key": "id"}
    else:
        lay(source, {f"{at:02}.txt": f"text {at}" for at in range(0, 12, 2)} | {"03.json": "[3]"})
    options = Options(chunk_size=4, jobs=1)
    convert_images(source, tmp_path / "one", options, **more)
    for number in range(2):
        job = plan_images(source, tmp_path / "tasks", options, tasks=2, **more)
        run_task(job, Task(number, 2), jobs=1)
    if beside == "table":
        with pytest.raises(TargetExistsError, match="--null, --gather, --separator, --quote and --escape"):
            plan_images(source, tmp_path / "tasks", options, tasks=2, choice=FieldMapping(columns=("n",)), **more)
    seal(tmp_path / "tasks")
    assert files_below(tmp_path / "tasks") == files_below(tmp_path / "one")
    assert samples(brand.BrandDataset(tmp_path / "tasks"))[3]["text"] == ("text 3" if beside == "table" else "")


def test_the_command(tmp_path: Path) -> None:
    """Its options are those of the function, in `convert` and in `append`; a dry run writes nothing."""
    source = lay(tmp_path / "images", TWO)
    lay(tmp_path, {"t.tsv": 'id\tn\ttext\na\t1\t"x"\nb\t\ty\n'})
    options = ["--table", tmp_path / "t.tsv", "--key", "id", "--columns", "n", "--null", "n=0", "--field", "n=float"]
    said = run("convert", "images", source, tmp_path / "set", *options, "--json")
    assert json.loads(said.out)["samples"] == 2
    assert samples(brand.BrandDataset(tmp_path / "set")) == [{"n": 1.0, "key": "a.png"}, {"n": 0.0, "key": "b.png"}]
    assert run("append", "images", source, tmp_path / "grown", *options).code == 0
    assert brand.BrandDataset(tmp_path / "grown").column("n").tolist() == [1.0, 0.0]
    dry = run("convert", "images", source, tmp_path / "none", *options, "--dry-run")
    assert "2 samples would become" in dry.out
    assert not (tmp_path / "none").exists()


def test_tables_in_the_folders_below(tmp_path: Path) -> None:
    """Folders with a table each are not classes of one set; the path of the message converts."""
    files = {f"{part}/{name}": data for part in ("one", "two") for name, data in TWO.items()}
    tables = {f"{part}/metadata.csv": "file_name,n\na.png,1\nb.png,2\n" for part in ("one", "two")}
    source = lay(tmp_path / "images", {**files, **tables})
    for skip in (False, True):
        with pytest.raises(UsageError, match=r"2 folders in it \(one, two\) have a table metadata.*images/one"):
            converted(source, skip=skip)
    assert converted(source / "one")[1].samples == 2


def test_tables_of_splits(tmp_path: Path) -> None:
    """A split has its own table; a table above the splits is for all of them, and never left out unnoticed."""
    files = {f"{split}/{name}": data for split in ("train", "test") for name, data in TWO.items()}
    source = lay(tmp_path / "images", {**files, "train/metadata.csv": "file_name,n\na.png,1\nb.png,2\n"})
    with pytest.raises(UsageError, match="--split train"):
        converted(source)
    assert [sample["n"] for sample in samples(converted(source, split="train")[0])] == [1, 2]
    shutil.rmtree(tmp_path / "set")
    (source / "train/metadata.csv").unlink()
    rows = "".join(f"{name},{number}\n" for number, name in enumerate(files))
    lay(source, {"metadata.csv": f"file_name,n\n{rows}"})
    with pytest.raises(UsageError, match=r"metadata.csv is a table above the split train: --split all"):
        converted(source, split="train")
    assert [sample["n"] for sample in samples(converted(source, split="all")[0])] == [2, 3, 0, 1]


def test_a_list_of_texts_for_each_image(tmp_path: Path) -> None:
    """What the message about a second row of a file says, done."""
    rows = [{"file": "a.png", "texts": ["one", "two"]}, {"file": "b.png", "texts": []}]
    source = lay(tmp_path / "images", {**TWO, "t.jsonl": "".join(json.dumps(row) + "\n" for row in rows)})
    choice = FieldMapping(codecs={"texts": "list[str]"})
    data, _ = converted(source, table="t.jsonl", key="file", choice=choice)
    assert [data[at]["texts"] for at in range(2)] == [["one", "two"], []]


FORMS = {
    "a mark at the front": "\ufeffid,n\na,1\nb.c,2\n", "lines of Windows": "id,n\r\na,1\r\nb.c,2\r\n",
    "semicolons": "id;n\na;1\nb.c;2\n", "blanks": "id,n\n a ,1\nb.c ,2\n", "another order": "n,id\n2,b.c\n1,a\n",
    "mixed": "id,n\n./a.png,1\nb.c,2\n", "blank lines": "id,n\n\na,1\n\nb.c,2\n\n",
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_tables_as_people_write_them(tmp_path: Path, form: str) -> None:
    """Marks, separators, blanks, and a name with a dot in it."""
    files = {"a.png": TWO["a.png"], "b.c.png": TWO["b.png"], "t.csv": FORMS[form]}
    data, _ = converted(lay(tmp_path / "images", files), table="t.csv", key="id")
    assert data.column("n").tolist() == [1, 2]


@pytest.mark.parametrize("name", ["e\u0301.png", "A.PNG", "a.jpeg", "x\\a.png", "../a.png", "sub/a.png", "aa", "a."])
def test_a_name_that_is_nearly_right_is_refused(tmp_path: Path, name: str) -> None:
    """No file is guessed: another case, ending, folder or Unicode form is another name."""
    files = {"a.png": TWO["a.png"], "\u00e9.png": TWO["b.png"], "t.csv": f"id,n\n{name},1\n\u00e9,2\na,3\n"}
    with pytest.raises(SourceError, match=r"line 2: there is no file .* names are paths below it"):
        converted(lay(tmp_path / "images", files), table="t.csv", key="id")


@pytest.mark.parametrize("rows", ["a.png,1\nb.png,2\n", "a,1\nb,2\n"])
@pytest.mark.parametrize("contents", ["", "some text"])
def test_a_file_that_is_left_out_takes_its_row_along(tmp_path: Path, rows: str, contents: str) -> None:
    """One problem, not two, and the row is not given to another file."""
    files = {"a.png": TWO["a.png"], "b.png": contents, "metadata.csv": "file_name,n\n" + rows}
    data, report = converted(lay(tmp_path / "images", files), skip=True)
    assert (samples(data), [problem.path for problem in report.skipped]) == ([{"n": 1, "key": "a.png"}], ["b.png"])


BOXES = (
    "image_id,width,label,x,name,box\n"
    'b,20,3,0.5,cat,"[1, 2]"\n'
    'a,10,1,1,dog,"[3, 4]"\n'
    'b,20,4,2.5,"cat, big","[5, 6]"\n'
    'a.png,10,2,7,,"[7, 8]"\n'
    'b,20,5,0,x,"[]"\n'
)
GATHERED = {
    "a.png": {"label": [1, 2], "x": [1.0, 7.0], "name": ["dog", ""], "box": ["[3, 4]", "[7, 8]"]},
    "b.png": {
        "label": [3, 4, 5],
        "x": [0.5, 2.5, 0.0],
        "name": ["cat", "cat, big", "x"],
        "box": ["[1, 2]", "[5, 6]", "[]"],
    },
}


def gathered(*names: str, **more: Any) -> FieldMapping:
    """The mapping of `--gather`."""
    return FieldMapping(gather=names, **more)


def test_rows_of_one_image_become_lists(tmp_path: Path) -> None:
    """As `groupby("image_id").agg(list)` of pandas gives them, in the order of the table; other columns stay single."""
    source = lay(tmp_path / "train", TWO)
    lay(tmp_path, {"train.csv": BOXES})
    more: dict[str, Any] = {"table": tmp_path / "train.csv", "key": "image_id"}
    with pytest.raises(SourceError, match=r"file 'b' is named a second time.*--gather '\*' makes a list"):
        convert_images(source, tmp_path / "set", Options(jobs=1), **more)
    choice = gathered("label", "x", "name", "box")
    convert_images(source, tmp_path / "set", Options(jobs=1), choice=choice, **more)
    data = brand.BrandDataset(tmp_path / "set")
    lists = {"label": "list[int]", "x": "list[float]", "name": "list[str]", "box": "list[str]"}
    assert data.schema == {"image": "image", "width": "int", **lists, "key": "str"}
    assert samples(data) == [
        {"width": width, **GATHERED[key], "key": key} for key, width in (("a.png", 10), ("b.png", 20))
    ]
    pandas = pytest.importorskip("pandas")
    table = pandas.read_csv(tmp_path / "train.csv", keep_default_na=False)
    table["image_id"] = table["image_id"].str.removesuffix(".png")
    for key, row in table.groupby("image_id").agg(list).iterrows():
        assert {name: row[name] for name in lists} == {name: GATHERED[f"{key}.png"][name] for name in lists}
    convert_images(source, tmp_path / "all", Options(jobs=1), choice=gathered("*"), **more)
    assert [sample["width"] for sample in samples(brand.BrandDataset(tmp_path / "all"))] == [[10, 10], [20, 20, 20]]
    choice = gathered("box", columns=("box",), codecs={"box": "ndarray"})
    convert_images(source, tmp_path / "arrays", Options(jobs=1), choice=choice, **more)
    arrays = [[box.tolist() for box in each["box"]] for each in samples(brand.BrandDataset(tmp_path / "arrays"))]
    assert arrays == [[[3, 4], [7, 8]], [[1, 2], [5, 6], []]]
    choice = gathered("box", columns=("box",), codecs={"box": "json"})
    convert_images(source, tmp_path / "json", Options(jobs=1), choice=choice, **more)
    assert samples(brand.BrandDataset(tmp_path / "json"))[1]["box"] == [[1, 2], [5, 6], []]


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl", "metadata.parquet"])
def test_every_kind_of_table_is_gathered(tmp_path: Path, name: str) -> None:
    """Also the tables that are found."""
    rows = [
        {"file_name": "b.png", "text": "x"},
        {"file_name": "a.png", "text": "y"},
        {"file_name": "b.png", "text": "z"},
    ]
    source = lay(tmp_path / "images", TWO)
    if name.endswith("csv"):
        lay(source, {name: "file_name,text\n" + "".join(f"{r['file_name']},{r['text']}\n" for r in rows)})
    elif name.endswith("jsonl"):
        lay(source, {name: "".join(json.dumps(row) + "\n" for row in rows)})
    else:
        pytest.importorskip("pandas").DataFrame(rows).to_parquet(source / name)
    data, _ = converted(source, choice=gathered("text"))
    assert [sample["text"] for sample in samples(data)] == [["y"], ["x", "z"]]
    assert unpack(tmp_path / "set", tmp_path / "again") == 3
    assert files_below(tmp_path / "again") == files_below(source)


def test_images_without_a_row_have_empty_lists(tmp_path: Path) -> None:
    """If all fields are lists: images without an object. Otherwise they lack a value, as without `--gather`."""
    source = lay(
        tmp_path / "images", {**TWO, "c.png": TWO["a.png"], "metadata.csv": "file_name,w,x\na.png,1,2\na.png,1,3\n"}
    )
    data, report = converted(source, choice=gathered("*"))
    assert [sample["x"] for sample in samples(data)] == [[2, 3], [], []]
    facts = {fact.what: (fact.count, fact.example, fact.text) for fact in report.noticed}
    told = "2 images have no row in the table: their lists are empty"
    assert facts["files_without_rows"] == (2, "b.png", told)
    shutil.rmtree(tmp_path / "set")
    with pytest.raises(SourceError, match=r"b\.png: the table metadata\.csv has no row for it"):
        converted(source, choice=gathered("x"))
    data, report = converted(source, choice=gathered("x"), skip=True)
    assert [(sample["w"], sample["x"]) for sample in samples(data)] == [(1, [2, 3])]
    assert len(report.skipped) == 2


@pytest.mark.parametrize(
    ("rows", "message", "left"),
    [
        (
            "a,1,1\na,2,2\nb,3,3\n",
            "rows of a.png: field 'w' differs between its rows: --gather w makes a list",
            ["b.png"],
        ),
        ("a,1,1\na,1,\nb,3,3\n", "line 3: field 'x': expected int, found NoneType", ["b.png"]),
        ("a,1,1\nc,1,1\nb,3,3\n", "line 3: there is no file 'c'", ["a.png", "b.png"]),
    ],
)
def test_rows_that_do_not_fit_together(tmp_path: Path, rows: str, message: str, left: list[str]) -> None:
    """They end the conversion; or the whole image is left out: a list that lacks a row is never stored."""
    source = lay(tmp_path / "images", {**TWO, "metadata.csv": f"file_name,w,x\n{rows}"})
    with pytest.raises(SourceError, match=message):
        converted(source, choice=gathered("x"))
    data, report = converted(source, choice=gathered("x"), skip=True)
    assert [sample["key"] for sample in samples(data)] == left
    assert len(report.skipped) == 1


@pytest.mark.parametrize(
    ("names", "codecs", "message"),
    [
        (("y",), {}, "--gather y: there is no such column; there are w, x"),
        (("file_name",), {}, "--gather file_name: there is no such column"),
        (("x",), {"x": "bytes"}, "--gather x: it is bytes, and there are no lists of these: --field x=json"),
        (("x",), {"x": "list[int]"}, "--gather x: it is list.int., and there are no lists of these: --field x=json"),
    ],
)
def test_columns_that_are_not_gathered(tmp_path: Path, names: Any, codecs: Any, message: str) -> None:
    """The message names those that can be, or another codec, which works."""
    source = lay(tmp_path / "images", {**TWO, "metadata.csv": "file_name,w,x\na,1,[1]\na,1,[2]\nb,1,[]\n"})
    with pytest.raises(UsageError, match=message):
        converted(source, choice=gathered(*names, codecs=codecs))
    data, _ = converted(source, choice=gathered("x", codecs={"x": "json"}))
    assert [sample["x"] for sample in samples(data)] == [[[1], [2]], [[]]]


def test_many_rows_of_many_images_in_any_order(tmp_path: Path) -> None:
    """Shuffled rows, more than a block of them: the lists of a slow, obvious model. Tasks write the same bytes."""
    rng, files = np.random.default_rng(0), {f"{at:03}.png": png(1 + at % 7, 2, at % 80) for at in range(300)}
    source, lists = lay(tmp_path / "images", files), {name: list[tuple[str, int]]() for name in files}
    rows = []
    for number, at in enumerate(rng.permutation(np.repeat(np.arange(299), 17)).tolist()):
        text = f"row {number} " * int(rng.integers(0, 200))
        rows.append(f"{at:03},{text},{number}\n")
        lists[f"{at:03}.png"].append((text, number))
    lay(tmp_path, {"t.csv": "id,text,n\n" + "".join(rows)})
    more: dict[str, Any] = {"table": tmp_path / "t.csv", "key": "id", "choice": gathered("*")}
    options = Options(chunk_size=40, jobs=1)
    convert_images(source, tmp_path / "one", options, **more)
    found = samples(brand.BrandDataset(tmp_path / "one"))
    assert [list(zip(each["text"], each["n"], strict=True)) for each in found] == list(lists.values())
    for number in range(2):
        run_task(plan_images(source, tmp_path / "tasks", options, tasks=2, **more), Task(number, 2), jobs=1)
    seal(tmp_path / "tasks")
    assert files_below(tmp_path / "tasks") == files_below(tmp_path / "one")


def test_the_command_with_a_dialect_and_gather(tmp_path: Path) -> None:
    """`--separator`, `--quote`, `--escape` for a table with `--table` and for `metadata.csv`; not for other tables."""
    source = lay(tmp_path / "images", TWO)
    lay(tmp_path, {"t.csv": "id|n|text\na|1|'x|y'\na|2|\\'\nb|3|z\n"})
    form = ["--separator", "|", "--quote", "single", "--escape", "\\"]
    options = ["--table", tmp_path / "t.csv", "--key", "id", *form, "--gather", "n,text"]
    assert run("convert", "images", source, tmp_path / "set", *options).code == 0
    expected = [{"n": [1, 2], "text": ["x|y", "'"], "key": "a.png"}, {"n": [3], "text": ["z"], "key": "b.png"}]
    assert samples(brand.BrandDataset(tmp_path / "set")) == expected
    assert run("append", "images", source, tmp_path / "grown", *options).code == 0
    assert samples(brand.BrandDataset(tmp_path / "grown")) == expected
    lay(source, {"metadata.csv": (tmp_path / "t.csv").read_text().replace("id", "file_name")})
    assert run("convert", "images", source, tmp_path / "found", *form, "--gather", "*").code == 0
    assert samples(brand.BrandDataset(tmp_path / "found")) == expected
    (source / "metadata.csv").unlink()
    said = run("convert", "images", source, tmp_path / "none", *form)
    assert "--separator, --quote and --escape are about a table: name it with --table" in said.err
    lay(source, {"metadata.jsonl": '{"file_name": "a", "n": 1}\n{"file_name": "b", "n": 1}\n'})
    assert (
        "are about CSV and TSV files, and this is neither"
        in run("convert", "images", source, tmp_path / "none", *form).err
    )


@pytest.mark.parametrize("form", ["tsv", "csv.gz", "bom", "quoted", "txt"])
def test_forms_of_a_gathered_table(tmp_path: Path, form: str) -> None:
    """TSV is literal; compressed tables, marks at the front, lines of Windows and lines in cells are read."""
    texts = {"tsv": ['"x', 'y"'], "quoted": ["one\ntwo", "three"]}.get(form, ["1,5", "2"])
    cells = [text if form == "tsv" else f'"{text}"' for text in texts]
    between = "\t" if form == "tsv" else ","
    lines = [f"id{between}t", f"a{between}{cells[0]}", f"b{between}z", f"./a.png{between}{cells[1]}"]
    data = (("\ufeff" if form == "bom" else "") + ("\r\n" if form == "bom" else "\n").join(lines) + "\n").encode()
    name = {"bom": "t.csv", "quoted": "t.csv"}.get(form, f"t.{form}")
    source = lay(tmp_path / "images", {**TWO, name: gzip.compress(data) if form == "csv.gz" else data})
    found, _ = converted(source, table=name, key="id", choice=gathered("t"))
    assert [sample["t"] for sample in samples(found)] == [texts, ["z"]]


def test_missing_numbers_of_gathered_rows(tmp_path: Path) -> None:
    """As tables of competitions have them for images without an object; the hint helps."""
    source = lay(tmp_path / "images", {**TWO, "metadata.csv": "file_name,x\na,1.5\na,\nb,\n"})
    with pytest.raises(SourceError, match=r"line 3: field 'x': expected float, found NoneType.*--null x=VALUE"):
        converted(source, choice=gathered("x"))
    data, _ = converted(source, choice=gathered("x", nulls={"x": "nan"}))
    assert str([sample["x"] for sample in samples(data)]) == "[[1.5, nan], [nan]]"
