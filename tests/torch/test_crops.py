"""Random crops: the pixels of torchvision; the same for a sample in any thread, worker, rank and after a restart."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, SequentialSampler

from brand import ArrayLoader, CenterCrop, DecodeImage, Mixture, Pad, RandomResizedCrop, Resize, pack
from brand.errors import DecodeError
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from brand.torch.fetch.cropping import ImageCropper
from tests import places
from tests.golden.make_crops import CROPS, FLIP, PHOTOS, SEEDS
from tests.torch.support import Openings, equal, failure_of, served

CROP = DecodeImage(crop=RandomResizedCrop(16), flip=0.5)
FIELDS = ("index", "image", "label")
GOLDEN = Path(__file__).parents[1] / "golden" / "crops.npz"
NATIVE = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
"""Whether PyTorch, and so torchvision, resizes uint8 as integers here; else as floats, rounded otherwise."""
Crops = dict[int, bytes]


def crops_of(batches: Iterable[Any]) -> Crops:
    """The pixels of each sample, by index."""
    return {i: image.numpy().tobytes() for index, images, _ in batches for i, image in zip(index.tolist(), images)}  # noqa: B905


def count_other(one: Crops, other: Crops) -> int:
    """Samples that have another crop: nearly all, since some images are of one colour."""
    return sum(crop != other[index] for index, crop in one.items())


# -- pixels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("photo", PHOTOS, ids=lambda photo: photo.stem)
@pytest.mark.parametrize("number", range(len(CROPS)))
def test_the_pixels_are_those_of_torchvision(photo: Path, number: int) -> None:
    """`tests/golden/make_crops.py` made them with torchvision's v2 functions."""
    (crop, name), data = CROPS[number], photo.read_bytes()
    crop_of = ImageCropper(DecodeImage(crop=crop, filter=name, flip=FLIP, scaled=False))  # type: ignore[arg-type]
    with np.load(GOLDEN) as golden:
        for seed in SEEDS if isinstance(crop, RandomResizedCrop) else SEEDS[:1]:
            expected, found = golden[f"{photo.stem}-{number}-{seed}"], crop_of(data, seed)
            assert found.shape == expected.shape
            assert found.dtype == np.uint8
            assert np.abs(found.astype(int) - expected).max() <= (0 if NATIVE else 1)


def test_normalized_values_are_those_of_torchvision() -> None:
    """ToDtype(float32, scale=True), then Normalize."""
    data, means, deviations = PHOTOS[0].read_bytes(), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    crop = RandomResizedCrop(20)
    pixels = torch.from_numpy(ImageCropper(DecodeImage(crop=crop, flip=0.5))(data, 3))
    expected = pixels.to(torch.float32).div(255).sub(torch.tensor(means)).div(torch.tensor(deviations))
    found = ImageCropper(DecodeImage(crop=crop, flip=0.5, normalize=(means, deviations)))(data, 3)
    assert found.dtype == np.float32
    assert np.array_equal(found, expected.numpy())


def test_a_smaller_decode_differs_little() -> None:
    """The pages state at least 31 dB, of photos; the part is moved by at most half a pixel of the smaller image."""
    image = Image.open(PHOTOS[-1]).convert("RGB").resize((2000, 1334), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=92)
    for how in (partial(DecodeImage, crop=CenterCrop(224, resize=256)), partial(DecodeImage, crop=Resize((224, 224)))):
        whole, smaller = (ImageCropper(how(scaled=scaled))(file.getvalue(), 0) for scaled in (False, True))
        assert not np.array_equal(whole, smaller)
        error = np.mean((whole.astype(float) - smaller) ** 2)
        assert 10 * np.log10(255**2 / error) > 31


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_modes_and_orientations_are_those_of_whole_images(mode: Any, orientation: int) -> None:
    """A crop of the whole image in its own size is the image, as `DecodeImage` decodes it without a crop."""
    exif, file = Image.Exif(), io.BytesIO()
    exif[274] = orientation
    Image.open(PHOTOS[0]).convert("RGB").crop((0, 0, 80, 50)).save(file, "JPEG", exif=exif)
    expected = DecodeImage(mode=mode, upright=True)(file.getvalue())
    how = DecodeImage(mode=mode, upright=True, crop=Resize(expected.shape[:2]))
    assert np.array_equal(ImageCropper(how)(file.getvalue(), 0), expected)


def test_without_simplejpeg_the_pixels_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    crops = [ImageCropper(DecodeImage(crop=crop)) for crop in (RandomResizedCrop(48), Resize((20, 20)), Pad(30))]
    data = PHOTOS[0].read_bytes()
    fast = [crop(data, 1) for crop in crops]
    monkeypatch.setitem(__import__("sys").modules, "simplejpeg", None)
    for crop, expected in zip(crops, fast, strict=True):
        assert np.array_equal(crop(data, 1), expected)


# -- the same crop for a sample, whoever makes it ---------------------------------------------------------------------


def loaders_of(data_set: BrandDataset) -> Iterator[Any]:
    """Loaders of epoch 2, all with one seed."""
    for threads in (1, 3):
        yield BrandLoader(data_set, 7, sampler=_sampler(data_set), num_workers=threads)
    for workers in (0, 2):
        yield DataLoader(data_set, 5, sampler=_sampler(data_set), num_workers=workers)


def _sampler(data_set: BrandDataset, **more: Any) -> BrandSampler:
    sampler = BrandSampler(data_set, seed=4, **more)
    sampler.set_epoch(2)
    return sampler


@places.EVERYWHERE
def test_threads_workers_and_ranks_give_a_sample_the_same_crop(photos_set: Path) -> None:
    how = {"image": CROP}
    with served(photos_set, fields=FIELDS, decode=how) as data_set:
        first, *others = [crops_of(loader) for loader in loaders_of(data_set)]
        assert len(first) == len(data_set)
        assert all(other == first for other in others)
        ranks = [BrandLoader(data_set, 4, sampler=_sampler(data_set, num_replicas=2, rank=rank)) for rank in (0, 1)]
        assert crops_of(ranks[0]) | crops_of(ranks[1]) == first
    with served(photos_set, fields=FIELDS, decode=how, memory=1.0) as data_set:  # in another order
        samples = {i: image.tobytes() for i, image, _ in map(data_set.__getitem__, _sampler(data_set))}
        assert samples == first
        arrays = ArrayLoader(data_set, 6, sampler=_sampler(data_set))
        assert {i: x.tobytes() for index, xs, _ in arrays for i, x in zip(index.tolist(), xs, strict=True)} == first
        other = BrandLoader(data_set, 7, sampler=BrandSampler(data_set, seed=4))
        assert count_other(crops_of(other), first) > 20  # epoch 0


def test_a_transform_gets_the_same_crop(photos_set: Path) -> None:
    with served(photos_set, fields=FIELDS, decode={"image": CROP}) as data_set:
        plain = crops_of(BrandLoader(data_set, 7, sampler=_sampler(data_set)))
        data_set.transform = {"image": torch.from_numpy}
        assert crops_of(BrandLoader(data_set, 7, sampler=_sampler(data_set))) == plain


def test_a_mixture_gives_a_sample_the_same_crop_in_both_loaders(photos_set: Path, fashion_set: Path) -> None:
    with (
        served(photos_set, fields=("index", "image", "key"), decode={"image": CROP}) as one,
        served(fashion_set, fields=("index", "image", "key"), decode={"image": CROP}) as other,
    ):
        mixture = Mixture({one: 0.5, other: 0.5}, samples=60)
        batches = list(BrandLoader(mixture, 6, sampler=BrandSampler(mixture, seed=1), num_workers=2))
        again = list(DataLoader(mixture, 6, sampler=BrandSampler(mixture, seed=1), num_workers=2))
        assert len(batches) == len(again) == 10
        assert all(equal(list(x), list(y)) for x, y in zip(batches, again, strict=True))


def test_samples_by_index_get_other_crops_each_time_and_those_of_the_seed(photos_set: Path, opened: Openings) -> None:
    """Without a BrandSampler: as torchvision's transforms do, by PyTorch's generator."""
    data_set = opened(photos_set, fields=FIELDS, decode={"image": CROP})
    torch.manual_seed(5)
    first, other = data_set[3][1], data_set[3][1]
    torch.manual_seed(5)
    assert np.array_equal(data_set[3][1], first)
    assert not np.array_equal(first, other)
    shuffled = BrandLoader(data_set, 7, sampler=SequentialSampler(data_set), num_workers=2)
    one, two = crops_of(shuffled), crops_of(shuffled)
    assert count_other(one, two) > 20
    plain = BrandLoader(data_set, 7, sampler=BrandSampler(data_set, seed=4, shuffle=False), num_workers=2)
    assert crops_of(plain) != crops_of(plain)  # two epochs
    plain.set_epoch(0)
    again = crops_of(plain)
    plain.set_epoch(0)
    assert crops_of(plain) == again


def test_elements_of_lists_get_crops_of_their_own(tmp_path: Path, png: bytes, opened: Openings) -> None:
    pack([{"images": [png, png]}], tmp_path / "x.brand", {"images": "list[image]"})
    data_set = opened(tmp_path / "x.brand", fields=("images",), decode={"images": CROP})
    one, two = next(iter(DataLoader(data_set, None, sampler=_sampler(data_set))))[0]
    assert one.shape == two.shape == (16, 16, 3)
    assert not np.array_equal(one, two)


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def spoiled(tmp_path: Path, fashion: Path) -> Path:
    """Forty PNG files, of which two do not decode."""
    files = [path.read_bytes() for path in sorted((fashion / "test" / "8_bag").iterdir())[:40]]
    files = [file[:60] if number in (5, 23) else file for number, file in enumerate(files)]
    pack(
        ({"image": file, "label": number} for number, file in enumerate(files)),
        tmp_path / "spoiled.brand",
        {"image": "image", "label": "int"},
        chunk_size=8,
    )
    return tmp_path / "spoiled.brand"


@pytest.mark.parametrize("how", [CROP, DecodeImage(size=(9, 8))])
def test_a_damaged_image_is_named_or_replaced(spoiled: Path, how: DecodeImage) -> None:
    """The whole sample is replaced: image and label are those of the index."""
    with served(spoiled, fields=FIELDS, decode={"image": how}) as data_set:
        error = failure_of(BrandLoader(data_set, 40, sampler=_sampler(data_set)))
        assert isinstance(error, DecodeError)
        assert error.sample in (5, 23)
    with served(spoiled, fields=FIELDS, decode={"image": how}, on_error="skip") as data_set:
        ((index, images, labels),) = BrandLoader(data_set, 40, sampler=_sampler(data_set), num_workers=3)
        assert index.tolist() == labels.tolist()
        assert len(set(index.tolist())) == 38
        assert images.shape[0] == 40
        assert set(index.tolist()) == set(range(40)) - {5, 23}
        ((again, other, _),) = DataLoader(data_set, 40, sampler=_sampler(data_set))
        assert torch.equal(index, again)
        assert torch.equal(images, other)


# -- resuming ----------------------------------------------------------------------------------------------------------

BATCH, STEPS = 12, 50


def _run(path: Path, way: int, state: dict[str, Any] | None, most: int) -> tuple[list[dict[int, bytes]], Any]:
    """Train up to `most` steps from a state in one of four ways. Returns the crops of each step, and the new state."""
    with served(path, fields=FIELDS, decode={"image": CROP}) as data_set:
        ranks = 2 if way == 2 else 1
        samplers = [BrandSampler(data_set, seed=8, num_replicas=ranks, rank=rank) for rank in range(ranks)]
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(state)
        size = BATCH // ranks
        loaders: list[Any] = [BrandLoader(data_set, size, sampler=s, num_workers=1 + way) for s in samplers]
        if way == 3:
            loaders = [DataLoader(data_set, size, sampler=samplers[0], num_workers=2)]
        steps: list[dict[int, bytes]] = []
        batches = zip(*loaders, strict=True)
        while len(steps) < most and (batch := next(batches, None)) is not None:
            steps.append(crops_of(batch))
        after = samplers[0].state_dict(batches=len(steps), batch_size=size) if way == 3 else loaders[0].state_dict()
        del batches
        return steps, after


@places.EVERYWHERE
def test_a_run_that_stops_at_every_tenth_step_makes_the_same_batches(fashion_set: Path) -> None:
    """It goes on with other threads, ranks and workers, and another server."""
    whole, _ = _run(fashion_set, 0, None, STEPS)
    assert len(whole) == STEPS
    found: list[dict[int, bytes]] = []
    state: Any = None
    for stop in range(STEPS // 10):
        steps, state = _run(fashion_set, (1, 2, 3, 2, 0)[stop], state, 10)
        found += steps
    assert found == whole
