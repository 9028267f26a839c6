"""Splits, configurations and partitions in the names of files: refused, chosen, or columns; never mixed unsaid."""

from __future__ import annotations

import csv
import json
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from brand.chunker import convert_from, convert_images
from brand.chunker.sources.splits import is_split, labels_of
from brand.errors import SourceError, UsageError
from brand.storage.dataset.dataset import StoredDataSet
from tests.support import brand, options

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def write(path: Path, values: list[int]) -> None:
    """Write a file with a column `n`, in the format that its ending says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.table({"n": values}), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"n": value}) + "\n" for value in values))
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([["n"], *([value] for value in values)])
    else:
        with tarfile.open(path, "w") as archive:
            for value in values:
                facts = tarfile.TarInfo(f"{value}.id")
                facts.size = len(str(value))
                archive.addfile(facts, BytesIO(str(value).encode()))


ENDINGS = {"parquet": ".parquet", "hf": ".parquet", "jsonl": ".jsonl", "csv": ".csv", "webdataset": ".tar"}


def numbers(target: Path) -> list[int]:
    """The numbers in a data set, by index."""
    stored = StoredDataSet(target)
    field = "id" if "id" in stored.header.schema.names else "n"
    return [int(stored.sample(index)[field]) for index in range(len(stored))]


SEVERAL = {
    ("data/train-00000-of-00002", "data/train-00001-of-00002", "data/test-00000-of-00001"): {"test", "train"},
    ("train_sft-00000-of-00001", "train_gen-00000-of-00001", "test_sft-00000-of-00001"): {
        "train_sft",
        "train_gen",
        "test_sft",
    },
    ("data/testmini-00000-of-00001", "data/test-00000-of-00001"): {"test", "testmini"},
    ("train/0000", "train/0001", "test/0000"): {"test", "train"},
    ("en/a", "de/a"): {"de", "en"},
    ("en/train/0", "en/test/0", "de/train/0"): {"en/train", "en/test", "de/train"},
    ("default/train/0000", "default/validation/0000"): {"train", "validation"},
    ("train", "holdout"): {"train", "holdout"},
    ("train", "dev"): {"train", "dev"},
    ("imdb-train-1", "imdb-train-2", "imdb-test-1"): {"imdb_train", "imdb_test"},
    ("train", "sample_submission"): {"train", "rest"},
    ("v1/a", "v2/a"): {"v1", "v2"},
    ("a", "extra/b"): {"rest", "extra"},
    ("train2014", "val2014"): {"train2014", "val2014"},
    ("c4-train.00000-of-01024", "c4-validation.00000-of-00008"): {"c4-train", "c4-validation"},
    ("simple/chunk-0/train", "simple/chunk-1/test"): {"simple/train", "simple/test"},
}
ONE = [
    ("part-00000-of-00002", "part-00001-of-00002"),
    ("0000", "0001"),
    ("train-00000-of-00002", "train-00001-of-00002"),
    ("train_0", "train_1"),
    ("train/0000", "train/0001"),
    ("chunk1/a", "chunk2/b"),
    ("00/x", "a7/y", "ff/z"),
    ("books", "wiki"),
    ("2021/a", "2022/a"),
    ("shard-000001-aa", "shard-000002-bb"),
    ("part-00000-8f6f1a2b-1c2d-c000", "part-00001-8f6f1a2b-1c2d-c000"),
    ("a/x", "b/y", "c/z"),
]


@pytest.mark.parametrize(
    ("names", "kind"),
    [(names, "jsonl") for names in SEVERAL] + [(("en/train/0", "en/test/0", "de/train/0"), kind) for kind in ENDINGS],
    ids=str,
)
def test_several_splits_are_refused_and_each_is_converted_by_the_option_that_the_message_names(
    names: tuple[str, ...], kind: str, tmp_path: Path
) -> None:
    """The options that the message lists take all files, each once."""
    for value, name in enumerate(names):
        write(tmp_path / "src" / f"{name}{ENDINGS[kind]}", [value])
    with pytest.raises(UsageError, match="more than one split or configuration") as caught:
        convert_from(kind, tmp_path / "src", tmp_path / "set", options())
    assert not (tmp_path / "set").exists()
    listed = str(caught.value).partition("of its own: ")[2].partition(". --split all")[0]
    splits = [option.removeprefix("--split ") for option in listed.split(", ")]
    assert set(splits) == SEVERAL[names]
    found: list[int] = []
    for number, split in enumerate(splits):
        convert_from(kind, tmp_path / "src", tmp_path / str(number), options(split=split))
        found += numbers(tmp_path / str(number))
    assert sorted(found) == list(range(len(names)))
    convert_from(kind, tmp_path / "src", tmp_path / "all", options(split="all"))
    assert sorted(numbers(tmp_path / "all")) == list(range(len(names)))
    with pytest.raises(UsageError, match="has no split 'nonsense'"):
        convert_from(kind, tmp_path / "src", tmp_path / "none", options(split="nonsense"))


@pytest.mark.parametrize("names", ONE, ids=lambda names: "+".join(names))
def test_the_files_of_one_split_are_taken_together(names: tuple[str, ...], tmp_path: Path) -> None:
    """Counters, letters and digests distinguish no splits."""
    for value, name in enumerate(names):
        write(tmp_path / "src" / f"{name}.jsonl", [value])
    convert_from("jsonl", tmp_path / "src", tmp_path / "set", options())
    assert sorted(numbers(tmp_path / "set")) == list(range(len(names)))


def test_a_pattern_is_the_word_of_the_user(tmp_path: Path) -> None:
    """It may name files of several splits."""
    write(tmp_path / "train.csv", [0])
    write(tmp_path / "test.csv", [1])
    convert_from("csv", str(tmp_path / "t*.csv"), tmp_path / "set", options())
    assert numbers(tmp_path / "set") == [1, 0]
    with pytest.raises(UsageError, match="leave --split out"):
        convert_from("csv", str(tmp_path / "t*.csv"), tmp_path / "other", options(split="train"))


def test_a_split_of_a_configuration_is_named_with_it(tmp_path: Path) -> None:
    """A name that is in several configurations is refused with the whole names."""
    for value, name in enumerate(("en/train", "de/train", "de/test")):
        write(tmp_path / "src" / f"{name}.jsonl", [value])
    with pytest.raises(UsageError, match=r"--split de/train, --split en/train"):
        convert_from("jsonl", tmp_path / "src", tmp_path / "set", options(split="train"))
    convert_from("jsonl", tmp_path / "src", tmp_path / "set", options(split="test"))
    assert numbers(tmp_path / "set") == [2]


@pytest.mark.parametrize("names", [n for n in SEVERAL if any("train" in each for each in n)][:8], ids="+".join)
def test_the_rows_are_those_of_the_library_datasets(
    names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it finds a split of that name, it has the same rows."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for value, name in enumerate(names):
        write(tmp_path / "src" / f"{name}.parquet", [value])
    loaded = datasets.load_dataset(str(tmp_path / "src"), cache_dir=str(tmp_path / "cache"))
    for split in SEVERAL[names] & set(loaded):
        convert_from("hf", tmp_path / "src", tmp_path / split, options(split=split))
        assert sorted(numbers(tmp_path / split)) == sorted(loaded[split]["n"])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("train", True),
        ("val2017", True),
        ("test-clean", True),
        ("train-clean-100", True),
        ("trainA", True),
        ("holdout", True),
        ("train_station", False),
        ("testimonial", False),
        ("trains", False),
        ("validator", False),
    ],
)
def test_which_folders_are_splits(name: str, says: bool) -> None:
    """Names of classes that begin alike are not."""
    assert is_split(name) == says


def test_labels_are_shared_by_files_with_equal_names() -> None:
    """Compressed files have the label of others."""
    assert labels_of(["train.json.gz", "news/train.json"], [".json", ".json.gz"]) == ["train", "news/train"]


PARTITIONS = {
    "whole numbers": ["year=2023", "year=2024"],
    "leading zeros": ["month=01", "month=12"],
    "texts": ["lang=de", "lang=en"],
    "mixed": ["a=1", "a=x"],
    "escaped": ["t=a%20b%2Fc", "t=%C3%A4"],
    "two levels": ["year=2023/lang=de", "year=2024/lang=en"],
    "negative": ["n=-1", "n=2"],
    "dates": ["day=2024-01-01", "day=2024-01-02"],
    "floats": ["x=0.5", "x=1.5"],
    "an equals sign": ["e=a=b", "e=c"],
}


@pytest.mark.parametrize("folders", PARTITIONS.values(), ids=PARTITIONS)
def test_partitions_become_columns_as_pyarrow_reads_them(folders: list[str], tmp_path: Path) -> None:
    """By a folder, and by a pattern."""
    import pyarrow.dataset

    for number, folder in enumerate(folders):
        path = tmp_path / "table" / folder / "part.parquet"
        path.parent.mkdir(parents=True)
        parquet.write_table(pyarrow.table({"v": [number, 10 + number]}), path)
    rows = pyarrow.dataset.dataset(tmp_path / "table", partitioning="hive").to_table().to_pylist()
    for number, source in enumerate([str(tmp_path / "table"), str(tmp_path / "table" / "**" / "*.parquet")]):
        convert_from("parquet", source, tmp_path / str(number), options())
        stored = StoredDataSet(tmp_path / str(number))
        found = [{name: stored.sample(index)[name] for name in rows[0]} for index in range(4)]
        assert sorted(found, key=lambda row: row["v"]) == sorted(rows, key=lambda row: row["v"])


def test_a_missing_value_of_a_partition_is_a_missing_value(tmp_path: Path) -> None:
    """`--null` replaces it; and only columns of partitions may be taken."""
    for folder, value in (("k=__HIVE_DEFAULT_PARTITION__", 1), ("k=7", 2)):
        write(tmp_path / "t" / folder / "a.parquet", [value])
    told = brand("convert", "parquet", tmp_path / "t", tmp_path / "bad", "-j", 1)
    assert told.code == 1, told.err
    assert "--null k=" in told.err
    assert brand("convert", "parquet", tmp_path / "t", tmp_path / "set", "-j", 1, "--null", "k=-1").code == 0
    stored = StoredDataSet(tmp_path / "set")
    assert {(stored.sample(i)["n"], stored.sample(i)["k"]) for i in range(2)} == {(1, -1), (2, 7)}
    command = ("convert", "parquet", tmp_path / "t", tmp_path / "only", "-j", 1, "--null", "k=-1", "--columns", "k")
    assert brand(*command).code == 0
    assert sorted(StoredDataSet(tmp_path / "only").sample(i)["k"] for i in range(2)) == [-1, 7]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "webdataset"])
def test_partitions_of_other_files_are_refused(kind: str, tmp_path: Path) -> None:
    """The message names a pattern, which is taken without the column."""
    for value in (1, 2):
        write(tmp_path / "t" / f"year={value}" / f"a{ENDINGS[kind]}", [value])
    with pytest.raises(UsageError, match="the column 'year' would be lost") as caught:
        convert_from(kind, tmp_path / "t", tmp_path / "set", options())
    pattern = str(caught.value).rpartition(": '")[2].removesuffix("'")
    convert_from(kind, pattern, tmp_path / "set", options())
    assert sorted(numbers(tmp_path / "set")) == [1, 2]


def test_files_of_writers_at_work_are_no_data(tmp_path: Path) -> None:
    """For Parquet, as PyArrow reads it, no name with `_` or `.` at its front is."""
    import pyarrow.dataset

    for name in ("part-0", "_temporary/0/attempt/part-1", "_x", ".part-2", "_metadata/z", ".hidden/y"):
        write(tmp_path / "t" / f"{name}.parquet", [1])
    (tmp_path / "t" / "_SUCCESS").touch()
    convert_from("parquet", tmp_path / "t", tmp_path / "set", options())
    assert len(StoredDataSet(tmp_path / "set")) == pyarrow.dataset.dataset(tmp_path / "t").count_rows() == 1
    for name in ("part-0", "_temporary/0/part-1"):
        write(tmp_path / "j" / f"{name}.jsonl", [1])
    convert_from("jsonl", tmp_path / "j", tmp_path / "json", options())
    assert len(StoredDataSet(tmp_path / "json")) == 1


@pytest.mark.parametrize("log", ["_delta_log/0.json", ".hoodie/h", "metadata/v1.metadata.json"])
def test_a_table_with_a_log_is_refused(log: str, tmp_path: Path) -> None:
    """Files that its log has removed are still there."""
    write(tmp_path / "t" / "data" / "a.parquet", [1])
    (tmp_path / "t" / log).parent.mkdir()
    (tmp_path / "t" / log).touch()
    with pytest.raises(UsageError, match=r"is a table of (Delta Lake|Hudi|Iceberg)"):
        convert_from("parquet", tmp_path / "t", tmp_path / "set", options())


@pytest.mark.parametrize("kind", ENDINGS)
def test_links_are_followed_and_loops_end(kind: str, tmp_path: Path) -> None:
    """A linked folder of shards, a linked file, and links to folders above."""
    source, outside = tmp_path / "src", tmp_path / "outside"
    write(source / f"a{ENDINGS[kind]}", [0])
    write(outside / f"b{ENDINGS[kind]}", [1])
    write(tmp_path / f"c{ENDINGS[kind]}", [2])
    (source / "chunk1").symlink_to(outside)
    (source / f"c{ENDINGS[kind]}").symlink_to(tmp_path / f"c{ENDINGS[kind]}")
    (source / "chunk2").symlink_to(".")
    (outside / "chunk3").symlink_to(source)
    convert_from(kind, source, tmp_path / "set", options(split="all"))
    assert sorted(numbers(tmp_path / "set")) == [0, 1, 2]
    (source / "chunk4").symlink_to(outside)
    with pytest.raises(SourceError, match="a link names again"):
        convert_from(kind, source, tmp_path / "twice", options(split="all"))
    (source / "chunk4").unlink()
    (source / f"d{ENDINGS[kind]}").symlink_to("nowhere")
    for src in (source, str(source / "*")):
        with pytest.raises(SourceError, match="a link to a file that does not exist"):
            convert_from(kind, src, tmp_path / "broken", options(split="all" if src == source else None))


def test_endings_in_capitals_count(tmp_path: Path) -> None:
    """No file is left out for its case."""
    write(tmp_path / "src" / "a.csv", [1])
    write(tmp_path / "b.csv", [2])
    (tmp_path / "b.csv").rename(tmp_path / "src" / "B.CSV")
    convert_from("csv", tmp_path / "src", tmp_path / "set", options())
    assert sorted(numbers(tmp_path / "set")) == [1, 2]


def test_the_folders_of_mosaicml_streaming(tmp_path: Path) -> None:
    """Without an index of its own, a folder holds splits."""
    import shutil

    from tests.chunker.test_importers import SOURCES

    for split in ("train", "val"):
        shutil.copytree(SOURCES / "mds", tmp_path / "src" / split)
        shutil.copytree(SOURCES / "litdata", tmp_path / "lit" / split)
    for kind, folder in (("mds", "src"), ("litdata", "lit")):
        with pytest.raises(UsageError, match="--split train, --split val"):
            convert_from(kind, tmp_path / folder, tmp_path / "set", options())
        convert_from(kind, tmp_path / folder, tmp_path / kind, options(split="val"))
        assert len(StoredDataSet(tmp_path / kind)) > 0


def picture(path: Path) -> None:
    """Write a small image."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (2, 2)).save(path)


IMAGES = {
    "parent": (["train/a/1", "train/b/1", "val/a/1", "val/b/1"], "train", ["a/1", "b/1"], 2),
    "with another folder": (["train/a/1", "test/a/1", "extra/a/1"], "test", ["a/1"], 1),
    "one split": (["train/a/1", "train/b/1"], "train", ["a/1", "b/1"], 2),
    "classes first": (["a/train/1", "b/train/1", "a/test/1"], "train", ["a/train/1", "b/train/1"], 2),
    "years": (["train2017/1", "val2017/1"], "val2017", ["1"], None),
    "letters": (["trainA/1", "trainB/1", "testA/1"], "trainB", ["1"], None),
    "names": (["train_1", "train_2", "test_1", "test_2"], "test", ["test_1", "test_2"], None),
    "LibriSpeech": (["train-clean-100/1/1", "dev-other/1/1"], "dev-other", ["1/1"], 1),
    "Imagenette": (["train/n01/1", "val/n01/1", "meta/x/1"], "val", ["n01/1"], 1),
    "images": (["train_images/1", "test_images/1", "extra/1"], "test_images", ["1"], None),
    "Market": (["bounding_box_train/1", "bounding_box_test/1", "query/1"], "bounding_box_train", ["1"], None),
    "wrapped": (["data/train/a/1", "data/test/a/1"], "train", ["a/1"], 1),
    "holdout": (["holdout/a/1", "training/a/1"], "holdout", ["a/1"], 1),
}


@pytest.mark.parametrize(("names", "split", "keys", "classes"), IMAGES.values(), ids=IMAGES)
def test_folders_of_images_with_splits(
    names: list[str], split: str, keys: list[str], classes: int | None, tmp_path: Path
) -> None:
    """Are refused; `--split` takes one of them, with the keys and labels of that folder, or all as they are."""
    for name in names:
        picture(tmp_path / "src" / f"{name}.png")
    for more in ({}, {"labels": False}):
        with pytest.raises(UsageError, match=f"--split {split}"):
            convert_images(tmp_path / "src", tmp_path / "set", options(**more))
    told = brand("convert", "images", tmp_path / "src", tmp_path / "set", "-j", 1, "--split", split)
    assert told.code == 0, told.err
    stored = StoredDataSet(tmp_path / "set")
    assert [stored.sample(i)["key"] for i in range(len(stored))] == [f"{key}.png" for key in keys]
    assert (stored.header.classes and len(stored.header.classes)) == classes
    convert_images(tmp_path / "src", tmp_path / "all", options(split="all"))
    assert len(StoredDataSet(tmp_path / "all")) == len(names)
    with pytest.raises(UsageError, match="no split 'dev'"):
        convert_images(tmp_path / "src", tmp_path / "dev", options(split="dev"))


def test_classes_that_are_called_like_a_split(tmp_path: Path) -> None:
    """One of several is a class; all are with `--split all`, as torchvision numbers them."""
    for name in ("train", "car", "test_tube"):
        picture(tmp_path / "vehicles" / name / "1.png")
    convert_images(tmp_path / "vehicles", tmp_path / "set", options())
    assert StoredDataSet(tmp_path / "set").header.classes == ("car", "test_tube", "train")
    for name in ("train", "test"):
        picture(tmp_path / "words" / name / "1.png")
    convert_images(tmp_path / "words", tmp_path / "words.brand", options(split="all"))
    assert StoredDataSet(tmp_path / "words.brand").header.classes == ("test", "train")


def test_a_folder_of_converted_data_sets_is_told(tmp_path: Path) -> None:
    """By the importers and by the reader, neither of which advises to convert it."""
    from brand import BrandDataset
    from brand.errors import NotADataSetError

    picture(tmp_path / "src" / "a" / "1.png")
    for name in ("a", "b"):
        convert_images(tmp_path / "src", tmp_path / "sets" / f"{name}.brand", options())
    for kind in ("images", "csv"):
        told = brand("convert", kind, tmp_path / "sets", tmp_path / "x")
        assert (told.code, "2 data sets of Brand, converted already: BrandDataset reads" in told.err) == (2, True)
    with pytest.raises(NotADataSetError, match=r"holds 2 data sets: name one, such as a\.brand"):
        BrandDataset(tmp_path / "sets")


def test_pack_of_an_image_folder_of_hugging_face(tmp_path: Path) -> None:
    """The files that its rows name are stored, with label and classes; a dict of splits is refused by its name."""
    datasets = pytest.importorskip("datasets")
    from brand import BrandDataset
    from brand.chunker import pack

    for name in ("train/a/1", "train/b/1", "test/a/1"):
        picture(tmp_path / "src" / f"{name}.png")
    loaded = datasets.load_dataset("imagefolder", data_dir=str(tmp_path / "src"), cache_dir=str(tmp_path / "cache"))
    with pytest.raises(UsageError, match=r"DatasetDict with the splits train, test.*brand\.pack\(samples\['train'\]"):
        pack(loaded, tmp_path / "set")
    pack(loaded["train"], tmp_path / "set", jobs=1)
    stored = BrandDataset(tmp_path / "set", decode=False)
    found = {(stored[index]["label"], stored[index]["image"]) for index in range(2)}
    assert found == {
        (label, (tmp_path / "src" / f"train/{name}/1.png").read_bytes()) for label, name in enumerate("ab")
    }
    assert StoredDataSet(tmp_path / "set").header.classes == ("a", "b")


def test_a_later_file_with_more_columns_is_refused(tmp_path: Path) -> None:
    """Its column would be lost; `--columns` names those to take."""
    write(tmp_path / "src" / "a.parquet", [1])
    parquet.write_table(pyarrow.table({"n": [2], "more": [3]}), tmp_path / "src" / "b.parquet")
    told = brand("convert", "parquet", tmp_path / "src", tmp_path / "set", "-j", 1)
    assert (told.code, "b.parquet: it has a column 'more', which a.parquet has not" in told.err) == (1, True), told.err
    assert brand("convert", "parquet", tmp_path / "src", tmp_path / "set", "-j", 1, "--columns", "n").code == 0


def test_a_pattern_names_each_file_once(tmp_path: Path) -> None:
    """Also if links lead back."""
    write(tmp_path / "src" / "x" / "a.csv", [1])
    (tmp_path / "src" / "x" / "loop").symlink_to("..")
    convert_from("csv", str(tmp_path / "src" / "**" / "*.csv"), tmp_path / "set", options())
    assert numbers(tmp_path / "set") == [1]
