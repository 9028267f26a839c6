"""Splits and configurations that the card of a Hub data set names: the rows of the library datasets, or a refusal."""

from __future__ import annotations

import io
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from brand.chunker.importers.files import find_files
from brand.storage.dataset.dataset import StoredDataSet
from tests.support import Outcome, brand

datasets = pytest.importorskip("datasets")

JSONL = {
    name: f'{{"name": "{name}"}}\n'
    for name in ("a.jsonl", "b.jsonl", "more/c.jsonl", "more/deep/d.jsonl", "x1.jsonl", "__p/e.jsonl")
}
WORDS = {
    name: f'{{"name": "{name}"}}\n'
    for name in ("d/train-1.jsonl", "d/train-2.jsonl", "d/dev.jsonl", "d/my_test_1.jsonl", "d/other.jsonl")
}
FOLDERS = {
    name: f'{{"name": "{name}"}}\n'
    for name in ("d/train/a.jsonl", "d/train/deep/b.jsonl", "d/test/a.jsonl", "d/rest.jsonl", "e/c.jsonl")
}
SHARDS = {
    f"d/data/{name}-of-00002.jsonl": f'{{"name": "{name}"}}\n'
    for name in ("train-00000", "train-00001", "odd.one-00000", "odd.one-00001")
}


def png_bytes(value: int) -> bytes:
    """A small image of one colour."""
    file = io.BytesIO()
    Image.new("RGB", (2, 2), (value, value, value)).save(file, "PNG")
    return file.getvalue()


def config(name: str, files: str, more: str = "") -> str:
    """A configuration of a card."""
    return f"- config_name: {name}\n" + (f"  data_files: {files}\n" if files else "") + more


def write(root: Path, files: Mapping[str, str | bytes], configs: str) -> Path:
    """Write the files of a data set, and its card."""
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    root.mkdir(exist_ok=True)
    (root / "README.md").write_text(f"---\nlicense: mit\nconfigs:\n{configs}---\n# Data\n" if configs else "# Data\n")
    return root


def loaded(root: Path, name: str | None, split: str) -> list[dict[str, Any]]:
    """Return the rows that the library reads."""
    found = datasets.load_dataset(str(root), name, split=split, cache_dir=str(root.parent / "cache"))
    return [dict(row) for row in found]


def converted(kind: str, root: Path, split: str | None, *more: object) -> Outcome:
    """Convert a folder."""
    return brand("convert", kind, root, root.parent / "set", *(["--split", split] if split else []), "-j", 1, *more)


def rows(target: Path) -> list[dict[str, Any]]:
    """Return the rows of a data set."""
    stored = StoredDataSet(target)
    samples = [stored.sample(index) for index in range(len(stored))]
    return [{name: value for name, value in sample.items() if name not in ("index", "key")} for sample in samples]


EN_DE = config("en", "a.jsonl") + config("de", "b.jsonl")
TWO_SPLITS = "\n  - split: train\n    path: a.jsonl\n  - split: test\n    path: [b.jsonl, 'x?.jsonl']"
LAYOUTS: dict[str, tuple[dict[str, str], str, str | None, str, str | None]] = {
    "one pattern": (JSONL, config("default", "'*.jsonl'"), None, "train", None),
    "a list, in its order": (JSONL, config("default", "[x1.jsonl, 'more/*', b.jsonl]"), None, "train", None),
    "all below a folder": (JSONL, config("default", "more/**"), None, "train", None),
    "all of all folders": (JSONL, config("default", "'**'"), None, "train", None),
    "all of an ending": (JSONL, config("default", "'**/*.jsonl'"), None, "train", None),
    "a class of characters": (JSONL, config("default", "'[!a].jsonl'"), None, "train", None),
    "a number": (JSONL, config("default", "./x[0-9].jsonl"), None, "train", None),
    "a pattern of nothing beside one": (JSONL, config("default", "[a.jsonl, 'z*.jsonl']"), None, "train", None),
    "a special folder": (JSONL, config("default", "__p/*"), None, "train", None),
    "lists of splits": (JSONL, config("default", TWO_SPLITS), None, "test", "test"),
    "a configuration of one name": (JSONL, EN_DE, "en", "train", "en"),
    "a configuration, whole": (JSONL, EN_DE, "de", "train", "de/train"),
    "a default among several": (JSONL, EN_DE + config("default", "x1.jsonl"), None, "train", "default/train"),
    "splits of configurations": (JSONL, config("en", TWO_SPLITS) + config("de", "a.jsonl"), "en", "test", "en/test"),
    "a file of two configurations": (JSONL, EN_DE + config("both", "[a.jsonl, b.jsonl]"), "both", "train", "both"),
    "a configuration without its files": (JSONL, EN_DE + config("fr", "fr.jsonl"), "en", "train", "en"),
    "a folder": (JSONL, config("c", "", "  data_dir: more\n"), "c", "train", None),
    "patterns in a folder": (JSONL, config("c", "'*.jsonl'", "  data_dir: more\n"), "c", "train", None),
    "a folder with words": (WORDS, config("c", "", "  data_dir: d\n"), "c", "train", "train"),
    "a folder with an abbreviated word": (WORDS, config("c", "", "  data_dir: d\n"), "c", "validation", "validation"),
    "a folder with a word within": (WORDS, config("c", "", "  data_dir: ./d/\n"), "c", "test", "test"),
    "a folder with folders": (FOLDERS, config("c", "", "  data_dir: d\n"), "c", "train", "train"),
    "neither files nor folder": (FOLDERS, config("c", ""), "c", "test", "test"),
    "a folder with shards": (SHARDS, config("c", "", "  data_dir: d\n"), "c", "odd.one", "odd.one"),
    "no card, and folders": (
        {"train/1.jsonl": "{}", "test/1.jsonl": "{}", "test/2.jsonl": "{}"}, "", None, "test", "test"
    ),
    "no card, and shards": (
        {f"data/{name}-of-00001.jsonl": "{}" for name in ("train-00000", "odd-00000")}, "", None, "odd", "odd"
    ),
    "files that are no data": (
        JSONL | {"LICENSE": "x", "a.py": "1", "config.json": "{}"}, config("c", "'*'"), None, "train", None
    ),
    "an ending in capitals": (JSONL | {"A.JSONL": "{}"}, config("c", "'*'"), None, "train", None),
    "a configuration given twice": (JSONL, config("c", "a.jsonl") + config("c", "b.jsonl"), None, "train", None),
    "an entry without effect": (JSONL, config("c", "a.jsonl", "  default: true\n"), None, "train", None),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_card_names_the_files_of_datasets(layout: str, tmp_path: Path) -> None:
    """In the order in which the library reads them."""
    files, configs, name, part, split = LAYOUTS[layout]
    root = write(tmp_path / "in", files, configs)
    builder = datasets.load_dataset_builder(str(root), name, cache_dir=str(tmp_path / "cache"))
    expected = [Path(path).relative_to(root).as_posix() for path in builder.config.data_files[part]]
    assert [file.name for file in find_files(root, (".jsonl",), "JSONL file", split)] == expected


def test_the_rows_are_those_of_datasets(tmp_path: Path) -> None:
    """Of a configuration with a list of splits."""
    root = write(tmp_path / "in", JSONL, config("en", TWO_SPLITS) + config("de", "[x1.jsonl, 'more/**']"))
    for name, part in (("en", "test"), ("de", "train")):
        told = brand("convert", "jsonl", root, tmp_path / name, "--split", f"{name}/{part}", "-j", 1)
        assert told.code == 0, told.err
        assert rows(tmp_path / name) == loaded(root, name, part)


DIALECTS = {
    "  sep: ';'\n": b'a;b\n1;"x;y"\n2;z\n',
    "  delimiter: '|'\n  sep: ','\n": b"a|b\n1,5|x\n2|z\n",
    '  sep: "\\t"\n': b'a\tb\n1\t"x\ty"\n2\tz\n',
    '  quotechar: "\'"\n': b"a,b\n1,'x,y'\n2,\"z\n",
    "  quoting: 3\n": b'a,b\n1,"x\n2,z"\n',
    '  escapechar: "\\\\"\n': b"a,b\n1,x\\,y\n2,z\n",
    "  sep: ' '\n  quoting: 1\n": b'a b\n1 "x y"\n2 z\n',
}


@pytest.mark.parametrize("entries", DIALECTS)
def test_the_form_of_a_table_is_that_of_the_card(entries: str, tmp_path: Path) -> None:
    """Separator, quotes and escapes."""
    root = write(tmp_path / "in", {"x.csv": DIALECTS[entries]}, config("default", "x.csv", entries))
    told = converted("csv", root, None)
    assert told.code == 0, told.err
    assert rows(tmp_path / "set") == loaded(root, None, "train")


def test_the_options_of_the_user_go_before_the_card(tmp_path: Path) -> None:
    """And a file by its name is read without it."""
    root = write(tmp_path / "in", {"x.csv": b"a;b,c\n1;2,3\n"}, config("default", "x.csv", "  sep: ';'\n"))
    assert converted("csv", root, None, "--separator", ",").code == 0
    assert rows(tmp_path / "set") == [{"a_b": "1;2", "c": 3}]
    assert brand("convert", "csv", root / "x.csv", tmp_path / "set2", "--separator", ",").code == 0
    assert rows(tmp_path / "set2") == rows(tmp_path / "set")


REFUSED = {
    "several": (EN_DE, None, "more than one split or configuration: de/train (1 file), en/train (1 file)"),
    "several splits": (config("en", TWO_SPLITS), None, "--split test, --split train"),
    "another split": (EN_DE, "dev", "has no split 'dev': de/train (1 file), en/train (1 file)"),
    "a missing file": (config("c", "[a.jsonl, z.jsonl]"), None, "z.jsonl, and there is no such file of data"),
    "a folder": (config("c", "more"), None, "more, and there is no such file of data"),
    "no file at all": (config("en", "a.jsonl") + config("de", "'z*.jsonl'"), "de", "z*.jsonl, and no file is such"),
    "a file elsewhere": (config("c", "../a.jsonl"), None, "which is not below this folder"),
    "a URL": (config("c", "hf://datasets/owner/name/a.jsonl"), None, "which is not below this folder"),
    "a file twice": (config("c", "[a.jsonl, '*.jsonl']"), None, "a.jsonl twice, and datasets reads it twice"),
    "stars in a name": (config("c", "'**.jsonl'"), None, "** can only stand between slashes"),
    "braces": (config("c", "'{a,b}.jsonl'"), None, "and there is no such file of data"),
    "files of two kinds": (config("c", "'a.*'"), None, "a.csv next to files with .jsonl"),
    "only other files": (config("c", "a.csv"), None, "no configuration of its README.md (c) names a file with .jsonl"),
    "a split that is a dict": (config("c", "{train: a.jsonl}"), None, "is no list of split and path"),
    "a split twice": (config("c", "[{split: a, path: a.jsonl}, {split: a, path: b.jsonl}]"), None, "a split twice"),
    "no name": ("- data_files: a.jsonl\n", None, "is no list of configurations with names"),
    "no list": ("  c: 5\n", None, "is no list of configurations with names"),
    "no YAML": ("- [\n", None, "the head of its README.md is no YAML"),
    "an entry that changes rows": (config("c", "a.jsonl", "  field: data\n"), None, "'field', which is not followed"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_card_that_gives_no_files_is_refused(case: str, tmp_path: Path) -> None:
    """With what to do instead: each option that the message names helps."""
    configs, split, says = REFUSED[case]
    root = write(tmp_path / "in", JSONL | {"a.csv": "name\na\n"}, configs)
    told = converted("jsonl", root, split)
    assert told.code == 2
    assert says in told.err
    options = re.findall(r"--split (?!out)([\w/]+)", told.err)
    assert options or case == "another split"
    for number, option in enumerate(options):
        again = brand("convert", "jsonl", root, tmp_path / f"set{number}", "--split", option, "-j", 1)
        assert again.code == 0, again.err


def test_the_advice_to_name_files_helps(tmp_path: Path) -> None:
    """A pattern is the word of the user, and so is `all`."""
    root = write(tmp_path / "in", JSONL, config("c", "[a.jsonl, z.jsonl]"))
    assert "Name the files by a pattern, or take all with --split all" in converted("jsonl", root, None).err
    assert brand("convert", "jsonl", root / "[ab].jsonl", tmp_path / "some", "-j", 1).code == 0
    assert [row["name"] for row in rows(tmp_path / "some")] == ["a.jsonl", "b.jsonl"]
    assert converted("jsonl", root, "all").code == 0
    assert len(rows(tmp_path / "set")) == len(JSONL)


def test_a_file_beside_the_card_replaces_its_entries(tmp_path: Path) -> None:
    """As in `datasets`."""
    root = write(tmp_path / "in", JSONL, config("c", "a.jsonl"))
    (root / ".huggingface.yaml").write_text("configs:\n" + config("c", "b.jsonl"))
    assert converted("jsonl", root, None).code == 0
    assert rows(tmp_path / "set") == loaded(root, None, "train") == [{"name": "b.jsonl"}]


def test_without_the_package_yaml_the_message_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And `all` needs no card."""
    root = write(tmp_path / "in", JSONL, EN_DE)
    monkeypatch.setitem(sys.modules, "yaml", None)
    told = converted("jsonl", root, "en")
    assert told.code == 1
    assert "pip install 'brand-data[hf]'" in told.err
    assert converted("jsonl", root, "all").code == 0


IMAGES = {f"{name}.png": png_bytes(number) for number, name in enumerate(("a/cat/1", "a/dog/2", "b/cat/3", "c/d/x"))}
FOLDERS_OF_IMAGES = {
    "folders of splits": (
        "\n  - split: train\n    path: a/**\n  - split: test\n    path: 'b/*/*'", "", "train", ["a", "b"]
    ),
    "a folder": ("", "  data_dir: a\n", "train", []),
    "a class": ("a/cat/*", "", "train", []),
}  # fmt: skip


@pytest.mark.parametrize("layout", FOLDERS_OF_IMAGES)
def test_a_card_says_the_folders_of_images(layout: str, tmp_path: Path) -> None:
    """With the labels of `datasets`."""
    files, more, part, splits = FOLDERS_OF_IMAGES[layout]
    root = write(tmp_path / "in", IMAGES, config("default", files, more))
    told = converted("images", root, part if splits else None)
    assert told.code == 0, told.err
    expected = datasets.load_dataset(str(root), split=part, cache_dir=str(tmp_path / "cache"))
    expected = expected.cast_column("image", datasets.Image(decode=False))
    stored = StoredDataSet(tmp_path / "set")
    assert [row.get("label") for row in rows(tmp_path / "set")] == [row.get("label") for row in expected]
    assert [row["image"] for row in rows(tmp_path / "set")] == [
        Path(row["image"]["path"]).read_bytes() for row in expected
    ]
    assert stored.classes == (expected.features["label"].names if "label" in expected.features else None)


@pytest.mark.parametrize(
    ("configs", "split", "says"),
    [
        (config("en", "a/**") + config("de", "b/**"), None, "--split de/train, --split en/train"),
        (config("c", "[a/cat/*, b/cat/*]"), None, "2 files of one split, and a/dog/2.png is next to them"),
        (config("c", "a/**", "  drop_labels: true\n"), None, "'drop_labels', which is not followed"),
    ],
)
def test_a_card_that_says_no_folder_is_refused(configs: str, split: str | None, says: str, tmp_path: Path) -> None:
    """A split is a folder of images."""
    root = write(tmp_path / "in", IMAGES, configs)
    told = converted("images", root, split)
    assert (told.code, says in told.err) == (2, True), told.err
    assert converted("images", root, "all").code == 0


@pytest.mark.parametrize("packed", [False, True])
def test_a_card_in_a_zip_and_in_a_bucket(packed: bool, tmp_path: Path) -> None:
    """A zip of the folder is the folder."""
    root = write(tmp_path / "in", JSONL, EN_DE)
    source = shutil.make_archive(str(tmp_path / "packed"), "zip", root) if packed else root.as_uri()
    told = brand("convert", "jsonl", source, tmp_path / "set", "-j", 1)
    assert "--split de/train, --split en/train" in told.err
    assert brand("convert", "jsonl", source, tmp_path / "set", "--split", "de", "-j", 1).code == 0
    assert rows(tmp_path / "set") == [{"name": "b.jsonl"}]


INFO = """dataset_info:
  features:
  - name: zip
    dtype: string
  - name: m
    dtype: float32
  - name: n
    dtype: int64
  - name: label
    dtype:
      class_label:
        names:
          '0': neg
          '1': pos
"""


@pytest.mark.parametrize("configs", ["", "configs:\n" + config("default", "x.*")])
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_types_that_a_card_declares_are_told(kind: str, configs: str, tmp_path: Path) -> None:
    """They are not applied, and the options that the report names give the values of `datasets`."""
    texts = {"csv": "zip,m,n,label\n17,2,3,1\n", "jsonl": '{"zip": 17, "m": 2, "n": 3, "label": 1}\n'}
    root = write(tmp_path / "in", {f"x.{kind}": texts[kind]}, "")
    (root / "README.md").write_text(f"---\n{INFO}{configs}---\n")
    told = converted(kind, root, None)
    assert told.code == 0, told.err
    assert "README.md declares other types of columns, which --field zip=str, --field m=float would give" in told.out
    assert "README.md names the classes of label: --label COLUMN --classes FILE" in told.out
    (tmp_path / "names").write_text("neg\npos\n")
    more = ("--field", "zip=str", "--field", "m=float", "--label", "label", "--classes", tmp_path / "names", "-j", 1)
    again = brand("convert", kind, root, tmp_path / "again", *more)
    assert again.code == 0, again.err
    assert "declares" not in again.out
    assert rows(tmp_path / "again") == loaded(root, None, "train")
    features = datasets.load_dataset(str(root), split="train", cache_dir=str(tmp_path / "cache")).features
    assert StoredDataSet(tmp_path / "again").classes == features["label"].names
