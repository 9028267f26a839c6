"""Labels are those that the user expects: of a list, of another data set, of timm, and of every ClassLabel."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import brand
from brand.chunker import Options, convert_images
from brand.collect import append_images
from brand.errors import NoLabelsError, SchemaError, UsageError
from brand.torch import BrandDataset
from tests.support import brand as command


def plant(root: Path, *names: str) -> Path:
    """A folder of images of these names."""
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((2, 2, 3), number, np.uint8)).save(root / name, "PNG")
    return root


def labels(data_set: Path) -> dict[str, int]:
    """Key -> label."""
    opened = brand.open(data_set)
    return {sample["key"]: sample["label"] for sample in opened.samples(range(len(opened)))}


def names(data_set: Path) -> dict[str, str]:
    """Key -> name of the class."""
    classes = brand.open(data_set).classes
    assert classes is not None
    return {key: classes[label] for key, label in labels(data_set).items()}


@pytest.fixture
def train(tmp_path: Path) -> Path:
    convert_images(plant(tmp_path / "train", "a/1.png", "b/1.png", "c/1.png"), tmp_path / "train.brand")
    return tmp_path / "train.brand"


def test_a_validation_folder_without_one_class(tmp_path: Path, train: Path) -> None:
    """Its labels are those of the training set, and the missing class is counted; without the option, they shift."""
    val = plant(tmp_path / "val", "a/9.png", "c/9.png")
    said = command("convert", "images", val, tmp_path / "val.brand", "--classes-of", train)
    assert said.code == 0, said.err
    assert "1 given class has no samples here" in said.out
    assert labels(tmp_path / "val.brand") == {"a/9.png": 0, "c/9.png": 2}
    assert brand.open(tmp_path / "val.brand").classes == ["a", "b", "c"]
    report = json.loads(command("info", tmp_path / "val.brand", "--json").out)
    assert [(fact["what"], fact["count"], fact["example"]) for fact in report["noticed"]] == [
        ("classes_missing", 1, "b")
    ]
    convert_images(val, tmp_path / "shifted.brand")
    assert labels(tmp_path / "shifted.brand") == {"a/9.png": 0, "c/9.png": 1}


def test_a_class_that_training_does_not_have(tmp_path: Path, train: Path) -> None:
    """It is refused, with its name; nothing is written. The cure of the message helps."""
    val = plant(tmp_path / "val", "a/9.png", "new/9.png")
    said = command("convert", "images", val, tmp_path / "val.brand", "--classes-of", train)
    assert said.code != 0
    assert (
        "1 class is not among the 3 given classes ('a', 'b', 'c'): 'new'. Add the names behind the others" in said.err
    )
    assert not (tmp_path / "val.brand" / "brand.json").exists()
    (tmp_path / "names.txt").write_text("a\nb\nc\nnew\n")
    said = command("convert", "images", val, tmp_path / "val.brand", "--classes", tmp_path / "names.txt")
    assert labels(tmp_path / "val.brand") == {"a/9.png": 0, "new/9.png": 3}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("c\na\nb\n", {"a/1.png": 1, "b/1.png": 2, "c/1.png": 0}),
        ("\ufeffc\r\na\r\n\r\nb", {"a/1.png": 1, "b/1.png": 2, "c/1.png": 0}),
        ("x y\nb\na\nc", {"a/1.png": 2, "b/1.png": 1, "c/1.png": 3}),
    ],
)
def test_a_file_of_classes(content: str, expected: dict[str, int], tmp_path: Path) -> None:
    """Its lines are the classes in label order, whatever ends them."""
    source = plant(tmp_path / "src", "a/1.png", "b/1.png", "c/1.png")
    (tmp_path / "names.txt").write_bytes(content.encode())
    said = command("convert", "images", source, tmp_path / "d.brand", "--classes", tmp_path / "names.txt")
    assert said.code == 0, said.err
    assert labels(tmp_path / "d.brand") == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--classes", "{tmp}/none.txt"], "No such file"),
        (["--classes", "{tmp}/empty.txt"], "give the names of the classes"),
        (["--classes", "{tmp}/twice.txt"], "the class 'a' is named twice"),
        (["--classes", "{tmp}/latin.txt"], "it is not UTF-8"),
        (["--classes", "{tmp}/good.txt", "--classes-of", "{tmp}/train.brand"], "give one of them"),
        (["--classes", "{tmp}/good.txt", "--no-labels"], "leave out --no-labels"),
        (["--classes-of", "{tmp}/flat.brand"], "have no names"),
    ],
)
def test_wrong_use(arguments: list[str], expected: str, tmp_path: Path, train: Path) -> None:
    """Each error says what is wrong with which option."""
    convert_images(plant(tmp_path / "flat", "1.png"), tmp_path / "flat.brand")
    for name, content in {"empty": b"\n", "twice": b"a\nb\na\n", "latin": b"\xe9\n", "good": b"a\nb\nc\n"}.items():
        (tmp_path / f"{name}.txt").write_bytes(content)
    given = [argument.format(tmp=tmp_path) for argument in arguments]
    said = command("convert", "images", tmp_path / "train", tmp_path / "d.brand", *given)
    assert said.code != 0
    assert expected in said.err


def test_a_folder_without_classes(tmp_path: Path) -> None:
    """Names of classes that nothing uses are refused."""
    with pytest.raises(UsageError, match="no class folders"):
        convert_images(plant(tmp_path / "flat", "1.png"), tmp_path / "d.brand", Options(classes=("a",)))


TIMM = ["c1/a/1.png", "c1/b/1.png", "c10/a/1.png", "c2/x10/1.png", "c2/x9/2.png", "C3/X1/1.png", "c2/deep/er/1.png"]


def test_natural_order(tmp_path: Path) -> None:
    """c2 stands before c10, and C3 between them."""
    convert_images(plant(tmp_path / "src", *TIMM), tmp_path / "d.brand", Options(natural_order=True))
    assert brand.open(tmp_path / "d.brand").classes == ["c1", "c2", "C3", "c10"]
    assert names(tmp_path / "d.brand") == {name: name.partition("/")[0] for name in TIMM}


def test_leaf_classes(tmp_path: Path) -> None:
    """The class is the folder of the file; folders of one name are one class. As timm 1.0 numbers them."""
    source, options = plant(tmp_path / "src", *TIMM), ("--leaf-classes", "--order", "natural")
    said = command("convert", "images", source, tmp_path / "d.brand", *options)
    assert said.code == 0, said.err
    assert brand.open(tmp_path / "d.brand").classes == ["a", "b", "er", "X1", "x9", "x10"]
    assert names(tmp_path / "d.brand") == {name: name.split("/")[-2] for name in TIMM}
    assert labels(tmp_path / "d.brand")["c2/x10/1.png"] == 5


def test_a_collection_keeps_given_classes(tmp_path: Path) -> None:
    """An appended folder gives known names their labels, and new names the next ones."""
    source = plant(tmp_path / "src", "a/1.png", "b/1.png")
    append_images(source, tmp_path / "c.brand", Options(classes=("b", "z", "a")))
    append_images(plant(tmp_path / "more", "0/5.png", "a/5.png", "z/5.png"), tmp_path / "c.brand")
    assert labels(tmp_path / "c.brand") == {"a/1.png": 2, "b/1.png": 0, "0/5.png": 3, "a/5.png": 2, "z/5.png": 1}
    with pytest.raises(SchemaError, match="the classes of the new samples do not begin with"):
        append_images(source, tmp_path / "c.brand", Options(classes=("a", "b")))


def test_unlabelled(tmp_path: Path) -> None:
    """-1 is no label, as in the unlabelled splits of the Hub; other numbers are refused."""
    samples = [{"label": label} for label in (0, -1, 1, -1)]
    brand.pack(samples, tmp_path / "d.brand", {"label": "int"}, classes=["x", "y"])
    assert brand.open(tmp_path / "d.brand").column("label").tolist() == [0, -1, 1, -1]
    assert "2 samples have no label (-1)" in command("info", tmp_path / "d.brand").out
    for wrong in (-2, 2):
        with pytest.raises(
            SchemaError, match=f"label {wrong} is not one of 2 classes, whose labels are 0 to 1; -1 is no"
        ):
            brand.pack([{"label": wrong}], tmp_path / f"{wrong}.brand", {"label": "int"}, classes=["x", "y"])


# -- the names that a source has ------------------------------------------------------------------------------------

CIFAR = {"coarse_label": ["fish", "people"], "fine_label": ["baby", "ray", "shark"]}


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Path]:
    """Data sets of Hugging Face, as the Hub stores them: several ClassLabels, lists of them, and other names."""
    datasets = pytest.importorskip("datasets")
    named = {name: datasets.ClassLabel(names=names) for name, names in CIFAR.items()}
    tags = datasets.ClassLabel(names=["x", "y", "z"])
    made = {
        "cifar": ({"coarse_label": [0, 1, 0], "fine_label": [2, 0, 1]}, named),
        "tags": (
            {"labels": [1, 0, 1], "tags": [[0, 2], [1], []]},
            {"labels": datasets.ClassLabel(names=["neg", "pos"]), "tags": datasets.Sequence(tags)},
        ),
        "val": ({"label": [0, 1, -1]}, {"label": datasets.ClassLabel(names=["c", "a"])}),
    }
    for name, (columns, features) in made.items():
        data = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
        data.to_parquet(tmp_path / f"{name}.parquet")
        data.save_to_disk(tmp_path / f"{name}.hf")
    return {name: tmp_path / f"{name}.parquet" for name in made}


@pytest.mark.parametrize("kind", ["parquet", "hf"])
def test_names_of_every_field(kind: str, tables: dict[str, Path], tmp_path: Path) -> None:
    """No names are lost, whatever the column is called, and lists of classes have them, too."""
    for name, table in tables.items():
        source = table if kind == "parquet" else table.with_suffix(".hf")
        assert command("convert", kind, source, tmp_path / f"{name}.brand").code == 0
    cifar, tags = brand.open(tmp_path / "cifar.brand"), brand.open(tmp_path / "tags.brand")
    assert {name: cifar.classes_of(name) for name in CIFAR} == CIFAR
    assert [cifar.classes_of("fine_label")[i] for i in cifar.column("fine_label")] == ["shark", "baby", "ray"]
    assert (tags.classes_of("labels"), tags.classes_of("tags")) == (["neg", "pos"], ["x", "y", "z"])
    assert tags.sample(0)["tags"].tolist() == [0, 2]
    assert BrandDataset(tmp_path / "tags.brand").classes_of("tags") == ["x", "y", "z"]
    with pytest.raises(
        NoLabelsError, match="the values of field 'label' have no names; fields with names: coarse_label"
    ):
        cifar.classes_of("label")
    assert "fine_label: 3 classes (baby, ray, shark)" in command("info", tmp_path / "cifar.brand").out
    assert json.loads(command("info", tmp_path / "cifar.brand", "--json").out)["field_classes"] == CIFAR
    val = brand.open(tmp_path / "val.brand")
    assert (val.classes, val.column("label").tolist()) == (["c", "a"], [0, 1, -1])


def test_label_names_the_column(tables: dict[str, Path], tmp_path: Path) -> None:
    """It becomes the field `label`, with its names; the others keep theirs."""
    said = command("convert", "parquet", tables["cifar"], tmp_path / "d.brand", "--label", "fine_label")
    assert said.code == 0, said.err
    data = BrandDataset(tmp_path / "d.brand")
    assert (data.classes, data.targets.tolist()) == (CIFAR["fine_label"], [2, 0, 1])
    assert data.classes_of("coarse_label") == CIFAR["coarse_label"]
    for column, expected in (
        ("tags", "that column is ndarray, and labels are whole numbers"),
        ("none", "no column 'none'"),
    ):
        said = command("convert", "parquet", tables["tags"], tmp_path / "e.brand", "--label", column)
        assert (said.code != 0, expected in said.err) == (True, True), said.err


def test_classes_of_another_set(tables: dict[str, Path], tmp_path: Path, train: Path) -> None:
    """A ClassLabel of another order gets the numbers of the training set, by names; -1 stays."""
    for source in (tables["val"], tables["val"].with_suffix(".hf")):
        target = tmp_path / f"{source.suffix[1:]}.brand"
        said = command("convert", "hf", source, target, "--classes-of", train)
        assert said.code == 0, said.err
        data = brand.open(target)
        assert (data.classes, data.column("label").tolist()) == (["a", "b", "c"], [2, 0, -1])
        assert "1 given class has no samples here" in said.out
    said = command("convert", "parquet", tables["cifar"], tmp_path / "e.brand", "--classes-of", train)
    assert "--label COLUMN says which column it is" in said.err
    said = command("convert", "parquet", tables["cifar"], tmp_path / "e.brand", "--classes-of", train, "--label",
                   "fine_label")  # fmt: skip
    assert "3 classes are not among the 3 given classes ('a', 'b', 'c'): 'baby', 'ray', 'shark'" in said.err


def test_numbers_without_names(tmp_path: Path, train: Path) -> None:
    """Given names are those of the numbers; a number without a name is refused."""
    (tmp_path / "rows.jsonl").write_text('{"cls": 2}\n{"cls": 0}\n{"cls": -1}\n')
    said = command(
        "convert", "jsonl", tmp_path / "rows.jsonl", tmp_path / "d.brand", "--label", "cls", "--classes-of", train
    )
    assert said.code == 0, said.err
    data = brand.open(tmp_path / "d.brand")
    assert (data.classes, data.column("label").tolist()) == (["a", "b", "c"], [2, 0, -1])
    (tmp_path / "rows.jsonl").write_text('{"label": 3}\n')
    said = command("convert", "jsonl", tmp_path / "rows.jsonl", tmp_path / "e.brand", "--classes-of", train)
    assert "label 3 is not one of 3 classes" in said.err


def test_pack_gives_classes_their_numbers(tables: dict[str, Path], tmp_path: Path) -> None:
    """The names that a table has decide; they are no other words for the numbers."""
    datasets = pytest.importorskip("datasets")
    val = datasets.load_from_disk(tables["val"].with_suffix(".hf"))
    brand.pack(val, tmp_path / "d.brand", classes=["a", "b", "c"])
    assert brand.open(tmp_path / "d.brand").column("label").tolist() == [2, 0, -1]
    with pytest.raises(UsageError, match=r"1 class is not among the 2 given classes \('a', 'b'\): 'c'"):
        brand.pack(val, tmp_path / "e.brand", classes=["a", "b"])
    brand.pack(datasets.load_from_disk(tables["cifar"].with_suffix(".hf")), tmp_path / "f.brand")
    assert brand.open(tmp_path / "f.brand").classes_of("fine_label") == CIFAR["fine_label"]


def test_files_with_other_names(tmp_path: Path) -> None:
    """Two files of one data set whose ClassLabels differ would mix their numbers: refused, with the file and column."""
    datasets = pytest.importorskip("datasets")
    for number, names_of_file in enumerate((["a", "b"], ["b", "a"])):
        features = datasets.Features({"label": datasets.ClassLabel(names=names_of_file)})
        datasets.Dataset.from_dict({"label": [0, 1]}, features=features).to_parquet(
            tmp_path / "src" / f"{number}.parquet"
        )
    said = command("convert", "parquet", tmp_path / "src", tmp_path / "d.brand")
    assert "1.parquet" in said.err
    assert "the classes of its column 'label' have other names or another order" in said.err


def test_appended_names(tables: dict[str, Path], tmp_path: Path) -> None:
    """A collection keeps the names of its fields, and refuses others for the same numbers."""
    assert command("append", "parquet", tables["cifar"], tmp_path / "c.brand").code == 0
    datasets = pytest.importorskip("datasets")
    other = {name: datasets.ClassLabel(names=names_of_field[::-1]) for name, names_of_field in CIFAR.items()}
    same = {name: datasets.ClassLabel(names=names_of_field) for name, names_of_field in CIFAR.items()}
    for features, name in ((other, "other"), (same, "same")):
        rows = {"coarse_label": [1], "fine_label": [1]}
        data = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
        data.to_parquet(tmp_path / f"{name}.parquet")
    said = command("append", "parquet", tmp_path / "other.parquet", tmp_path / "c.brand")
    assert "the values of field 'coarse_label' have other names than in the collection" in said.err
    assert command("append", "parquet", tmp_path / "same.parquet", tmp_path / "c.brand").code == 0
    joined = brand.open(tmp_path / "c.brand")
    assert (len(joined), joined.classes_of("fine_label")) == (4, CIFAR["fine_label"])


def test_names_in_chunks(tables: dict[str, Path], tmp_path: Path) -> None:
    """`brand reindex` makes the manifest again from the chunks, byte for byte; its version is 1.2."""
    assert command("convert", "parquet", tables["cifar"], tmp_path / "d.brand").code == 0
    manifest = (tmp_path / "d.brand" / "brand.json").read_bytes()
    assert json.loads(manifest)["version"] == [1, 2]
    (tmp_path / "d.brand" / "brand.json").unlink()
    assert command("reindex", tmp_path / "d.brand").code == 0
    assert (tmp_path / "d.brand" / "brand.json").read_bytes() == manifest
