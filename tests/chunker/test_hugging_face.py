"""`pack` of `Dataset` and `IterableDataset`: files stay as they are, formats apply, and what is encoded is told."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

import brand
from brand import pack
from brand.errors import UsageError
from tests.chunker.test_text_tables import codecs_of, rows_of

FEATURES = datasets.Features({"img": datasets.Image(), "y": datasets.Value("int64")})
SCHEMA = {"img": "image", "y": "int"}
COUNT = 12


def jpeg(number: int) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 255, (24, 24, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture(scope="module")
def rows() -> datasets.Dataset:
    images = [{"bytes": jpeg(n), "path": None} for n in range(COUNT)]
    return datasets.Dataset.from_dict({"img": images, "y": list(range(COUNT))}, features=FEATURES)


WHOLE: dict[str, Callable[[Any], Any]] = {
    "rows": lambda d: d,
    "stream": lambda d: d.to_iterable_dataset(),
    "shuffled": lambda d: d.to_iterable_dataset().shuffle(seed=3, buffer_size=4),
    "taken": lambda d: d.to_iterable_dataset().skip(2).take(7),
    "joined": lambda d: datasets.concatenate_datasets([d.to_iterable_dataset(), d.to_iterable_dataset()]),
    "interleaved": lambda d: datasets.interleave_datasets([d.to_iterable_dataset(), d.to_iterable_dataset()]),
    "repeated": lambda d: d.to_iterable_dataset().repeat(2),
    "of torch": lambda d: d.to_iterable_dataset().with_format("torch"),
    "not decoded": lambda d: d.to_iterable_dataset().decode(False),
    "filtered, not decoded": lambda d: d.to_iterable_dataset().decode(False).filter(lambda row: row["y"] % 2 == 0),
    "mapped, not decoded": lambda d: (
        d.to_iterable_dataset()
        .decode(False)
        .map(lambda row: {"y": row["y"]}, features=d.to_iterable_dataset().decode(False).features)
    ),
    "renamed, not decoded": lambda d: (
        d.to_iterable_dataset().decode(False).rename_column("y", "z").rename_column("z", "y")
    ),
    "of a generator of bytes": lambda d: datasets.IterableDataset.from_generator(
        lambda: ({"img": {"bytes": jpeg(n), "path": None}, "y": n} for n in range(COUNT)), features=FEATURES
    ),
    "with torch's format": lambda d: d.with_format("torch"),
    "with numpy's format": lambda d: d.with_format("numpy"),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_files_are_stored_as_they_are(kind: str, rows: datasets.Dataset, tmp_path: Path) -> None:
    """Without a schema and with one; samples and order are those that the data set shows."""
    shown = WHOLE[kind](rows)
    for target, schema in (("found", None), ("told", SCHEMA)):
        report = pack(WHOLE[kind](rows), tmp_path / target, schema, jobs=1)
        assert codecs_of(tmp_path / target) == SCHEMA
        stored = rows_of(tmp_path / target)
        assert [row["y"] for row in stored] == [int(row["y"]) for row in shown]
        assert all(row["img"] == jpeg(row["y"]) for row in stored)
        assert [fact.what for fact in report.noticed] == []


DECODED: dict[str, Callable[[Any], Any]] = {
    "filtered": lambda d: d.to_iterable_dataset().filter(lambda row: row["y"] % 2 == 0),
    "filtered in batches": lambda d: d.to_iterable_dataset().filter(lambda b: [True] * len(b["y"]), batched=True),
    "mapped": lambda d: d.to_iterable_dataset().map(lambda row: {"y": row["y"]}),
    "mapped with features": lambda d: d.to_iterable_dataset().map(lambda row: {"y": row["y"]}, features=FEATURES),
    "renamed": lambda d: d.to_iterable_dataset().rename_column("y", "z").rename_column("z", "y"),
    "of a generator of images": lambda d: datasets.IterableDataset.from_generator(
        lambda: ({"img": Image.open(io.BytesIO(jpeg(n))), "y": n} for n in range(COUNT)), features=FEATURES
    ),
}


@pytest.mark.parametrize("kind", DECODED)
def test_decoded_files_are_refused_or_stored_without_loss(kind: str, rows: datasets.Dataset, tmp_path: Path) -> None:
    """The library would encode JPEG again, with loss: with a schema, pixels are stored as PNG, and this is told."""
    with pytest.raises(UsageError, match=r"call decode\(False\) before these|does not know its features"):
        pack(DECODED[kind](rows), tmp_path / "found")
    assert not (tmp_path / "found").exists()
    report = pack(DECODED[kind](rows), tmp_path / "told", SCHEMA, jobs=1)
    stored = rows_of(tmp_path / "told")
    shown = [np.asarray(row["img"]).tolist() for row in DECODED[kind](rows)]
    assert [np.asarray(Image.open(io.BytesIO(row["img"]))).tolist() for row in stored] == shown
    assert kind == "of a generator of images" or f"{len(stored)} images are encoded as PNG" in report.noticed[0].text


def test_a_transform_is_applied_or_refused(rows: datasets.Dataset, tmp_path: Path) -> None:
    """It is never dropped."""

    def smaller(batch: dict[str, Any]) -> dict[str, Any]:
        return {"img": [image.resize((8, 8)) for image in batch["img"]], "y": [10 * y for y in batch["y"]]}

    for shown in (rows.with_transform(smaller), rows.select(range(COUNT))):
        if shown.format["type"] is None:
            shown.set_transform(smaller)
        with pytest.raises(
            UsageError, match=r"give pack a schema, and the transform is applied; or samples\.with_format"
        ):
            pack(shown, tmp_path / "refused")
        target = tmp_path / f"set-{id(shown)}"
        report = pack(shown, target, SCHEMA, jobs=1)
        stored = rows_of(target)
        assert [row["y"] for row in stored] == [10 * n for n in range(COUNT)]
        assert [Image.open(io.BytesIO(row["img"])).size for row in stored] == [(8, 8)] * COUNT
        assert f"{COUNT} images are encoded as PNG" in report.noticed[0].text
    pack(rows.with_transform(smaller).with_format(None), tmp_path / "plain", jobs=1)
    assert rows_of(tmp_path / "plain")[3]["img"] == jpeg(3)


def test_the_columns_of_a_format_count(rows: datasets.Dataset, tmp_path: Path) -> None:
    """As the data set shows them; a cast of a format is refused."""
    pack(rows.with_format("torch", columns=["y"]), tmp_path / "some", jobs=1)
    assert codecs_of(tmp_path / "some") == {"y": "int"}
    pack(rows.with_format("torch", columns=["y"], output_all_columns=True), tmp_path / "all", jobs=1)
    assert codecs_of(tmp_path / "all") == SCHEMA
    with pytest.raises(UsageError, match=r"the format 'numpy' with dtype=.*give samples\.with_format"):
        pack(rows.with_format("numpy", dtype=np.float32), tmp_path / "cast")


def test_lists_of_decoded_images_are_counted(rows: datasets.Dataset, tmp_path: Path) -> None:
    """Rows that the caller takes from a data set himself; files that he opened are none."""
    report = pack([rows[n] for n in range(5)], tmp_path / "rows", SCHEMA, jobs=1)
    assert "5 images are encoded as PNG" in report.noticed[0].text
    assert report.noticed[0].example == "sample 0"
    (tmp_path / "a.jpg").write_bytes(jpeg(0))
    with Image.open(tmp_path / "a.jpg") as image:
        report = pack([{"img": image, "y": 0}], tmp_path / "file", SCHEMA, jobs=1)
    assert [fact.what for fact in report.noticed] == []
    assert rows_of(tmp_path / "file")[0]["img"] == jpeg(0)


def test_a_list_of_images_says_where_bytes_are(rows: datasets.Dataset, tmp_path: Path) -> None:
    """JSON has no bytes: the message names the place."""
    made = [{"images": [{"bytes": jpeg(0)}]}]
    with pytest.raises(
        brand.errors.SchemaError, match=r"JSON has no bytes \(at \[0\]\['bytes'\]\): a file or bytes need"
    ):
        pack(made, tmp_path / "set", {"images": "json"})
