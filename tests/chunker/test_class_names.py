"""Names of classes as people have them: texts, other spellings, lists, structs, mixtures; nothing is guessed."""

from __future__ import annotations

import io
import json
import tarfile
import unicodedata
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import brand
from brand.chunker import convert_images
from brand.collect import append_images
from brand.errors import SchemaError, UsageError
from brand.storage.dataset.dataset import StoredDataSet
from brand.torch import BrandDataset, Mixture
from tests.chunker.test_classes import labels, plant
from tests.golden.inputs import png
from tests.support import brand as command

NFC, NFD = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))


def column(data_set: Path, name: str = "label") -> list[Any]:
    """The values of a field, in index order."""
    data = StoredDataSet(data_set)
    return [data.sample(index)[name] for index in range(len(data))]


# -- spellings --------------------------------------------------------------------------------------------------------


def test_spaces_around_names_do_not_count(tmp_path: Path) -> None:
    """A list of names that an editor or a spreadsheet has written."""
    source = plant(tmp_path / "src", "a/1.png", "b/1.png")
    (tmp_path / "names.txt").write_bytes(b"b \r\n\t a\r\n \r\n")
    said = command("convert", "images", source, tmp_path / "d.brand", "--classes", tmp_path / "names.txt")
    assert said.code == 0, said.err
    assert labels(tmp_path / "d.brand") == {"a/1.png": 1, "b/1.png": 0}


@pytest.mark.parametrize(("content", "shown"), [("0 b\n1 a\n", "'0 b', '1 a'"), ('["b", "a"]\n', """'["b", "a"]'""")])
def test_another_kind_of_list_is_shown(content: str, shown: str, tmp_path: Path) -> None:
    """Names with numbers, and JSON: the error shows what was read as names."""
    source = plant(tmp_path / "src", "a/1.png", "b/1.png")
    (tmp_path / "names.txt").write_text(content)
    said = command("convert", "images", source, tmp_path / "d.brand", "--classes", tmp_path / "names.txt")
    assert said.code != 0
    assert f"({shown}): 'a', 'b'" in said.err


@pytest.mark.parametrize(
    ("train", "val", "expected"),
    [
        ("Cat", "cat", "'cat' is spelled 'Cat' there"),
        (NFC, NFD, "'e\\u0301' is spelled '\\xe9' there"),
        ("a b", "a_b", "'a_b'"),
    ],
)
def test_other_spellings_are_refused(train: str, val: str, expected: str, tmp_path: Path) -> None:
    """The error says how the class is spelled in the training set, also if both look alike."""
    convert_images(plant(tmp_path / "t", f"{train}/1.png", "z/1.png"), tmp_path / "t.brand")
    source = plant(tmp_path / "v", f"{val}/1.png", "z/1.png")
    said = command("convert", "images", source, tmp_path / "v.brand", "--classes-of", tmp_path / "t.brand")
    assert said.code != 0
    assert expected in said.err


def test_two_forms_of_one_name(tmp_path: Path) -> None:
    """Names that look alike would become two classes, in one folder or in a collection: refused."""
    with pytest.raises(UsageError, match=r"'\\xe9' and 'e\\u0301' are one text in two forms of Unicode"):
        convert_images(plant(tmp_path / "both", f"{NFC}/1.png", f"{NFD}/1.png"), tmp_path / "d.brand")
    append_images(plant(tmp_path / "one", f"{NFC}/1.png", "z/1.png"), tmp_path / "c.brand")
    with pytest.raises(UsageError, match="are one text in two forms of Unicode"):
        append_images(plant(tmp_path / "other", f"{NFD}/2.png"), tmp_path / "c.brand")


def test_new_classes_of_a_collection_are_said(tmp_path: Path) -> None:
    """A folder with a misspelled name becomes a class of its own: the report counts it."""
    assert command("append", "images", plant(tmp_path / "a", "cat/1.png", "dog/1.png"), tmp_path / "c.brand").code == 0
    said = command("append", "images", plant(tmp_path / "b", "Cat/2.png", "dog/2.png"), tmp_path / "c.brand")
    assert "1 class is new in the collection (e.g. Cat)" in said.out
    said = command("append", "images", plant(tmp_path / "c", "dog/3.png"), tmp_path / "c.brand")
    assert "new in the collection" not in said.out


def test_numbers_as_names(tmp_path: Path) -> None:
    """Folder 10 gets the label 2, as by ImageFolder: it is said, and --order natural helps."""
    source = plant(tmp_path / "src", *(f"{k}/1.png" for k in (0, 1, 2, 10)))
    said = command("convert", "images", source, tmp_path / "d.brand")
    assert "2 classes have a number as name that is not their label: --order natural" in said.out
    assert labels(tmp_path / "d.brand")["10/1.png"] == 2
    source = plant(tmp_path / "all", *(f"{k}/1.png" for k in range(11)))
    said = command("convert", "images", source, tmp_path / "e.brand", "--order", "natural")
    assert "as name" not in said.out
    assert labels(tmp_path / "e.brand") == {f"{k}/1.png": k for k in range(11)}


def test_classes_without_samples(tmp_path: Path) -> None:
    """An empty class folder is a class, as for torchvision with allow_empty: it is counted."""
    source = plant(tmp_path / "src", "a/1.png", "c/1.png")
    (source / "b").mkdir()
    said = command("convert", "images", source, tmp_path / "d.brand")
    assert "1 class has no samples here (e.g. b)" in said.out
    assert labels(tmp_path / "d.brand") == {"a/1.png": 0, "c/1.png": 2}


# -- labels that are texts --------------------------------------------------------------------------------------------


@pytest.fixture
def breeds(tmp_path: Path) -> Path:
    (tmp_path / "names.txt").write_text("pug\nbeagle\ncorgi\n")
    (tmp_path / "rows.csv").write_text("x,breed\n1,beagle\n2,pug\n3,beagle\n")
    return tmp_path


def test_texts_get_the_numbers_of_given_names(breeds: Path) -> None:
    """The table of a competition: names in a column, and a list of classes."""
    given = ("--label", "breed", "--classes", breeds / "names.txt")
    said = command("convert", "csv", breeds / "rows.csv", breeds / "d.brand", *given)
    assert said.code == 0, said.err
    assert (column(breeds / "d.brand"), brand.open(breeds / "d.brand").classes) == (
        [1, 0, 1],
        ["pug", "beagle", "corgi"],
    )
    (breeds / "rows.csv").write_text("x,label\n1,corgi\n2,poodle\n")
    said = command("convert", "csv", breeds / "rows.csv", breeds / "e.brand", "--classes-of", breeds / "d.brand")
    assert (
        "line 3, field 'label': the class 'poodle' is not among the 3 given classes ('pug', 'beagle', 'corgi')"
        in said.err
    )
    said = command("convert", "csv", breeds / "rows.csv", breeds / "e.brand", "--classes-of", breeds / "d.brand",
                   "--on-error", "skip")  # fmt: skip
    assert said.code == 0, said.err
    assert column(breeds / "e.brand") == [2]


def test_texts_without_names_are_refused_with_the_cure(breeds: Path) -> None:
    """No order is guessed: the message names --classes, which helps."""
    said = command("convert", "csv", breeds / "rows.csv", breeds / "d.brand", "--label", "breed")
    assert said.code != 0
    assert "its values are texts: --classes FILE" in said.err
    rows = '{"label": "pug"}\n{"label": null}\n'
    (breeds / "rows.jsonl").write_text(rows)
    said = command("convert", "jsonl", breeds / "rows.jsonl", breeds / "e.brand", "--classes", breeds / "names.txt",
                   "--null", "label=-1")  # fmt: skip
    assert said.code == 0, said.err
    assert column(breeds / "e.brand") == [0, -1]


def test_texts_in_tars(breeds: Path) -> None:
    """`.cls` holds a number as a rule; names are read with --field label=str and a list."""
    with tarfile.open(breeds / "a.tar", "w") as archive:
        for name, data in (("0.png", png(3, 1)), ("0.cls", b"corgi"), ("1.png", png(3, 2)), ("1.cls", b"pug\n")):
            facts = tarfile.TarInfo(name)
            facts.size = len(data)
            archive.addfile(facts, io.BytesIO(data))
    said = command("convert", "webdataset", breeds / "a.tar", breeds / "d.brand")
    assert "--field label=str --classes FILE" in said.err
    said = command("convert", "webdataset", breeds / "a.tar", breeds / "d.brand", "--field", "label=str", "--classes",
                   breeds / "names.txt")  # fmt: skip
    assert said.code == 0, said.err
    assert column(breeds / "d.brand") == [2, 0]


def test_floats_as_labels(breeds: Path) -> None:
    """As pandas writes whole numbers with missing ones: refused with the options that help."""
    (breeds / "rows.csv").write_text("x,label\n1,1.0\n2,0.0\n3,\n")
    said = command("convert", "csv", breeds / "rows.csv", breeds / "d.brand", "--classes", breeds / "names.txt")
    assert "field 'label' is float, and labels are whole numbers: --field label=int" in said.err
    said = command("convert", "csv", breeds / "rows.csv", breeds / "d.brand", "--classes", breeds / "names.txt",
                   "--field", "label=int", "--null", "label=-1")  # fmt: skip
    assert said.code == 0, said.err
    assert column(breeds / "d.brand") == [1, 0, -1]


def test_pack_takes_a_column_as_label(tmp_path: Path) -> None:
    """Any table works: with numbers, with ClassLabels and their names, and with texts and classes=."""
    datasets = pytest.importorskip("datasets")
    names = {"coarse": ["x", "y"], "fine": ["p", "q", "r"]}
    features = datasets.Features({name: datasets.ClassLabel(names=some) for name, some in names.items()})
    data = datasets.Dataset.from_dict({"coarse": [0, 1], "fine": [2, 0]}, features=features)
    brand.pack(data, tmp_path / "hf.brand", label="fine")
    found = StoredDataSet(tmp_path / "hf.brand")
    assert (found.classes, found.classes_of("coarse"), column(tmp_path / "hf.brand")) == (
        ["p", "q", "r"],
        ["x", "y"],
        [2, 0],
    )
    brand.pack(data, tmp_path / "given.brand", label="fine", classes=["r", "q", "p"])
    assert column(tmp_path / "given.brand") == [0, 2]
    brand.pack(data.to_iterable_dataset(), tmp_path / "stream.brand", label="coarse")
    assert StoredDataSet(tmp_path / "stream.brand").classes == ["x", "y"]
    frame = pd.DataFrame({"n": [1, 2], "animal": pd.Categorical(["dog", "cat"])})
    brand.pack(frame, tmp_path / "pandas.brand", label="animal", classes=["cat", "dog"])
    assert column(tmp_path / "pandas.brand") == [1, 0]
    brand.pack(pa.table({"target": [3, 1]}), tmp_path / "arrow.brand", label="target")
    assert column(tmp_path / "arrow.brand") == [3, 1]
    brand.pack(data, tmp_path / "schema.brand", {"fine": "int"}, label="fine")
    assert StoredDataSet(tmp_path / "schema.brand").schema == {"label": "int"}
    wrong: list[tuple[Any, dict[str, str] | None, str, str]] = [
        (data, None, "none", "the source has no column 'none'"),
        (frame, None, "animal", "its values are texts: classes= says their numbers"),
        ([{"n": 1}], {"n": "int"}, "n", "label= names a column of a table"),
    ]
    for samples, schema, label, match in wrong:
        with pytest.raises(UsageError, match=match):
            brand.pack(samples, tmp_path / "wrong.brand", schema, label=label)


@pytest.mark.parametrize("tasks", [0, 2])
def test_texts_in_a_table_of_images(tasks: int, breeds: Path) -> None:
    """The labels of a competition: a flat folder, a table of names, and the order of the classes; by tasks, too."""
    source = plant(breeds / "flat", "1.png", "2.png", "3.png")
    given = ("--table", breeds / "rows.csv", "--key", "x", "--field", "label=breed", "--classes", breeds / "names.txt")
    command_line = ("convert", "images", source, breeds / "d.brand", *given)
    for number in range(tasks):
        said = command(*command_line, "--task", f"{number}/{tasks}")
        assert said.code == 0, said.err
    said = command("seal", breeds / "d.brand") if tasks else command(*command_line)
    assert said.code == 0, said.err
    assert labels(breeds / "d.brand") == {"1.png": 1, "2.png": 0, "3.png": 1}
    assert brand.open(breeds / "d.brand").classes == ["pug", "beagle", "corgi"]
    (breeds / "names.txt").write_text("pug\ncorgi\n")
    said = command("convert", "images", source, breeds / "e.brand", *given)
    assert "the class 'beagle' is not among the 2 given classes ('pug', 'corgi')" in said.err


# -- names that a source has, in other places -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parquet", "hf", "pack"])
def test_lists_and_structs(kind: str, tmp_path: Path) -> None:
    """A field `label` of lists, and classes of boxes inside JSON, keep their names, too."""
    datasets = pytest.importorskip("datasets")
    classes = datasets.ClassLabel(names=["car", "bus"])
    boxes = datasets.Sequence(datasets.Sequence(datasets.Value("float32")))
    features = datasets.Features(
        {
            "label": datasets.Sequence(classes),
            "objects": {"bbox": boxes, "category": datasets.Sequence(classes)},
            "rows": datasets.List({"kind": datasets.ClassLabel(names=["x", "y"]), "n": datasets.Value("int64")}),
        }
    )
    rows = {
        "label": [[1, 0], [1]],
        "objects": [{"bbox": [[0, 0, 1, 1]], "category": [1]}, {"bbox": [], "category": []}],
        "rows": [[{"kind": 1, "n": 7}], []],
    }
    data = datasets.Dataset.from_dict(rows, features=features)
    if kind == "pack":
        brand.pack(data, tmp_path / "d.brand")
    else:
        data.to_parquet(tmp_path / "d.parquet")
        data.save_to_disk(tmp_path / "d.hf")
        said = command("convert", kind, tmp_path / f"d.{kind}", tmp_path / "d.brand")
        assert said.code == 0, said.err
    found = StoredDataSet(tmp_path / "d.brand")
    named = {name: found.classes_of(name) for name in ("label", "objects.category", "rows.kind")}
    assert named == {"label": ["car", "bus"], "objects.category": ["car", "bus"], "rows.kind": ["x", "y"]}
    assert found.sample(0)["label"].tolist() == [1, 0]
    assert found.sample(0)["objects"]["category"] == [1]
    assert found.classes is None
    assert "objects.category: 2 classes (car, bus)" in command("info", tmp_path / "d.brand").out
    manifest = (tmp_path / "d.brand" / "brand.json").read_bytes()
    (tmp_path / "d.brand" / "brand.json").unlink()
    assert command("reindex", tmp_path / "d.brand").code == 0
    assert (tmp_path / "d.brand" / "brand.json").read_bytes() == manifest


def test_mixtures_of_other_classes_are_refused(tmp_path: Path) -> None:
    """Label 0 would mean two things; the cure of the message helps."""
    convert_images(plant(tmp_path / "t", "a/1.png", "b/1.png"), tmp_path / "t.brand")
    source = plant(tmp_path / "u", "b/1.png")
    convert_images(source, tmp_path / "u.brand")
    members = {BrandDataset(tmp_path / "t.brand"): 0.5, BrandDataset(tmp_path / "u.brand"): 0.5}
    with pytest.raises(SchemaError, match=r"label 0 means 'a' in .*t.brand and 'b' in .*u.brand: .* --classes-of"):
        Mixture(members)
    assert command("convert", "images", source, tmp_path / "v.brand", "--classes-of", tmp_path / "t.brand").code == 0
    Mixture({BrandDataset(tmp_path / "t.brand"): 0.5, BrandDataset(tmp_path / "v.brand"): 0.5})
    Mixture(
        {BrandDataset(tmp_path / f"{name}.brand", fields=("image",)): 0.5 for name in ("t", "u")}
    )  # labels are left out
    for name, classes in {"three": ["a", "b", "c"], "two": ["a", "b"], "none": None}.items():
        brand.pack([{"label": 0}, {"label": 1}], tmp_path / f"{name}.brand", {"label": "int"}, classes=classes)
    Mixture({BrandDataset(tmp_path / f"{name}.brand"): 0.5 for name in ("three", "two", "none")})


def test_mixtures_of_other_names_of_fields(tmp_path: Path) -> None:
    """As for `label`."""
    for name, names in {"one": ["x", "y"], "other": ["y", "x"]}.items():
        features = {"tags": {"feature": {"names": names, "_type": "ClassLabel"}, "_type": "Sequence"}}
        described = json.dumps({"info": {"features": features}}).encode()
        table = pa.table({"tags": [[0], [1]]}).replace_schema_metadata({b"huggingface": described})
        pq.write_table(table, tmp_path / f"{name}.parquet")
        assert command("convert", "parquet", tmp_path / f"{name}.parquet", tmp_path / f"{name}.brand").code == 0
    with pytest.raises(SchemaError, match=r"tags 0 means 'x' in .*one\.brand and 'y' in .*other\.brand"):
        Mixture({BrandDataset(tmp_path / f"{name}.brand"): 0.5 for name in ("one", "other")})
