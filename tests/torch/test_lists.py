"""List fields in training: every element arrives, decoded, and batches hold lists as lists, whatever their lengths."""

from __future__ import annotations

import io
import itertools
import wave
from collections.abc import Callable, Iterable
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import brand
from brand import BrandDataset, BrandLoader, BrandSampler, DecodeAudio, DecodeImage, LengthBatchSampler, Mixture
from brand.errors import FormatError, SchemaError
from brand.node.setup.decoding import Prepared
from tests.torch.support import served

SCHEMA = {
    "images": "list[image]",
    "clips": "list[audio]",
    "captions": "list[str]",
    "boxes": "list[ndarray]",
    "tokens": "list[int]",
    "scores": "list[float]",
    "key": "str",
}


def png(width: int, height: int, shade: int) -> bytes:
    """A picture of one colour."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), (shade, 2 * shade, 3)).save(file, "PNG")
    return file.getvalue()


def wav(frames: int) -> bytes:
    """A silent clip at 8 kHz."""
    file = io.BytesIO()
    with wave.open(file, "wb") as clip:
        clip.setnchannels(1)
        clip.setsampwidth(2)
        clip.setframerate(8000)
        clip.writeframes(bytes(2 * frames))
    return file.getvalue()


def documents() -> list[dict[str, Any]]:
    """Documents with 0 to 5 images and five captions each: some lists have one length in all samples, some differ."""
    return [
        {
            "images": [png(4 + at, 5, 10 * number) for at in range(number % 6)],
            "clips": [wav(10 + at) for at in range(number % 3)],
            "captions": [f"caption {at} of {number}" for at in range(5)],
            "boxes": [np.full((at, 4), number, np.float32) for at in range(number % 4)],
            "tokens": list(range(number)),
            "scores": [number / 8, -0.5],
            "key": f"document/{number}",
        }
        for number in range(20)
    ]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documents as a data set."""
    target = tmp_path_factory.mktemp("lists") / "documents.brand"
    brand.pack(documents(), target, SCHEMA, chunk_size=6)
    return target


def loader(data: BrandDataset) -> Iterable[Any]:
    """Batches of threads."""
    return BrandLoader(data, batch_size=7)


def workers(data: BrandDataset) -> Iterable[Any]:
    """Batches of worker processes."""
    return DataLoader(data, batch_size=7, sampler=BrandSampler(data), num_workers=2)


def one_process(data: BrandDataset) -> Iterable[Any]:
    """Batches of the training process."""
    return DataLoader(data, batch_size=7, sampler=BrandSampler(data))


EVERY_WAY: list[Callable[[BrandDataset], Iterable[Any]]] = [loader, workers, one_process]


def arrived(data: BrandDataset, batches: Iterable[Any]) -> dict[str, dict[str, Any]]:
    """The values of an epoch, by key."""
    names = list(SCHEMA)
    found: dict[str, dict[str, Any]] = {}
    for batch in batches:
        columns = [batch[name] for name in names] if isinstance(batch, dict) else batch
        for values in zip(*columns, strict=True):
            sample = dict(zip(names, values, strict=True))
            assert sample["key"] not in found
            found[sample["key"]] = sample
    assert len(found) == len(data)
    return found


@pytest.mark.parametrize("batches", EVERY_WAY)
@pytest.mark.parametrize("fields", [None, tuple(SCHEMA)], ids=["dicts", "tuples"])
@pytest.mark.parametrize("decode", ["specs", True, False])
def test_every_element_arrives_in_its_list(
    path: Path, batches: Callable[[BrandDataset], Iterable[Any]], fields: Any, decode: Any
) -> None:
    """PyTorch would transpose lists of one length, and fail at lists of several: here they stay lists."""
    both: dict[str, DecodeImage | DecodeAudio] = {"images": DecodeImage(size=(8, 6)), "clips": DecodeAudio()}
    specs: Any = both if decode == "specs" else decode
    data = BrandDataset(path, fields=fields, decode=specs)
    found = arrived(data, batches(data))
    for given in documents():
        sample = found[given["key"]]
        for name in ("captions", "tokens", "scores"):
            assert type(sample[name]) is list
            assert sample[name] == given[name]
        assert all(map(torch.equal, sample["boxes"], map(torch.from_numpy, given["boxes"])))
        assert len(sample["boxes"]) == len(given["boxes"])
        pairs = list(zip(sample["images"], given["images"], strict=True))
        clips = list(zip(sample["clips"], given["clips"], strict=True))
        if decode == "specs":
            alone = DecodeImage(size=(8, 6))
            assert all(torch.equal(image, torch.from_numpy(alone(file))) for image, file in pairs)
            assert all(clip.shape == ((len(file) - 44) // 2,) for clip, file in clips)
        elif decode:
            assert all(image.tobytes() == Image.open(io.BytesIO(file)).tobytes() for image, file in pairs)
            assert all(clip.rate == 8000 for clip, _ in clips)
        else:
            assert all(image == file for image, file in (*pairs, *clips))


def test_random_access_gives_python_lists(path: Path) -> None:
    """Of one sample, by index: lists that can be changed, with decoded elements."""
    sample = BrandDataset(path, decode={"images": DecodeImage(shorter=4)})[11]
    assert sample["captions"] == [f"caption {at} of 11" for at in range(5)]
    assert [min(image.shape[:2]) for image in sample["images"]] == [4] * 5
    sample["captions"].append("one more")
    assert len(BrandDataset(path)[11]["captions"]) == 5


def test_a_transform_gets_the_list_and_may_return_a_tensor(path: Path) -> None:
    """One of the captions, and the mean picture: collated as any tensors and texts."""
    made: dict[str, Any] = {"images": lambda images: np.sum(images, axis=0), "captions": lambda texts: texts[-1]}
    decode = {"images": DecodeImage(size=(8, 8))}
    data = BrandDataset(path, fields=("images", "captions"), decode=decode, transform=made)
    for images, captions in BrandLoader(data, batch_size=5, sampler=BrandSampler(data, subset=np.arange(1, 6))):
        assert images.shape == (5, 8, 8, 3)
        assert all(text.startswith("caption 4 of") for text in captions)


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        ({"captions": DecodeImage()}, "'captions', which is no field of kind 'image'"),
        ({"images": DecodeAudio()}, "'images', which is no field of kind 'audio'"),
        ({"tokens": DecodeImage()}, "'tokens', which is no field of kind 'image'"),
    ],
)
def test_a_decode_spec_has_to_fit_the_elements(path: Path, decode: Any, message: str) -> None:
    """As for a field of one file."""
    with pytest.raises(SchemaError, match=message):
        BrandDataset(path, decode=decode)


@pytest.mark.parametrize("name", [name for name in SCHEMA if name != "key"])
def test_a_list_is_no_column(path: Path, name: str) -> None:
    """Columns are numbers, one a sample."""
    with pytest.raises(SchemaError, match=rf"field '{name}' \(list\[\w+\]\) is not stored as a column"):
        BrandDataset(path).column(name)


def test_an_element_that_does_not_decode_is_named_or_its_sample_replaced(tmp_path: Path) -> None:
    """The error says which element of which sample; `on_error="skip"` fetches another sample."""
    samples = [{"images": [png(4, 4, 1), b"no picture" if number == 3 else png(4, 4, 2)]} for number in range(8)]
    brand.pack(samples, tmp_path / "set", {"images": "list[image]"}, chunk_size=2)
    with pytest.raises(FormatError, match=r"element 1: Pillow cannot decode it.*sample 3|sample 3.*element 1"):
        BrandDataset(tmp_path / "set")[3]
    data = BrandDataset(tmp_path / "set", decode={"images": DecodeImage()}, on_error="skip")
    batches = list(BrandLoader(data, batch_size=4))
    found = list(itertools.chain.from_iterable(batch["index"].tolist() for batch in batches))
    assert len(found) == 8
    assert 3 not in found
    assert all(len(images) == 2 for batch in batches for images in batch["images"])


def test_a_server_that_decodes_leaves_lists_to_the_client(tmp_path: Path) -> None:
    """The server decodes the field of one image, the client that of several; the values are those of the files."""
    small = DecodeImage(size=(6, 8))
    samples = [
        {"image": png(9, 9, number), "images": [png(9, 9, number + at) for at in range(number % 3)]}
        for number in range(12)
    ]
    brand.pack(samples, tmp_path / "set", {"image": "image", "images": "list[image]"}, chunk_size=4)
    more: dict[str, Any] = {"decode": {"image": small, "images": small}, "fields": ("index", "image", "images")}
    with served(tmp_path / "set", memory=1.0, prepared=Prepared("1MB", 2), **more) as data:
        for _ in range(2):
            for batch in BrandLoader(data, batch_size=5):
                for index, image, images in zip(batch[0].tolist(), *batch[1:], strict=True):
                    assert np.array_equal(image, small(samples[index]["image"]))
                    expected = [small(file) for file in samples[index]["images"]]
                    assert len(images) == len(expected)
                    assert all(map(np.array_equal, images, expected))
        assert data.stats()["decoding"]["decoded"] == len(samples)


def pairs_of(path: Path) -> Mixture:
    """One view of the data set for each of the five captions, mixed: the recipe of docs/guides/image-text.md."""
    views = [
        BrandDataset(path, fields=("key", "captions"), transform={"captions": itemgetter(at)}, decode=False)
        for at in range(5)
    ]
    return Mixture(dict.fromkeys(views, 1))


ALL_PAIRS = sorted((sample["key"], caption) for sample in documents() for caption in sample["captions"])


def pairs_in(batches: Iterable[Any]) -> list[tuple[str, str]]:
    """The pairs of some batches."""
    return [pair for keys, captions in batches for pair in zip(keys, captions, strict=True)]


def test_every_pair_of_image_and_caption_once_an_epoch(path: Path) -> None:
    """Two epochs in two orders; a state in the middle of the second continues with the others."""
    loader = BrandLoader(pairs_of(path), batch_size=7)
    first, second = pairs_in(loader), list[tuple[str, str]]()
    assert sorted(first) == ALL_PAIRS
    for batch in itertools.islice(loader, 6):
        second += pairs_in([batch])
    state = loader.state_dict()
    again = BrandLoader(pairs_of(path), batch_size=7)
    again.load_state_dict(state)
    second += pairs_in(again)
    assert sorted(second) == ALL_PAIRS
    assert first != second
    assert [key for key, _ in first[:5]] != [first[0][0]] * 5


def test_ranks_divide_the_pairs(path: Path) -> None:
    """Each pair is on one rank."""
    found = []
    for rank in range(2):
        pairs = pairs_of(path)
        found += pairs_in(BrandLoader(pairs, batch_size=7, sampler=BrandSampler(pairs, num_replicas=2, rank=rank)))
    assert sorted(found) == ALL_PAIRS


def test_batches_of_similar_documents(path: Path) -> None:
    """A batch sampler by an `int` field works with lists beside it."""
    with pytest.raises(SchemaError, match="not stored as a column"):
        LengthBatchSampler(BrandDataset(path), "tokens", batch_size=4)
