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
from brand.errors import SchemaError, UsageError
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
    assert "1 class is not among the 3 given classes: new. Add the names behind the others" in said.err
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
