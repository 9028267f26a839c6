"""What a sample looks like: dict or tuple, decoded or not, transformed as a whole or field by field."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from torch.utils.data import default_collate

from brand import pack
from brand.errors import DecodeError
from brand.formats.audio import Waveform
from brand.torch import BrandDataset


def to_tensor(image: Image.Image) -> torch.Tensor:
    """What torchvision's ToTensor does to an RGB picture."""
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255


def each(data_set: BrandDataset) -> list[Any]:
    """All samples, one by one."""
    return [data_set[index] for index in range(len(data_set))]


def test_fields_are_a_tuple_in_the_order_asked_for(photos_set: Path) -> None:
    """As `ImageFolder` gives (image, label), or any other order, with index and key."""
    whole = BrandDataset(photos_set, decode=False)[7]
    for fields in (("image", "label"), ("label", "image"), ("key", "index", "label"), ("index",), ("image", "image")):
        assert BrandDataset(photos_set, decode=False, fields=fields)[7] == tuple(whole[name] for name in fields)
    assert BrandDataset(photos_set, decode=False, fields=["label"])[7] == (whole["label"],)


def test_without_fields_a_sample_is_a_dict_of_all(photos_set: Path) -> None:
    """With its index and key."""
    assert set(BrandDataset(photos_set)[0]) == {"image", "label", "key", "index"}


def test_no_fields_is_an_empty_tuple(photos_set: Path) -> None:
    """An edge that does not fail."""
    assert BrandDataset(photos_set, fields=())[0] == ()


@pytest.mark.slow
def test_every_photo_is_what_image_folder_loads(photos: Path, photos_set: Path) -> None:
    """RGB as `Image.open(file).convert("RGB")`: same pixels, size and mode, for PNG, JPEG, WebP, L, LA, P, RGBA."""
    modes = set()
    for image, key in each(BrandDataset(photos_set, fields=("image", "key"))):
        with (photos / key).open("rb") as file, Image.open(file) as source, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's own, about palettes with transparency
            modes.add(source.mode)
            expected = source.convert("RGB")
        assert type(image) is Image.Image
        assert image.mode == "RGB"
        assert image.size == expected.size
        assert np.array_equal(np.asarray(image), np.asarray(expected)), key
    assert modes >= {"L", "LA", "P", "RGB", "RGBA"}


def test_images_are_the_callers_own(photos_set: Path) -> None:
    """Loaded, not lazy; changing one changes no other."""
    images = BrandDataset(photos_set, fields=("image",))
    first, second = (sample[0] for sample in images.__getitems__([2, 2]))
    first.paste((255, 0, 0), (0, 0, *first.size))
    assert first.tobytes() != second.tobytes()
    assert images[2][0].tobytes() == second.tobytes()


@pytest.mark.slow
def test_reading_gives_no_warnings(photos_set: Path, clips_set: Path) -> None:
    """Not even for palettes with transparency in bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for path in (photos_set, clips_set):
            assert len(each(BrandDataset(path))) > 30


def test_clips_are_waveforms(clips: Path, clips_set: Path) -> None:
    """float32 of shape (channels, frames) and the rate, as libsndfile reads the file."""
    rates = set()
    for sample in each(BrandDataset(clips_set)):
        audio = sample["audio"]
        expected, rate = soundfile.read(clips / sample["key"], dtype="float32", always_2d=True)
        assert isinstance(audio, Waveform)
        assert audio.rate == rate
        assert audio.samples.dtype == np.float32
        assert audio.samples.shape == expected.T.shape
        assert np.array_equal(audio.samples, expected.T)
        assert audio.samples.flags.c_contiguous
        rates.add(rate)
    assert rates == {8000, 44100}


def test_decode_false_gives_the_files_bytes(photos: Path, photos_set: Path, clips: Path, clips_set: Path) -> None:
    """Bit for bit."""
    for root, path, field in ((photos, photos_set, "image"), (clips, clips_set, "audio")):
        for data, key in each(BrandDataset(path, decode=False, fields=(field, "key"))):
            assert data == (root / key).read_bytes()


def test_a_transform_gets_the_whole_sample(photos_set: Path) -> None:
    """The dict, or the tuple of fields; what it returns is the sample."""
    assert BrandDataset(photos_set, transform=lambda s: sorted(s))[0] == ["image", "index", "key", "label"]
    pair = BrandDataset(photos_set, fields=("label", "key"), transform=lambda s: {"t": s})
    assert pair[3] == {"t": BrandDataset(photos_set, fields=("label", "key"))[3]}
    assert BrandDataset(photos_set, transform=lambda _: None)[0] is None


def test_a_dict_of_transforms_works_field_by_field(photos_set: Path) -> None:
    """Each gets its field's value; other fields stay."""
    changed = BrandDataset(photos_set, transform={"image": lambda i: i.size, "index": lambda i: -i})[5]
    plain = BrandDataset(photos_set)[5]
    assert changed == {**plain, "image": plain["image"].size, "index": -5}
    chosen = BrandDataset(photos_set, fields=("image", "label"), transform={"image": lambda i: i.mode})[5]
    assert chosen == ("RGB", plain["label"])


def test_an_error_in_a_transform_is_the_users_own(photos_set: Path) -> None:
    """It comes through as it is, also a ValueError, which is no damaged sample."""

    def broken(_: Any) -> None:
        raise ValueError("theirs")

    for transform in (broken, {"image": broken}):
        with pytest.raises(ValueError, match=r"^theirs$") as caught:
            BrandDataset(photos_set, transform=transform)[0]
        assert type(caught.value) is ValueError


def test_the_same_transform_is_called_once_a_sample(photos_set: Path) -> None:
    """Random augmentation draws anew for each sample of a batch, also for one that is asked for twice."""
    calls: list[int] = []

    def count(sample: tuple[int]) -> int:
        calls.append(sample[0])
        return len(calls)

    data_set = BrandDataset(photos_set, fields=("index",), transform=count)
    assert data_set.__getitems__([4, 4, 2]) == [1, 2, 3]
    assert calls == [4, 4, 2]


def test_default_collate_makes_batches(fashion_set: Path) -> None:
    """(image tensor, label) becomes two tensors; dicts with keys and indices become dicts of tensors and lists."""
    data_set = BrandDataset(fashion_set, fields=("image", "label"), transform={"image": to_tensor})
    images, labels = default_collate(data_set.__getitems__([0, 599, 300]))
    assert images.shape == (3, 3, 28, 28)
    assert labels.tolist() == [0, 9, 5]
    assert labels.dtype == torch.int64
    batch = default_collate(BrandDataset(fashion_set, transform={"image": to_tensor}).__getitems__([1, 2]))
    assert batch["index"].tolist() == [1, 2]
    assert len(batch["key"]) == 2


def test_a_file_that_does_not_decode_is_named(photos: Path, tmp_path: Path) -> None:
    """Its bytes are as they were written: the error names chunk and sample and says how to get the bytes."""
    jpeg = (photos / "outdoors" / "rocket.jpg").read_bytes()
    rows = [{"image": jpeg if number != 6 else jpeg[: len(jpeg) // 2]} for number in range(9)]
    pack(rows, tmp_path / "set", {"image": "image"}, chunk_size=4, jobs=1)
    data_set = BrandDataset(tmp_path / "set")
    with pytest.raises(DecodeError, match=r"chunks.*chunk \d, sample 6.*decode=False") as caught:
        data_set.__getitems__([5, 6, 7])
    assert caught.value.sample == 6
    assert BrandDataset(tmp_path / "set", decode=False)[6]["image"] == rows[6]["image"]
    assert data_set[5]["image"].size == (640, 427)


def test_only_the_fields_asked_for_are_decoded(tmp_path: Path) -> None:
    """A broken image does not disturb who wants the labels."""
    pack([{"image": b"no image", "label": 3}], tmp_path / "set", {"image": "image", "label": "int"}, jobs=1)
    assert BrandDataset(tmp_path / "set", fields=("label",))[0] == (3,)
    with pytest.raises(DecodeError):
        BrandDataset(tmp_path / "set", fields=("image",))[0]
