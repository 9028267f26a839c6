"""`BrandDataset(decode=...)`: fields come prepared, however they are read, and before any transform."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from brand import BrandLoader, BrandSampler, DecodeAudio, DecodeImage
from brand.chunker import convert_audio, convert_images
from brand.errors import SchemaError, UsageError
from brand.node.setup.decoding import Prepared
from brand.torch import BrandDataset
from tests.support import options
from tests.torch.support import MANY_WORKERS, served

SMALL = DecodeImage(size=(16, 24))


@pytest.fixture(scope="module")
def pictures(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photos that ship with the repository."""
    path = tmp_path_factory.mktemp("sets") / "photos.brand"
    convert_images(photos, path, options(8))
    return path


def pixels_of(path: Path) -> dict[int, np.ndarray[Any, np.dtype[np.uint8]]]:
    """What the preparation makes of each file, by index."""
    files = BrandDataset(path, fields=("index", "image"), decode=False)
    return {index: SMALL(data) for index, data in (files[i] for i in range(len(files)))}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [0, 2, -1])
@pytest.mark.parametrize("prepared", [None, Prepared("1MB", 2)])
@MANY_WORKERS
def test_batches_are_of_prepared_samples(pictures: Path, kind: int, prepared: Prepared | None) -> None:
    """Drawn by a `DataLoader` and a `BrandLoader`, and read exactly: the same values, as batches of one shape.

    The server prepares each sample once, or the client prepares it.
    """
    expected = pixels_of(pictures)
    more: dict[str, Any] = {"fields": ("index", "image"), "decode": {"image": SMALL}}
    with served(pictures, memory=1.0, prepared=prepared, **more) as data_set:
        if kind < 0:
            loader: Any = BrandLoader(data_set, 6)
        else:
            loader = DataLoader(data_set, 6, sampler=BrandSampler(data_set), num_workers=kind)
        for _ in range(2):
            found = dict[int, Any]()
            for indices, images in loader:
                assert images.dtype == torch.uint8
                assert images.shape == (len(indices), 16, 24, 3)
                found |= dict(zip(indices.tolist(), images.numpy(), strict=True))
            assert found.keys() == expected.keys()
            assert all(np.array_equal(found[index], expected[index]) for index in expected)
        assert np.array_equal(data_set[3][1], expected[3])
        facts = data_set.stats()["decoding"]
        assert (None if facts is None else (facts["decoded"], facts["fetched_encoded"])) == (
            prepared and (len(expected), 0)
        )


def test_transforms_come_after(pictures: Path) -> None:
    """Of the field, and of the whole sample."""
    by_field = BrandDataset(pictures, fields=("image",), decode={"image": SMALL}, transform={"image": np.shape})
    assert by_field[0] == ((16, 24, 3),)
    whole = BrandDataset(pictures, fields=("image",), decode={"image": SMALL}, transform=lambda sample: sample[0].shape)
    assert whole[0] == (16, 24, 3)


def test_clips(clips: Path, tmp_path: Path) -> None:
    """Clips are arrays of one rate instead of waveforms."""
    convert_audio(clips, tmp_path / "set", options(8), transcripts=clips / "transcripts.tsv")
    plain, prepared = (
        BrandDataset(tmp_path / "set", fields=("audio",), decode=prepare)
        for prepare in (True, {"audio": DecodeAudio(rate=16_000)})
    )
    for index in range(len(plain)):
        wave, samples = plain[index][0], prepared[index][0]
        assert samples.dtype == np.float32
        assert abs(len(samples) - wave.samples.shape[1] * 16_000 / wave.rate) <= 1


@pytest.mark.parametrize(
    ("prepare", "more", "error", "why"),
    [
        (
            {"image": DecodeAudio()},
            {},
            SchemaError,
            "'image', which is no field of kind 'audio'; there are image: image",
        ),
        ({"picture": SMALL}, {}, SchemaError, "'picture', which is no field of kind 'image'"),
        ({"label": SMALL}, {}, SchemaError, "'label', which is no field of kind 'image'"),
        ({"image": SMALL}, {"fields": ("label",)}, SchemaError, "'image', which is not among the fields label"),
        ("image", {}, UsageError, "decode=.image.: give True, False, or a dict such as"),
        ({"image": np.asarray}, {}, UsageError, r"DecodeMask\(...\) or DecodeAudio\(...\)"),
    ],
)
def test_what_cannot_be_prepared_is_refused(
    pictures: Path, prepare: Any, more: dict[str, Any], error: type[Exception], why: str
) -> None:
    """When the data set is opened."""
    with pytest.raises(error, match=why):
        BrandDataset(pictures, decode=prepare, **more)
