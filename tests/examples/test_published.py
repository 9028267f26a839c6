"""The examples train on data laid out as published, and each value of each sample is the one that its source has.

`Pillow`, `json`, `csv`, `pyarrow` and `soundfile` read the source independently. Each example is run by the commands of
its own docstring.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import soundfile
import torch
from PIL import Image

import brand
from brand import BrandDataset, BrandLoader, DecodeAudio, DecodeImage, DecodeMask
from tests.support import LIMIT_S

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
_COMMAND = re.compile(r"^    (python|brand) (.*?)(?: {2,}#.*)?$", re.MULTILINE)

MADE = {
    "train_segmentation.py": {"voc": (12, 12)},
    "train_detection.py": {"coco": (12, 12)},
    "train_captions.py": {"captions": (61, 12)},
    "train_documents.py": {"llava": (12, 12), "cauldron": (10, 10)},
    "train_table.py": {"kaggle": (31, 31)},
    "train_speech.py": {"librispeech": (36, 36), "nemo": (36, 36), "common-voice": (30, 30)},
}
"""Example -> its data sets -> how many of what it trains on, and samples of the data set."""


class Bench:
    """A folder in which the commands of the examples are run, each once."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._printed = folder, dict[str, str]()
        (folder / "examples").symlink_to(ROOT / "examples")

    def printed(self, command: str) -> str:
        """Run a command, unless it was run before. Return what it printed."""
        if command not in self._printed:
            name, *words = shlex.split(command)
            start = [sys.executable] if name == "python" else [sys.executable, "-m", "brand"]
            done = subprocess.run(
                [*start, *words], cwd=self.folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            self._printed[command] = done.stdout
        return self._printed[command]

    def prepared(self, example: str, name: str) -> Path:
        """Return the data set NAME.brand, made by the commands of an example's docstring."""
        for command in commands(example):
            if not command.startswith(f"python examples/{example}") or not (self.folder / f"{name}.brand").exists():
                self.printed(command)
        return self.folder / f"{name}.brand"


def commands(example: str) -> list[str]:
    """Return the commands of the docstring of an example."""
    return [" ".join(found) for found in _COMMAND.findall((ROOT / "examples" / example).read_text("utf-8"))]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"))


def every(path: Path, **more: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the samples of a data set in order: by random access, and equal to those that a loader fetches."""
    one = BrandDataset(path, **more)
    fetched = [sample for batch in BrandLoader(one, batch_size=4, collate_fn=list) for sample in batch]
    assert len(fetched) == len(one)
    left = defaultdict[str, int](int)
    for sample in fetched:
        left[as_text(sample)] += 1
    for position in range(len(one)):
        left[as_text(one[position])] -= 1
        yield one[position]
    assert set(left.values()) == {0}


def as_text(value: Any) -> str:
    """Return a text that is equal for equal samples."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {value.tobytes().hex()}"
    return str([as_text(item) for item in value]) if isinstance(value, tuple | list) else repr(value)


def pixels_of(file: Path | bytes, mode: str = "RGB") -> Any:
    with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file) as image:
        return np.asarray(image.convert(mode))


def same(one: Any, other: Any) -> bool:
    """Whether two arrays have one type, shape and contents."""
    one, other = np.asarray(one), np.asarray(other)
    return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())


@pytest.mark.parametrize(("example", "name"), [(file, name) for file, names in MADE.items() for name in names])
def test_an_example_trains_two_epochs_on_every_sample_once(bench: Bench, example: str, name: str) -> None:
    """The commands of its docstring work as they stand, and the loss falls."""
    made = bench.prepared(example, name)
    last = next(command for command in reversed(commands(example)) if command.startswith("python"))
    texts = [command for command in commands(example) if f" {name}.brand" in command and command.startswith("python")]
    printed = bench.printed(texts[0] if texts else re.sub(r"\S+\.brand", f"{name}.brand", last))
    found = re.findall(r"^epoch (\d): (\d+) \w+, (\d+) different,.* loss ([\d.]+)$", printed, re.MULTILINE)
    count, samples = MADE[example][name]
    assert [tuple(map(int, epoch[:3])) for epoch in found] == [(0, count, count), (1, count, count)], printed
    assert float(found[1][3]) <= float(found[0][3]) < 100, printed
    assert len(BrandDataset(made)) == samples


def test_voc_keeps_class_numbers_and_pixels(bench: Bench) -> None:
    """Numbers of a palette PNG, 255 among them, are those that Pillow reads; also in another size."""
    made, root = bench.prepared("train_segmentation.py", "voc"), bench.folder / "data/VOCdevkit/VOC2012"
    names = (root / "ImageSets/Segmentation/train.txt").read_text().split()
    decode = {"image": DecodeImage(), "mask": DecodeMask()}
    numbers = set()
    for name, (key, image, mask) in zip(
        names, every(made, fields=("key", "image", "mask"), decode=decode), strict=True
    ):
        expected = np.asarray(Image.open(root / f"SegmentationClass/{name}.png"))
        assert key == name
        assert same(mask, expected)
        assert same(image, pixels_of(root / f"JPEGImages/{name}.jpg"))
        numbers |= set(np.unique(mask).tolist())
    assert numbers == {0, 1, 2, 3, 4, 5, 255}
    (small,) = BrandDataset(made, fields=("mask",), decode={"mask": DecodeMask(size=(50, 60))})[1]
    file = Image.open(root / f"SegmentationClass/{names[1]}.png")
    assert same(small, np.asarray(file.resize((60, 50), Image.Resampling.NEAREST)))
    assert BrandDataset(made)[1]["mask"].mode == "P"  # what `pack` was told is remembered
    assert BrandDataset(made)[1]["mask"].getpalette() == file.getpalette()


def _marked(place: Any) -> Any:
    """Return a class number for each place of an image whose red and green are its column and row."""
    return ((place[..., 0] // 16).astype(int) * 5 + place[..., 1].astype(int) // 16) % 21


@pytest.mark.parametrize("size", [(200, 190), (90, 150)], ids=["large", "small"])
@pytest.mark.parametrize("form", ["palette", "gray", "16 bits"])
def test_an_image_and_its_mask_are_cropped_by_one_window(tmp_path: Path, size: tuple[int, int], form: str) -> None:
    """Each pixel of an image says where it is, and so which number its mask has: in threads, and in two epochs."""
    segmentation = importlib.import_module("examples.train_segmentation")
    rows, columns = np.mgrid[: size[0], : size[1]]
    image = np.stack([columns, rows, np.full(size, 9)], 2).astype(np.uint8)
    samples = []
    for number in range(24):
        files = []
        mask = Image.fromarray(_marked(image).astype(np.uint16 if form == "16 bits" else np.uint8))
        if form == "palette":
            mask.putpalette(np.random.default_rng(number).integers(0, 256, 768, np.uint8).tobytes())
        for picture in (Image.fromarray(image), mask):
            file = io.BytesIO()
            picture.save(file, "PNG")
            files.append(file.getvalue())
        samples.append({"key": str(number), "image": files[0], "mask": files[1]})
    brand.pack(samples, tmp_path / "s.brand", {"key": "str", "image": "image", "mask": "image"})
    decode = {"image": DecodeImage(), "mask": DecodeMask()}
    fields = ("key", "image", "mask")
    ds = BrandDataset(tmp_path / "s.brand", fields=fields, decode=decode, transform=segmentation.augment)
    loader = BrandLoader(ds, batch_size=4, num_workers=4)
    windows = set()
    for epoch in range(2):
        loader.set_epoch(epoch)
        for _, images, masks in loader:
            for pixels, numbers in zip(images.numpy(), masks.numpy(), strict=True):
                inside = pixels[2] == 9
                assert (numbers[inside] == _marked(pixels.transpose(1, 2, 0))[inside]).all()
                assert set(np.unique(numbers[~inside])) <= {255}
                assert inside.sum() == min(128, size[0]) * min(128, size[1])
                windows.add((int(pixels[0][inside].min()), int(pixels[1][inside].min()), bool(numbers[0, 0] == 255)))
    assert len(windows) > 4  # the windows differ


def test_boxes_of_coco_stay_on_their_objects(bench: Bench) -> None:
    """Boxes are those of the JSON, in pixels, also after an image was mirrored and resized."""
    detection = importlib.import_module("examples.train_detection")
    made, root = bench.prepared("train_detection.py", "coco"), bench.folder / "data/coco"
    table = json.loads((root / "annotations/instances_train2017.json").read_text())
    numbers = {category["id"]: number for number, category in enumerate(table["categories"])}
    assert any(one["iscrowd"] for one in table["annotations"])
    fields, decode = ("key", "image", "boxes", "labels"), {"image": DecodeImage()}
    as_stored = list(every(made, fields=fields, decode=decode))
    moved = BrandDataset(made, fields=fields, decode=decode, transform=detection.augment)
    batches = BrandLoader(moved, batch_size=4, collate_fn=list)
    changed = {key: values for batch in batches for key, *values in batch}
    mirrored = set()
    assert len(changed) == len(as_stored) == 12
    for facts, (key, image, boxes, labels) in zip(table["images"], as_stored, strict=True):
        mine = [one for one in table["annotations"] if one["image_id"] == facts["id"] and not one["iscrowd"]]
        expected = np.array([one["bbox"] for one in mine], np.float32).reshape(-1, 4)
        expected[:, 2:] += expected[:, :2]
        assert key == facts["file_name"]
        assert same(image, pixels_of(root / "train2017" / key))
        assert same(boxes, expected)
        assert labels.tolist() == [numbers[one["category_id"]] for one in mine]
        pixels, new, same_labels = changed[key]
        assert same_labels.tolist() == labels.tolist()
        flipped, there = _place_of(image, pixels)
        mirrored.add(flipped)
        x1, y1, x2, y2 = expected.T
        across, down = 128 / facts["width"], 128 / facts["height"]
        left, right = (facts["width"] - x2, facts["width"] - x1) if flipped else (x1, x2)
        assert there
        assert np.allclose(new, np.stack([left * across, y1 * down, right * across, y2 * down], 1), atol=1e-3)
    assert mirrored == {True, False}
    assert any(not len(boxes) for _, _, boxes, _ in as_stored)


def _place_of(image: Any, pixels: torch.Tensor) -> tuple[bool, bool]:
    """Return whether pixels of 128 x 128 are the mirrored image, and whether they are one of the two."""
    errors = []
    for candidate in (image, image[:, ::-1]):
        small = Image.fromarray(np.ascontiguousarray(candidate)).resize((128, 128), Image.Resampling.BILINEAR)
        errors.append(float(np.abs(np.asarray(small).transpose(2, 0, 1) / 255 - pixels.numpy()).mean()))
    return errors[1] < errors[0], min(errors) < 0.01 < max(errors)


def test_captions_of_coco_are_those_of_the_json(bench: Bench) -> None:
    """Each caption is with its image, to the last character and in the order of the JSON; one image has six."""
    made, root = bench.prepared("train_captions.py", "captions"), bench.folder / "data/coco"
    table = json.loads((root / "annotations/captions_train2017.json").read_text("utf-8"))
    names = {image["id"]: image["file_name"] for image in table["images"]}
    expected = defaultdict[str, list[str]](list)
    for one in table["annotations"]:
        expected[names[one["image_id"]]].append(one["caption"])
    found = {}
    for key, image, captions in every(made, fields=("key", "image", "captions"), decode=False):
        assert image == (root / "train2017" / key).read_bytes()
        found[key] = captions
    assert found == dict(expected)
    pairs = list(every(made, expand="captions", fields=("key", "captions")))
    assert pairs == [(key, text) for key in found for text in found[key]]
    assert sorted({len(some) for some in found.values()}) == [5, 6]


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")  # Pillow's, of this test's own reading
def test_documents_of_llava_are_those_of_the_json(bench: Bench) -> None:
    made, root = bench.prepared("train_documents.py", "llava"), bench.folder / "data/llava"
    rows = json.loads((root / "conversations.json").read_text("utf-8"))
    fields = ("id", "image", "conversations")
    for row, sample in zip(rows, every(made, fields=fields, decode=False), strict=True):
        files = [(root / name).read_bytes() for name in row.get("image", [])]
        assert sample == (row["id"], files, row["conversations"])
    for row, (_, images, _) in zip(rows, every(made, fields=fields, decode={"image": DecodeImage()}), strict=True):
        expected = [pixels_of(root / name) for name in row.get("image", [])]
        assert all(map(same, images, expected))
        assert len(images) == len(expected)
    assert {len(row.get("image", [])) for row in rows} == {0, 1, 2, 3, 4, 5}


def test_documents_of_the_cauldron_are_those_of_the_parquet(bench: Bench) -> None:
    made, root = bench.prepared("train_documents.py", "cauldron"), bench.folder / "data/cauldron"
    rows = pyarrow.parquet.read_table(root).to_pylist()
    samples = list(every(made, fields=("images", "texts"), decode=False))
    assert samples == [([image["bytes"] for image in row["images"]], row["texts"]) for row in rows]
    assert {len(images) for images, _ in samples} == {1, 2, 3, 4, 5}


def test_a_table_of_kaggle_is_with_its_images(bench: Bench) -> None:
    made, root = bench.prepared("train_table.py", "kaggle"), bench.folder / "data/kaggle"
    with (root / "train.csv").open(newline="", encoding="utf-8") as file:
        rows = {row["id_code"]: row for row in csv.DictReader(file)}
    fields = ("key", "image", "diagnosis", "remark")
    found = list(every(made, fields=fields, decode=False))
    for key, image, diagnosis, remark in found:
        row = rows[key.removesuffix(".jpg")]
        assert (image, diagnosis, remark) == (
            (root / "train_images" / key).read_bytes(),
            int(row["diagnosis"]),
            row["remark"],
        )
    assert sorted(key for key, *_ in found) == sorted(f"{code}.jpg" for code in rows)


def _waves(made: Path, *names: str) -> dict[str, tuple[Any, ...]]:
    """Return the other fields of the samples of a data set of speech, by key."""
    fields = ("key", "audio", *names)
    return {key: values for key, *values in every(made, fields=fields, decode={"audio": DecodeAudio()})}  # type: ignore[misc]


def test_librispeech_has_the_texts_of_its_chapters(bench: Bench) -> None:
    made, root = bench.prepared("train_speech.py", "librispeech"), bench.folder / "data/LibriSpeech/dev-clean"
    found = _waves(made, "text", "duration")
    expected = {}
    for table in root.rglob("*.trans.txt"):
        for line in table.read_text("utf-8").splitlines():
            name, text = line.split(" ", 1)
            expected[(table.parent / f"{name}.flac").relative_to(root).as_posix()] = text
    assert {key: text for key, (_, text, _) in found.items()} == expected
    for key, (wave, _, duration) in found.items():
        samples, rate = soundfile.read(root / key, dtype="float32")
        assert same(wave, samples)
        assert duration == len(samples) / rate


def test_segments_of_nemo_have_the_samples_of_their_recordings(bench: Bench) -> None:
    """As many samples as the manifest says, from the place that it says, bit for bit."""
    made, root = bench.prepared("train_speech.py", "nemo"), bench.folder / "data/nemo"
    rows = [json.loads(line) for line in (root / "train_manifest.json").read_text("utf-8").splitlines()]
    found = list(every(made, fields=("key", "audio", "text", "duration"), decode={"audio": DecodeAudio()}))
    assert len({row["audio_filepath"] for row in rows}) < len(rows)
    for row, (key, wave, text, duration) in zip(rows, found, strict=True):
        first, count = round(row["offset"] * 16_000), round(row["duration"] * 16_000)
        samples, _ = soundfile.read(root / row["audio_filepath"], count, first, dtype="float32")
        assert key == f"{row['audio_filepath']}#{row['offset']}"
        assert (text, duration, len(wave)) == (row["text"], row["duration"], count)
        assert same(wave, samples)


def test_common_voice_has_the_rows_of_one_table(bench: Bench) -> None:
    """Sentences are literal, quotes included, and a clip of another split is not there."""
    made, root = bench.prepared("train_speech.py", "common-voice"), bench.folder / "data/cv-corpus/en"
    header, *lines = [line.split("\t") for line in (root / "train.tsv").read_text("utf-8").splitlines()]
    rows = [dict(zip(header, line, strict=True)) for line in lines]
    found = list(every(made, fields=("key", "audio", "text", "duration"), decode={"audio": DecodeAudio()}))
    assert sum(row["sentence"].count('"') for row in rows) > 20
    assert len(list((root / "clips").iterdir())) > len(rows)
    for row, (key, wave, text, duration) in zip(rows, found, strict=True):
        samples, rate = soundfile.read(root / "clips" / row["path"], dtype="float32")
        assert (key, text) == (f"clips/{row['path']}", row["sentence"])
        assert same(wave, samples)
        assert duration == len(samples) / rate
    for row, (key, file) in zip(rows, every(made, fields=("key", "audio"), decode=False), strict=True):
        assert file == (root / "clips" / row["path"]).read_bytes(), key


@pytest.mark.parametrize(("example", "name"), [(file, name) for file, names in MADE.items() for name in names])
def test_every_checksum_is_right(bench: Bench, example: str, name: str) -> None:
    """`brand verify` reads every byte of each data set."""
    bench.prepared(example, name)
    assert "every checksum right" in bench.printed(f"brand verify {name}.brand")


@pytest.mark.parametrize(
    ("example", "name", "source"),
    [
        ("train_table.py", "kaggle", "kaggle/train_images"),
        ("train_speech.py", "librispeech", "LibriSpeech/dev-clean"),
    ],
)
def test_a_folder_comes_back_bit_for_bit(bench: Bench, example: str, name: str, source: str) -> None:
    """With the tables of texts of LibriSpeech."""
    bench.prepared(example, name)
    bench.printed(f"brand unpack {name}.brand {name}-back")
    trees = [
        {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (bench.folder / "data" / source, bench.folder / f"{name}-back")
    ]
    assert trees[0] == trees[1]
