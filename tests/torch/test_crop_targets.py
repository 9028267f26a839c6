"""Boxes, points and masks that move with a random crop: as torchvision moves them, and as the image does."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader

from brand import CenterCrop, DecodeImage, DecodeMask, Pad, RandomResizedCrop, Resize, pack
from brand.errors import DecodeError, SchemaError, UsageError
from brand.formats.crops import random_numbers
from brand.formats.targets import Coordinates, mask_of, moved
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from brand.torch.fetch.cropping import placement_of
from tests.golden.make_crops import CROPS, FLIP, FORMATS, PHOTOS, SEEDS, boxes_of, mask_in

GOLDEN = Path(__file__).parents[1] / "golden" / "crop-targets.npz"
SIDES = (40, 60)
"""Height and width of the images below."""
TARGETS: dict[str, Any] = {"boxes": "xyxy", "points": "xy", "mask": DecodeMask()}


@pytest.mark.parametrize("photo", PHOTOS, ids=lambda photo: photo.stem)
@pytest.mark.parametrize("number", range(len(CROPS)))
def test_boxes_and_masks_are_those_of_torchvision(photo: Path, number: int) -> None:
    """`tests/golden/make_crops.py` made them with torchvision's v2 functions of `BoundingBoxes` and `Mask`."""
    crop, pixels = CROPS[number][0], np.array(Image.open(photo).convert("RGB"))
    # Where an image is lower than a CenterCrop by an odd number, torchvision rounds the border of boxes in another way
    # than that of the image. Here, boxes stay with the image.
    within = 1.001 if isinstance(crop, CenterCrop) and (crop.shape[0] - len(pixels)) % 2 else 1e-3
    height, width = pixels.shape[0], pixels.shape[1]
    with np.load(GOLDEN) as golden:
        for seed in SEEDS if isinstance(crop, RandomResizedCrop) else SEEDS[:1]:
            at, mirrored = placement_of(DecodeImage(crop=crop, flip=FLIP), height, width, seed)
            name = f"{photo.stem}-{number}-{seed}"
            assert np.array_equal(mask_of(mask_in(pixels), at, mirrored=mirrored), golden[f"{name}-mask"])
            for kind in FORMATS:
                boxes = moved(boxes_of(height, width, kind), kind, at, mirrored=mirrored)
                assert boxes.dtype == np.float32
                assert np.abs(boxes - golden[f"{name}-{kind}"]).max() < within


@pytest.mark.parametrize("kind", ["xyxy", "xywh", "cxcywh", "xy"])
def test_coordinates_keep_their_shape_and_kind(kind: Coordinates) -> None:
    """No box, one box, boxes of several groups; float64 stays float64."""
    at, count = Resize((20, 30)).place(*SIDES, random_numbers(0)), 2 if kind == "xy" else 4
    for shape in ((0,), (0, count), (count,), (3, count), (2, 3, count)):
        for dtype in (np.int64, np.uint8, np.float32, np.float64):
            found = moved(np.ones(shape, dtype), kind, at, mirrored=False)
            assert found.dtype == (np.float64 if dtype is np.float64 else np.float32)
            assert found.shape == shape
    for wrong in (np.ones((3, 5)), np.ones(()), np.ones((count, 1)), np.full((1, count), "a")):
        with pytest.raises(ValueError, match=r"is an array of shape"):
            moved(wrong, kind, at, mirrored=False)


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def sample_of(number: int) -> dict[str, Any]:
    """An image with one bright rectangle; its box, its corners, and a mask of it."""
    rng = np.random.default_rng(number)
    top, left = rng.integers(0, 20), rng.integers(0, 40)
    bottom, right = top + rng.integers(8, 20), left + rng.integers(8, 20)
    mask = np.zeros(SIDES, np.uint8)
    mask[top:bottom, left:right] = 1 + number % 3
    image = np.repeat(np.where(mask[:, :, None], 255, 0).astype(np.uint8), 3, axis=2)
    boxes = np.array([[left, top, right, bottom]], np.float32)
    return {"image": png(image), "mask": png(mask), "boxes": boxes, "points": boxes.reshape(2, 2), "n": number}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("targets") / "set.brand"
    schema = {"image": "image", "mask": "image", "boxes": "ndarray", "points": "ndarray", "n": "int"}
    pack((sample_of(number) for number in range(120)), target, schema, chunk_size=16)
    return target


def opened(path: Path, crop: Any = RandomResizedCrop(32, scale=(0.3, 1.0)), **more: Any) -> BrandDataset:  # noqa: B008 - plain data
    how = DecodeImage(crop=crop, flip=0.5, targets=TARGETS)
    return BrandDataset(path, fields=("n", "image", "mask", "boxes", "points"), decode={"image": how}, **more)


def check(batches: Any) -> dict[int, bytes]:
    """Check that box, points and mask lie on the bright rectangle of the image; return all of it, by sample."""
    found = {}
    for batch in batches:
        for n, image, mask, boxes, points in zip(*(each.numpy() for each in batch), strict=True):
            assert set(np.unique(mask).tolist()) <= {0, 1 + int(n) % 3}
            [(left, top, right, bottom)] = boxes
            if min(right - left, bottom - top) > 2 and not mask.all():
                rows, columns = np.nonzero(mask)
                edges = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
                assert np.abs(np.array(edges) - (left, top, right, bottom)).max() <= 1.01
                assert image[mask > 0].mean() > 2 * image[mask == 0].mean()
            x = np.clip(np.sort(points[:, 0]), 0, mask.shape[1])
            assert np.abs(x - (left, right)).max() < 1e-3
            found[int(n)] = image.tobytes() + mask.tobytes() + boxes.tobytes() + points.tobytes()
    return found


@pytest.mark.parametrize(
    "crop", [RandomResizedCrop(32), CenterCrop(30, resize=36), Resize((20, 50)), Pad(64)], ids=repr
)
def test_they_move_with_the_image(path: Path, crop: Any) -> None:
    """By random access, too."""
    data = opened(path, crop)
    assert len(check(BrandLoader(data, 16, sampler=BrandSampler(data, seed=1)))) == 120
    assert len(check(DataLoader(data, 16))) == 120


def test_all_ways_give_the_same(path: Path) -> None:
    """Threads, processes of PyTorch, a transform, and the rest of an epoch after a state."""
    data = opened(path)
    one = check(BrandLoader(data, 16, sampler=BrandSampler(data, seed=1)))
    assert check(BrandLoader(data, 7, sampler=BrandSampler(data, seed=1), num_workers=3)) == one
    assert check(DataLoader(data, 16, sampler=BrandSampler(data, seed=1), num_workers=2)) == one
    changed = opened(path, transform={"n": int})
    loader = BrandLoader(changed, 16, sampler=BrandSampler(changed, seed=1))
    assert check(loader) == one
    loader.set_epoch(0)
    first = iter(loader)
    some = check([next(first), next(first)])
    later = BrandLoader(data, 10, sampler=BrandSampler(data, seed=1))
    later.load_state_dict(loader.state_dict())
    assert some | check(later) == one
    loader.set_epoch(1)
    other = check(loader)
    assert sum(other[n] != one[n] for n in one) > 100


def test_a_mask_of_another_size_is_an_error(tmp_path: Path) -> None:
    """It names the sample and both sizes."""
    sample = {"image": sample_of(0)["image"], "mask": png(np.zeros((30, 60), np.uint8))}
    pack([sample], tmp_path / "set.brand", {"image": "image", "mask": "image"})
    data = BrandDataset(
        tmp_path / "set.brand",
        fields=("image", "mask"),
        decode={"image": DecodeImage(crop=CenterCrop(20), targets={"mask": DecodeMask()})},
    )
    with pytest.raises(
        DecodeError, match=r"'mask', a target of the crop: it has 60 x 30 pixels, and its image 60 x 40"
    ):
        data[0]


def test_wrong_targets_are_refused(path: Path) -> None:
    """By name, with what is possible."""
    crop = CenterCrop(20)
    for targets, why in (
        ({"boxes": "corners"}, r"targets=\{'boxes': 'corners'\}: give 'xyxy', 'xywh', 'cxcywh', 'xy', or DecodeMask"),
        ({"mask": DecodeMask(size=(3, 3))}, "without a size"),
        ({"mask": DecodeImage()}, "without a size"),
        (["boxes"], "targets= is a dict of fields"),
    ):
        with pytest.raises(UsageError, match=why):
            DecodeImage(crop=crop, targets=targets)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="are for a crop: give crop="):
        DecodeImage(size=(20, 20), targets={"boxes": "xyxy"})
    for named, why in (
        ({"box": "xyxy"}, "names 'box', which is not among the fields image, mask, boxes"),
        ({"points": "xy"}, "names 'points', which is not among the fields"),
        ({"boxes": DecodeMask()}, r"'boxes', a field of kind 'ndarray': DecodeMask\(\) is for a field of images"),
        ({"mask": "xyxy"}, r"'mask', a field of kind 'image': it needs DecodeMask\(\)"),
    ):
        how: Any = DecodeImage(crop=crop, targets=named)  # type: ignore[arg-type]
        with pytest.raises(SchemaError, match=why):
            BrandDataset(path, fields=("image", "mask", "boxes"), decode={"image": how})
    both = {"image": DecodeImage(crop=crop, targets={"mask": DecodeMask()}), "mask": DecodeMask()}
    with pytest.raises(SchemaError, match="which decode= names, too"):
        BrandDataset(path, decode=both)
    moves = DecodeImage(crop=crop, targets={"boxes": "xyxy"})
    with pytest.raises(SchemaError, match=r"names 'boxes', which is a target of '(image|mask)', too"):
        BrandDataset(path, decode={"image": moves, "mask": moves})
