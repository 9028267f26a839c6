"""An ordinary DataLoader: the same batches for any number of workers and any way to start them."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, RandomSampler, Subset, WeightedRandomSampler, random_split

from brand.errors import ChecksumError, MissingFileError
from brand.storage.dataset.dataset import StoredDataSet
from brand.torch import BrandDataset
from tests import places
from tests.torch.support import MANY_WORKERS, failure_of

pytestmark = places.EVERYWHERE


def pixels(image: Image.Image) -> torch.Tensor:
    """The picture as a tensor (a function of the module, so that spawned workers find it)."""
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)


class PictureFolder(Dataset[tuple[torch.Tensor, int]]):
    """ImageFolder as torchvision documents it."""

    def __init__(self, root: Path) -> None:
        classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        self.samples = [
            (os.path.join(folder, name), label)
            for label, top in enumerate(classes)
            for folder, _, names in sorted(os.walk(root / top))
            for name in sorted(names)
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[index]
        with Image.open(path) as image:
            return pixels(image.convert("RGB")), label


@pytest.fixture(scope="module")
def pictures(fashion_set: Path) -> BrandDataset:
    """(pixels, label), as the folder gives it."""
    return BrandDataset(fashion_set, fields=("image", "label"), transform={"image": pixels})


@pytest.fixture(scope="module")
def indices(fashion_set: Path) -> BrandDataset:
    """(index, label)."""
    return BrandDataset(fashion_set, fields=("index", "label"))


def batches(data_set: Dataset[Any], **more: Any) -> list[list[torch.Tensor]]:
    """All batches of an epoch, shuffled with a seed unless a sampler is given."""
    shuffle: dict[str, Any] = (
        {} if "sampler" in more else {"shuffle": True, "generator": torch.Generator().manual_seed(11)}
    )
    given: dict[str, Any] = {"batch_size": 50} | shuffle | more
    return list(DataLoader(data_set, **given))


def equal(some: list[list[torch.Tensor]], others: list[list[torch.Tensor]]) -> bool:
    """To the bit."""
    return len(some) == len(others) and all(
        torch.equal(a, b) for one, other in zip(some, others, strict=True) for a, b in zip(one, other, strict=True)
    )


@pytest.fixture(scope="module")
def folders_batches(fashion: Path) -> list[list[torch.Tensor]]:
    """The batches that the folder of PNG files gives, shuffled with the same seed."""
    return batches(PictureFolder(fashion / "test"))


def test_the_batches_are_those_of_the_picture_folder(
    pictures: BrandDataset, folders_batches: list[list[torch.Tensor]]
) -> None:
    """`shuffle=True` with the same generator: the same pixels and labels in the same order, to the bit."""
    assert equal(batches(pictures), folders_batches)


@pytest.mark.slow
@pytest.mark.parametrize(("context", "workers"), [("fork", 2), ("spawn", 1), ("forkserver", 2)])
def test_workers_give_the_same_batches(
    pictures: BrandDataset, folders_batches: list[list[torch.Tensor]], context: str, workers: int
) -> None:
    """Under fork, spawn and forkserver, with the data set used in the parent before."""
    assert len(pictures.__getitems__([0, 1])) == 2
    found = batches(pictures, num_workers=workers, multiprocessing_context=context)
    assert equal(found, folders_batches)


@pytest.mark.slow
@MANY_WORKERS
def test_eight_workers_give_the_same_batches(pictures: BrandDataset, folders_batches: list[list[torch.Tensor]]) -> None:
    """More workers than cores."""
    assert equal(batches(pictures, num_workers=8, multiprocessing_context="fork"), folders_batches)


@pytest.mark.slow
def test_persistent_workers_give_every_epoch_whole(indices: BrandDataset) -> None:
    """Three epochs of the same workers, each a permutation of its own, as without workers."""
    shuffled: dict[str, Any] = {"shuffle": True, "batch_size": 64}
    kept = DataLoader(
        indices, num_workers=2, persistent_workers=True, generator=torch.Generator().manual_seed(3), **shuffled
    )
    plain = DataLoader(indices, generator=torch.Generator().manual_seed(3), **shuffled)
    orders = []
    for _ in range(3):
        found = torch.cat([index for index, _ in kept])
        assert sorted(found.tolist()) == list(range(600))
        orders.append(found.tolist())
        # A DataLoader with workers draws one number more from its generator; only the first epoch is comparable.
    assert orders[0] == torch.cat([index for index, _ in plain]).tolist()
    assert orders[0] != orders[1] != orders[2]


@pytest.mark.slow
def test_an_epoch_may_be_left_early(indices: BrandDataset) -> None:
    """`break` in the loop, then a whole epoch."""
    loader = DataLoader(indices, batch_size=10, num_workers=2, persistent_workers=True)
    for _ in loader:
        break
    assert torch.cat([index for index, _ in loader]).tolist() == list(range(600))


def test_a_subset_is_what_it_names(indices: BrandDataset) -> None:
    """Subset hands whole batches on (`__getitems__`) and single indices."""
    subset = Subset(indices, [5, 599, 5, 0])
    assert [index for index, _ in (subset[i] for i in range(4))] == [5, 599, 5, 0]
    (batch,) = DataLoader(subset, batch_size=4)
    assert batch[0].tolist() == [5, 599, 5, 0]


def test_a_random_split_is_a_partition(indices: BrandDataset) -> None:
    """Parts are disjoint, together all, and reproducible."""
    parts = random_split(indices, [0.7, 0.2, 0.1], torch.Generator().manual_seed(0))
    seen = [sorted(i for batch, _ in DataLoader(part, batch_size=32) for i in batch.tolist()) for part in parts]
    assert [len(part) for part in seen] == [420, 120, 60]
    assert sorted(i for part in seen for i in part) == list(range(600))
    assert seen == [sorted(part.indices) for part in parts]


def test_weighted_sampling_with_replacement_gives_duplicates(indices: BrandDataset) -> None:
    """The same sample several times in a batch; weights may come from the label column."""
    weights = (indices.column("label") == 3).astype(float).tolist()
    sampler = WeightedRandomSampler(weights, 500, replacement=True, generator=torch.Generator().manual_seed(1))
    found = batches(indices, sampler=sampler, batch_size=250)
    assert {label for _, labels in found for label in labels.tolist()} == {3}
    assert all(len(set(index.tolist())) < len(index) for index, _ in found)
    again = WeightedRandomSampler(weights, 500, replacement=True, generator=torch.Generator().manual_seed(1))
    assert [i for index, _ in found for i in index.tolist()] == list(again)


def test_a_random_sampler_may_ask_for_more_than_there_is(indices: BrandDataset) -> None:
    """`num_samples` beyond the length."""
    found = batches(indices, sampler=RandomSampler(indices, num_samples=700), batch_size=700)
    assert len(found[0][0]) == 700


def test_a_sampler_of_batches_is_one_read_a_batch(indices: BrandDataset) -> None:
    """`batch_size=None` with a sampler of lists asks for whole batches by `ds[list]`, which a list has not either."""
    loader = DataLoader(indices, batch_sampler=[[1, 2], [599], [3, 3, 3]])
    assert [index.tolist() for index, _ in loader] == [[1, 2], [599], [3, 3, 3]]
    alone = DataLoader(indices, batch_size=None, sampler=[4, 2])
    assert [index for index, _ in alone] == [4, 2]


@pytest.fixture
def damaged(fashion_set: Path, tmp_path: Path) -> tuple[Path, int, int]:
    """A copy with one byte changed; its path, and chunk and sample that are hit."""
    target = tmp_path / "damaged.brand"
    shutil.copytree(fashion_set, target)
    chunk = target / "chunks" / "00000007.brand"
    data = bytearray(chunk.read_bytes())
    data[-1] ^= 1
    chunk.write_bytes(data)
    return target, 7, int(StoredDataSet(target).rows(0, 600)["index"][7 * 16 + 15])


def test_a_damaged_sample_is_named(damaged: tuple[Path, int, int]) -> None:
    """File, chunk and sample, alone and in a batch; all others are read."""
    path, chunk, sample = damaged
    data_set = BrandDataset(path, decode=False)
    for read in (lambda: data_set[sample], lambda: data_set.__getitems__([0, sample, 1])):
        with pytest.raises(ChecksumError, match=rf"00000007\.brand, chunk 7, sample {sample}") as caught:
            read()
        assert (caught.value.chunk, caught.value.sample) == (chunk, sample)
    others = [i for i in range(600) if i != sample]
    assert [s["index"] for s in data_set.__getitems__(others)] == others


@pytest.mark.slow
def test_a_damaged_sample_is_named_out_of_a_worker(damaged: tuple[Path, int, int]) -> None:
    """The message crosses the process border whole (PyTorch makes it a RuntimeError if it cannot rebuild the class).

    It is in the last batch: a spawned worker that ends while it still sends tensors may abort (before Python 3.14).
    """
    path, _, sample = damaged
    loader = DataLoader(
        BrandDataset(path, fields=("index", "label")),
        batch_size=50,
        sampler=[*[index for index in range(101) if index != sample][:100], sample],
        num_workers=2,
        multiprocessing_context="spawn",
    )
    error = failure_of(loader)
    assert isinstance(error, ChecksumError | RuntimeError)
    assert re.search(rf"ChecksumError: .*00000007\.brand, chunk 7, sample {sample}", str(error))


@pytest.mark.slow
def test_a_missing_chunk_is_named_out_of_a_worker(fashion_set: Path, tmp_path: Path) -> None:
    """A file that was not copied."""
    target = tmp_path / "set"
    shutil.copytree(fashion_set, target)
    (target / "chunks" / "00000003.brand").unlink()
    loader = DataLoader(BrandDataset(target, fields=("label",)), batch_size=600, num_workers=1)
    error = failure_of(loader)
    assert isinstance(error, MissingFileError | RuntimeError)
    assert re.search(r"MissingFileError: .*00000003\.brand, chunk 3", str(error))
