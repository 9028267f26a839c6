"""`metadata.*` with `*_file_name` and `file_names`: the samples that `load_dataset("imagefolder")` gives."""

from __future__ import annotations

import gc
import io
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import brand
from brand.chunker import Options, convert_images
from brand.chunker.distributed import plan_images
from brand.chunker.importers.fields import FieldMapping
from brand.errors import SourceError, UsageError
from brand.storage.maintenance.verify import verify
from tests.chunker.test_tables_beside import lay
from tests.support import brand as run
from tests.torch.test_lists import png

FILES: dict[str, bytes | str] = {
    f"{kind}/{at}.png": png(2 + at, 3, 10 * at) for kind in ("in", "out") for at in range(4)
}
PAIRS = [{"input_file_name": f"in/{at}.png", "target_file_name": f"out/{at}.png", "n": at} for at in (2, 0, 1)]
MASKS = [{"file_name": f"in/{at}.png", "mask_file_name": f"out/{at}.png", "text": str(at)} for at in (3, 1, 3)]
LISTS = [
    {"file_names": [f"in/{at}.png" for at in range(count)], "page_file_names": ["out/0.png"] * (4 - count), "n": count}
    for count in (3, 1, 2)
]


def written(folder: Path, rows: list[dict[str, Any]], name: str) -> Path:
    """A folder of images with the rows in a table."""
    lay(folder, FILES)
    if name.endswith(".csv"):
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        lay(folder, {name: "\n".join(lines) + "\n"})
    elif name.endswith(".jsonl"):
        lay(folder, {name: "".join(json.dumps(row) + "\n" for row in rows)})
    else:
        pytest.importorskip("pandas").DataFrame(rows).to_parquet(folder / name)
    return folder


def plain(value: Any) -> Any:
    """A value in a form that compares: images as size and pixels."""
    if isinstance(value, list):
        return list(map(plain, value))
    if isinstance(value, bytes):
        value = Image.open(io.BytesIO(value))
    return (value.size, value.convert("RGB").tobytes()) if isinstance(value, Image.Image) else value


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # `datasets` leaves the table open
@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl", "metadata.parquet"])
@pytest.mark.parametrize("rows", [PAIRS, MASKS, LISTS], ids=["pairs", "masks", "lists"])
def test_the_samples_of_hugging_face(tmp_path: Path, rows: list[dict[str, Any]], name: str) -> None:
    """Every row, every field, every pixel, in the order of the table."""
    if rows is LISTS and name == "metadata.csv":
        pytest.skip("a cell of CSV is no list, in `datasets` as here")
    datasets = pytest.importorskip("datasets")
    source = written(tmp_path / "images", rows, name)
    report = convert_images(source, tmp_path / "set", Options(jobs=1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # `datasets` leaves the table open
        theirs = datasets.load_dataset("imagefolder", data_dir=str(source), cache_dir=str(tmp_path / "cache"))["train"]
        gc.collect()
    mine = brand.BrandDataset(tmp_path / "set", decode=False)
    assert [error for step in verify(tmp_path / "set") for error in step.errors] == []
    assert set(mine.schema) == set(theirs.column_names)
    assert len(mine) == len(theirs) == report.samples == len(rows)
    expected = [{field: plain(value) for field, value in row.items()} for row in theirs]
    if "text" in theirs.column_names:  # pandas makes a number of the text
        expected = [{**row, "text": int(row["text"])} for row in expected]
    found = [{field: plain(mine[at][field]) for field in mine.schema} for at in range(len(mine))]
    found = [{**row, "text": int(row["text"])} if "text" in row else row for row in found]
    assert found == expected


def test_empty_lists(tmp_path: Path) -> None:
    """`datasets` 5.2 fails at a row with an empty list."""
    source = written(tmp_path / "images", [{"file_names": ["in/1.png"]}, {"file_names": []}], "metadata.jsonl")
    convert_images(source, tmp_path / "set", Options(jobs=1))
    data = brand.BrandDataset(tmp_path / "set", decode=False)
    assert [data[at]["images"] for at in range(2)] == [[FILES["in/1.png"]], []]


def test_what_is_noted(tmp_path: Path) -> None:
    """The fields, and the images that no row names."""
    source = written(tmp_path / "images", MASKS, "metadata.csv")
    report = convert_images(source, tmp_path / "set", Options(jobs=1))
    assert "column 'mask_file_name' is field 'mask': the files that it names" in report.notes
    facts = {fact.what: (fact.count, fact.example, fact.text) for fact in report.noticed}
    told = "4 images in the folder are in no row of the table, and not converted"
    assert facts["images_not_named"] == (4, "in/0.png", told)


def test_training_with_masks(tmp_path: Path) -> None:
    """Image and mask of a row come together, each decoded as its user says."""
    source = written(tmp_path / "images", MASKS, "metadata.jsonl")
    assert run("convert", "images", source, tmp_path / "set").code == 0
    decode = {"image": brand.DecodeImage(size=(8, 8)), "mask": brand.DecodeMask(size=(8, 8))}
    data = brand.BrandDataset(tmp_path / "set", fields=("image", "mask", "text"), decode=decode)
    for images, masks, texts in brand.BrandLoader(data, 3):
        assert images[:, 0, 0, 0].tolist() == masks[:, 0, 0, 0].tolist() == [10 * int(text) for text in texts]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a_file_name,b\nin/0.png,1\nin/9.png,2\n", "line 3: .*in/9.png: No such file"),
        ("a_file_name,b\n../x.png,1\n", "names the file '../x.png', which is not below the folder"),
        ("a_file_name,b\nin/0.png,1\n,2\n", "line 3: column 'a_file_name' names no file. --null a_file_name=NAME"),
        ("a_file_name,b\nin/0.png,1\nmetadata.csv,2\n", "line 3, field 'a' .image.: not an image"),
    ],
)
def test_rows_whose_files_cannot_be_used(tmp_path: Path, rows: str, message: str) -> None:
    """They end the conversion, or are left out and listed."""
    source = lay(tmp_path / "images", {**FILES, "metadata.csv": rows})
    with pytest.raises(SourceError, match=message):
        convert_images(source, tmp_path / "set", Options(jobs=1))
    if "in/0.png" in rows:
        report = convert_images(source, tmp_path / "set", Options(jobs=1, skip_errors=True))
        assert (report.samples, len(report.skipped)) == (1, 1)


def test_a_file_for_rows_that_name_none(tmp_path: Path) -> None:
    """The hint of the message, followed; rows around bad ones keep their values."""
    rows = [{"a_file_name": f"in/{at}.png" if at % 3 else None, "n": at} for at in range(1, 4)]
    source = written(tmp_path / "images", rows, "metadata.jsonl")
    with pytest.raises(SourceError, match="line 3: column 'a_file_name' names no file"):
        convert_images(source, tmp_path / "set", Options(jobs=1))
    report = convert_images(source, tmp_path / "left", Options(jobs=1, skip_errors=True))
    assert (report.samples, len(report.skipped)) == (2, 1)
    convert_images(source, tmp_path / "set", Options(jobs=1), choice=FieldMapping(nulls={"a_file_name": "out/0.png"}))
    data = brand.BrandDataset(tmp_path / "set", decode=False)
    assert [(data[at]["a"], data[at]["n"]) for at in range(3)] == [
        (FILES["in/1.png"], 1),
        (FILES["in/2.png"], 2),
        (FILES["out/0.png"], 3),
    ]


def test_uses_that_are_refused_and_the_ways_out(tmp_path: Path) -> None:
    """Two columns of one field; lists of rows; tasks; `--field NAME=str` keeps the names."""
    source = lay(tmp_path / "images", {**FILES, "metadata.csv": "a_file_name,a\nin/0.png,x\n"})
    with pytest.raises(
        UsageError, match="two of its columns would be the field 'a': rename one with --field NEW=COLUMN"
    ):
        convert_images(source, tmp_path / "set", Options(jobs=1))
    convert_images(source, tmp_path / "set", Options(jobs=1), choice=FieldMapping(renames={"b": "a"}))
    assert brand.BrandDataset(tmp_path / "set").schema == {"a": "image", "b": "str"}
    with pytest.raises(UsageError, match="--gather makes lists of the rows of a file, and here a row names several"):
        convert_images(source, tmp_path / "none", choice=FieldMapping(renames={"b": "a"}, gather=("*",)))
    with pytest.raises(UsageError, match="leave out the division into tasks"):
        plan_images(source, tmp_path / "none", choice=FieldMapping(renames={"b": "a"}))
    with pytest.raises(UsageError, match="is inside"):
        convert_images(source, source / "set", choice=FieldMapping(renames={"b": "a"}))
    kept = written(tmp_path / "kept", MASKS[:1], "metadata.csv")
    for path in [path for path in kept.rglob("*.png") if path != kept / "in/3.png"]:
        path.unlink()
    convert_images(kept, tmp_path / "texts", Options(jobs=1), choice=FieldMapping(codecs={"mask_file_name": "str"}))
    assert brand.BrandDataset(tmp_path / "texts").schema["mask_file_name"] == "str"
