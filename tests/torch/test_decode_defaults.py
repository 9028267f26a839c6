"""One image has one orientation and one set of values, whatever the route, and that of the tool it came from."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image, ImageChops, ImageOps
from torch.utils.data import DataLoader

import brand
from brand import BrandDataset, BrandLoader, BrandSampler, DecodeImage, DecodeMask
from brand.chunker import Options, convert_from, convert_images
from brand.chunker.distributed import Task, plan_images, run_task, seal
from brand.collect.append import append_data_set, append_from, append_images, append_samples
from brand.errors import SchemaError, UsageError
from brand.formats import heads
from brand.formats.header import DecodeDefault
from brand.formats.pixels import Clipped, clipped
from brand.node.setup.decoding import Prepared
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.dataset.summary import summarise
from brand.storage.maintenance.reindex import reindex
from brand.storage.maintenance.unpack import unpack
from tests import support
from tests.formats.test_heads import RGB, saved
from tests.formats.test_pixels import CLASSES, mask_file
from tests.support import LIMIT_S
from tests.tools.imagefiles import png
from tests.torch.support import served

TURNED = [saved(ImageChops.offset(RGB, number), "JPEG", 1 + number % 8) for number in range(16)]
UPRIGHT = [np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")) for data in TURNED]
PLAIN = [np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in TURNED]
BY = {"image": DecodeImage(size=(20, 20))}


def hugging_face() -> Any:
    """A `Dataset` of images, as the Hub has them."""
    rows = {"image": [{"bytes": data, "path": f"{k}.jpg"} for k, data in enumerate(TURNED)], "n": list(range(16))}
    features = datasets.Features({"image": datasets.Image(), "n": datasets.Value("int64")})
    return datasets.Dataset.from_dict(rows, features=features)


def folder(path: Path) -> Path:
    (path / "a").mkdir(parents=True)
    for number, data in enumerate(TURNED):
        (path / "a" / f"{number:02}.jpg").write_bytes(data)
    return path


def plain_parquet(path: Path) -> Path:
    path.mkdir()
    pq.write_table(pa.table({"image": TURNED, "n": list(range(16))}), path / "0.parquet")
    return path


def by_route(path: Path, route: str, **more: Any) -> dict[int, Any]:
    """Index -> image, by one of the ways to get it."""
    fields: dict[str, Any] = {"fields": ("index", "image")}
    if route == "direct":
        data = BrandDataset(path, **fields, **more)
        return dict(data[i] for i in range(len(data)))
    if route == "batch":
        data = BrandDataset(path, **fields, **more)
        return dict(data.__getitems__(list(range(len(data)))))
    with served(path, prepared=Prepared("8MB", 1) if route == "server" else None, **fields, **more) as data:
        if route == "loader":
            loader: Any = BrandLoader(data, 4, collate_fn=list)
        else:
            workers = 2 if route == "workers" else 0
            loader = DataLoader(data, 4, sampler=BrandSampler(data), num_workers=workers, collate_fn=list)
        return dict(sample for batch in loader for sample in batch)


ROUTES = ["direct", "batch", "drawn", "workers", "loader", "server"]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("origin", ["pack hf", "convert hf", "folder", "webdataset-like pack", "plain parquet", "told"])
def test_each_route_gives_the_orientation_of_the_source(origin: str, route: str, tmp_path: Path) -> None:
    """Data of Hugging Face upright, other data as `ImageFolder` and Pillow read them, and what `pack` was told."""
    target, right = tmp_path / "set.brand", PLAIN
    if origin == "pack hf":
        right = [np.asarray(row["image"].convert("RGB")) for row in hugging_face()]
        brand.pack(hugging_face(), target)
    elif origin == "convert hf":
        right = UPRIGHT
        hugging_face().save_to_disk(str(tmp_path / "saved"))
        convert_from("hf", tmp_path / "saved", target, Options(jobs=1))
    elif origin == "folder":
        convert_images(folder(tmp_path / "src"), target, Options(jobs=1))
    elif origin == "plain parquet":
        convert_from("parquet", plain_parquet(tmp_path / "src"), target, Options(jobs=1))
    elif origin == "told":
        right = UPRIGHT
        samples = ({"image": data} for data in TURNED)
        brand.pack(samples, target, {"image": "image"}, decode={"image": DecodeImage(upright=True)})
    else:
        brand.pack(({"image": data} for data in TURNED), target, {"image": "image"})
    found = by_route(target, route)
    assert sorted(found) == list(range(16))
    assert all(np.array_equal(np.asarray(found[k]), right[k]) for k in found)
    small = by_route(target, route, decode=BY)
    for k, pixels in small.items():
        expected = np.asarray(Image.fromarray(right[k]).resize((20, 20), Image.Resampling.BILINEAR))
        assert np.abs(np.asarray(pixels).astype(int) - expected).mean() < 12
        assert np.array_equal(np.asarray(pixels), DecodeImage(size=(20, 20), upright=right is not PLAIN)(TURNED[k]))


@pytest.mark.parametrize("route", ROUTES)
def test_a_user_decides_against_the_data_set(route: str, tmp_path: Path) -> None:
    """In both directions."""
    brand.pack(hugging_face(), tmp_path / "up.brand")
    brand.pack(({"image": data} for data in TURNED), tmp_path / "plain.brand", {"image": "image"})
    for name, upright, right in (("up", False, PLAIN), ("plain", True, UPRIGHT)):
        found = by_route(tmp_path / f"{name}.brand", route, decode={"image": DecodeImage(upright=upright)})
        assert all(np.abs(np.asarray(found[k]).astype(int) - right[k]).max() <= 1 for k in range(16))


def test_pack_of_hugging_face_may_be_told_otherwise(tmp_path: Path) -> None:
    """`upright=False` wins over the habit of the source."""
    brand.pack(hugging_face(), tmp_path / "set", decode={"image": DecodeImage(upright=False)})
    assert np.array_equal(np.asarray(BrandDataset(tmp_path / "set")[5]["image"]), PLAIN[5])


@pytest.mark.parametrize("mode", ["L", "RGBA", "RGB", None])
def test_the_mode_of_hugging_face_is_kept(mode: str | None, tmp_path: Path) -> None:
    """`Image(mode=...)` of a column."""
    table = hugging_face().cast_column("image", datasets.Image(mode=mode))
    brand.pack(table, tmp_path / "set")
    for number in (0, 5):
        expected = table[number]["image"]
        image = BrandDataset(tmp_path / "set")[number]["image"]
        assert image.mode == expected.mode
        assert np.array_equal(np.asarray(image), np.asarray(expected))


def test_what_is_remembered_is_shown(tmp_path: Path) -> None:
    """In `info`, in the manifest, and in the advice about orientation; old data sets say nothing."""
    report = brand.pack(hugging_face(), tmp_path / "set")
    assert [fact.text for fact in report.noticed] == ["14 images are turned by EXIF and decode upright"]
    assert summarise(StoredDataSet(tmp_path / "set")).decode == {"image": "upright"}
    assert "image: upright" in support.brand("info", tmp_path / "set").out
    assert BrandDataset(tmp_path / "set").schema == {"image": "image", "n": "int"}
    assert '"image[upright]"' in (tmp_path / "set" / "brand.json").read_text()
    before = (tmp_path / "set" / "brand.json").read_bytes()
    (tmp_path / "set" / "brand.json").unlink()
    reindex(tmp_path / "set")
    assert (tmp_path / "set" / "brand.json").read_bytes() == before
    again = brand.pack(({"image": data} for data in TURNED), tmp_path / "plain", {"image": "image"})
    assert [fact.text for fact in again.noticed] == ["14 images are turned by EXIF: upright=True turns them"]
    assert summarise(StoredDataSet(tmp_path / "plain")).decode == {}


def test_the_advice_about_orientation_helps(tmp_path: Path) -> None:
    """`upright=True`, as the report says."""
    convert_images(folder(tmp_path / "src"), tmp_path / "set", Options(jobs=1))
    data = BrandDataset(tmp_path / "set", decode={"image": DecodeImage(upright=True)})
    assert all(np.abs(data[k]["image"].astype(int) - UPRIGHT[k]).max() <= 1 for k in range(16))


def test_files_are_never_changed(tmp_path: Path) -> None:
    """`decode=False`, `brand.open` and `brand unpack` give the bytes of the source."""
    convert_images(folder(tmp_path / "src"), tmp_path / "set", Options(jobs=1))
    assert [BrandDataset(tmp_path / "set", decode=False)[k]["image"] for k in range(16)] == TURNED
    assert [brand.open(tmp_path / "set").sample(k)["image"] for k in range(16)] == TURNED
    unpack(tmp_path / "set", tmp_path / "out")
    assert support.files_below(tmp_path / "out") == support.files_below(tmp_path / "src")
    brand.pack(hugging_face(), tmp_path / "hf")
    assert [brand.open(tmp_path / "hf").sample(k)["image"] for k in range(16)] == TURNED


def test_tasks_remember_nothing_else(tmp_path: Path) -> None:
    """A folder that several machines convert is that of one machine."""
    job = plan_images(folder(tmp_path / "src"), tmp_path / "set", Options())
    run_task(job, Task(0, 1), jobs=1)
    seal(tmp_path / "set")
    convert_images(tmp_path / "src", tmp_path / "one", Options(jobs=1))
    assert support.files_below(tmp_path / "set") == support.files_below(tmp_path / "one")


def masks_set(path: Path) -> Path:
    """Images with masks of 21 classes."""
    samples = ({"image": data, "mask": mask_file(orientation=1 + k % 8)} for k, data in enumerate(TURNED))
    schema = {"image": "image", "mask": "image"}
    defaults = {"image": DecodeImage(upright=True), "mask": DecodeMask(upright=True)}
    brand.pack(samples, path, schema, decode=defaults)
    return path


@pytest.mark.parametrize("prepared", [None, Prepared("8MB", 1)])
@pytest.mark.parametrize("by", ["brand", "torch"])
def test_masks_train_with_their_images(by: str, prepared: Prepared | None, tmp_path: Path) -> None:
    """As batches: classes stay classes, and turn as their images do."""
    path = masks_set(tmp_path / "set")
    how = {"image": DecodeImage(size=(12, 18)), "mask": DecodeMask(size=(12, 18))}
    with served(path, prepared=prepared, fields=("index", "image", "mask"), decode=how) as data:
        loader: Any = BrandLoader(data, 4) if by == "brand" else DataLoader(data, 4, sampler=BrandSampler(data))
        seen = 0
        for indices, images, masks in loader:
            assert (images.shape[1:], masks.shape[1:]) == ((12, 18, 3), (12, 18))
            assert masks.dtype == torch.uint8
            for index, mask in zip(indices.tolist(), masks.numpy(), strict=True):
                turned = ImageOps.exif_transpose(Image.open(io.BytesIO(mask_file(orientation=1 + index % 8))))
                expected = np.asarray(turned.resize((18, 12), Image.Resampling.NEAREST))
                assert np.array_equal(mask, expected)
                seen += 1
        assert seen == 16
    image = BrandDataset(path)[0]["mask"]
    assert np.array_equal(np.asarray(image), CLASSES)


DEEP = [np.random.default_rng(k).integers(0, 1 << 16, (9, 7, 1 + 2 * (k % 2)), dtype=np.uint16) for k in range(8)]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("route", ROUTES)
def test_values_of_16_bits_arrive_by_each_route(route: str, channels: int, tmp_path: Path) -> None:
    """Also those that the data server decodes."""
    deep = [values for values in DEEP if values.shape[2] == channels]
    brand.pack(({"image": png(values)} for values in deep), tmp_path / "set", {"image": "image"})
    found = by_route(tmp_path / "set", route, decode={"image": DecodeImage(mode="unchanged")})
    for index, values in enumerate(deep):
        pixels = np.asarray(found[index])
        assert pixels.dtype == np.uint16
        assert np.array_equal(pixels, values[..., 0] if channels == 1 else values)


@pytest.mark.parametrize("route", ["direct", "drawn", "server", "loader"])
def test_the_first_clipped_fetch_is_told(
    route: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, whoever decodes, and with the option that keeps the values."""
    for name, value in vars(Clipped()).items():
        monkeypatch.setattr(clipped, name, value)
    brand.pack(({"image": png(values)} for values in DEEP[::2]), tmp_path / "set", {"image": "image"})
    with caplog.at_level(logging.WARNING, "brand"):
        by_route(tmp_path / "set", route, decode={"image": DecodeImage(size=(9, 7))})
    told = [record for record in caplog.records if "keeps its values" in record.getMessage()]
    assert len(told) == 1


@pytest.mark.parametrize(
    ("decode", "error"),
    [
        ({"image": DecodeImage(size=(2, 2))}, UsageError),
        ({"image": DecodeImage(frame=1)}, UsageError),
        ({"image": True}, UsageError),
        ({"n": DecodeImage()}, SchemaError),
        ({"other": DecodeImage()}, SchemaError),
    ],
)
def test_what_a_data_set_does_not_remember_is_refused(decode: Any, error: type[Exception], tmp_path: Path) -> None:
    """Before anything is written."""
    with pytest.raises(error):
        brand.pack([{"image": TURNED[0], "n": 1}], tmp_path / "set", {"image": "image", "n": "int"}, decode=decode)
    assert not (tmp_path / "set").exists()


def test_a_collection_decodes_all_segments_alike(tmp_path: Path) -> None:
    """As its first segment; a finished data set that decodes otherwise is refused."""
    first, all_ = [{"image": data} for data in TURNED[:8]], tmp_path / "all.brand"
    append_samples(first, all_, {"image": "image"})
    append_samples(first[:1], tmp_path / "told", {"image": "image"}, decode={"image": DecodeImage(upright=True)})
    assert StoredDataSet(tmp_path / "told").header.decode == {"image": DecodeDefault(upright=True)}
    hugging_face().select(range(8, 16)).remove_columns("n").save_to_disk(str(tmp_path / "saved"))
    report = append_from("hf", tmp_path / "saved", all_, Options(jobs=1))
    assert [fact.text for fact in report.noticed] == ["7 images are turned by EXIF: upright=True turns them"]
    assert any("The collection decides how images are decoded" in note for note in report.notes)
    data = BrandDataset(all_)
    assert all(np.array_equal(np.asarray(data[k]["image"]), PLAIN[k]) for k in range(16))
    brand.pack(hugging_face().remove_columns("n"), tmp_path / "up")
    with pytest.raises(SchemaError, match="decodes its images by default as image: image\\[upright\\]"):
        append_data_set(tmp_path / "up", all_)
    append_data_set(tmp_path / "up", tmp_path / "up.brand")
    more = append_from("hf", tmp_path / "saved", tmp_path / "up.brand", Options(jobs=1))
    assert [fact.text for fact in more.noticed] == ["7 images are turned by EXIF and decode upright"]
    assert not any("decides" in note for note in more.notes)
    found = BrandDataset(tmp_path / "up.brand")
    assert len(found) == 24
    assert all(np.array_equal(np.asarray(found[16 + k]["image"]), UPRIGHT[8 + k]) for k in range(8))


def test_facts_of_a_collection_are_those_of_its_segments(tmp_path: Path) -> None:
    """Added up."""
    append_images(folder(tmp_path / "one"), tmp_path / "all.brand", Options(jobs=1))
    (tmp_path / "two" / "a").mkdir(parents=True)
    (tmp_path / "two" / "a" / "x.jpg").write_bytes(saved(RGB.rotate(10), "JPEG", 6))
    append_images(tmp_path / "two", tmp_path / "all.brand", Options(jobs=1))
    facts = summarise(StoredDataSet(tmp_path / "all.brand")).noticed
    assert [(fact.what, fact.count) for fact in facts] == [(heads.TURNED, 15)]


CLIPPED = """
import sys
from torch.utils.data import DataLoader
from brand import BrandDataset, BrandSampler, DecodeImage

data = BrandDataset(sys.argv[1], fields=("image",), decode={"image": DecodeImage(size=(4, 4))})
for _ in range(2):
    loader = DataLoader(data, 2, sampler=BrandSampler(data), num_workers=3, multiprocessing_context="fork")
    print(sum(len(images) for (images,) in loader))
"""


@pytest.mark.slow
def test_workers_tell_once_that_values_are_clipped(tmp_path: Path) -> None:
    """One line for a training, however many workers and epochs it has."""
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4), 40_000, np.uint16)).save(file, "PNG")
    samples = [{"image": file.getvalue()}] * 12
    brand.pack(samples, tmp_path / "d.brand", {"image": "image"})
    command = [sys.executable, "-c", CLIPPED, str(tmp_path / "d.brand")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert done.stdout.split() == ["12", "12"]
    assert done.stderr.count("Further images are not told") == 1
