"""An `IterableDataset` around a loader: exact if one process reads it for itself, otherwise refused with a cure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from brand import ArrayLoader, BrandDataset, BrandLoader, BrandSampler, pack
from brand.errors import UsageError

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(600)]

SAMPLES = 600


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each sample is its number."""
    path = tmp_path_factory.mktemp("stream") / "numbers.brand"
    pack([{"label": n} for n in range(SAMPLES)], path, {"label": "int"}, chunk_size=32, jobs=1)
    return path


class Stream(IterableDataset[Any]):
    """The samples that a function yields, in the shape that users of streams write."""

    def __init__(self, make: Callable[[], Iterable[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        yield from self._make()


def positions(path: Path, **options: Any) -> BrandLoader:
    """Batches of one sample's index for each sample."""
    data = BrandDataset(path, transform=index_of)
    if "replicas" in options:
        options["sampler"] = BrandSampler(data, num_replicas=options.pop("replicas"), rank=0)
    return BrandLoader(data, 32, num_workers=1, **options)


def index_of(sample: dict[str, Any]) -> int:
    return int(sample["label"])


def seen(batches: Iterable[Any]) -> list[int]:
    return sorted(int(each) for batch in batches for each in batch)


def bare(path: Path) -> Iterator[int]:
    data = BrandDataset(path, transform=index_of)
    for number in BrandSampler(data):
        yield data[number]


KINDS: dict[str, Callable[[Path], Iterable[Any]]] = {
    "BrandLoader": positions,
    "BrandLoader, random access": lambda path: positions(path, sampler=range(SAMPLES)),
    "ArrayLoader": lambda path: ArrayLoader(BrandDataset(path, transform=index_of), 32, num_workers=1),
    "BrandSampler": lambda path: ([each] for each in bare(path)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_several_workers_are_refused_and_one_reads_each_sample_once(numbers: Path, kind: str) -> None:
    stream = Stream(lambda: KINDS[kind](numbers))
    with pytest.raises(UsageError, match=r"trained 2 times.*num_workers=0 or 1"):
        seen(DataLoader(stream, batch_size=None, num_workers=2))
    assert [seen(DataLoader(stream, batch_size=None, num_workers=n)) for n in (0, 1)] == 2 * [[*range(SAMPLES)]]


def test_several_workers_may_have_shares_of_their_own(numbers: Path) -> None:
    """By rank and number of ranks; both workers of one rank must not have one share."""

    def share(rank: Callable[[int], int]) -> Stream:
        def make() -> BrandLoader:
            data, worker = BrandDataset(numbers, transform=index_of), get_worker_info()
            assert worker is not None
            sampler = BrandSampler(data, num_replicas=2, rank=rank(worker.id))
            return BrandLoader(data, 32, sampler=sampler, num_workers=1)

        return Stream(make)

    assert seen(DataLoader(share(lambda worker: worker), batch_size=None, num_workers=2)) == [*range(SAMPLES)]
    with pytest.raises(UsageError, match="trained 2 times"):
        seen(DataLoader(share(lambda _: 1), batch_size=None, num_workers=2))


@pytest.mark.parametrize("how", ["dispatch", "shard", "split", "dispatch in a worker"])
def test_a_stream_that_is_divided_again_is_refused_and_the_cure_is_exact(
    numbers: Path, tmp_path: Path, how: str
) -> None:
    """Two processes of Accelerate, or of `datasets.distributed`."""
    refused, cured = job(numbers, tmp_path, how, "as it is"), job(numbers, tmp_path, how, "cured")
    assert "num_replicas=1, rank=0" in refused[0]["error"]
    both = Counter(index for rank in cured for index in rank["seen"])
    assert set(both) == set(range(SAMPLES))
    assert both.total() - SAMPLES <= (40 if how == "shard" else 0)  # Accelerate fills up the last batches


def job(path: Path, folder: Path, how: str, case: str) -> list[dict[str, Any]]:
    """The results of two ranks: the samples seen, or an error."""
    target = folder / case
    target.mkdir()
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    program = ["-m", "tests.frameworks.test_iterable", str(path), str(target), how, case]
    subprocess.run([sys.executable, *launch, *program], env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=300)
    return [json.loads(file.read_text()) for file in sorted(target.glob("*.json"))]


def main(path: str, target: str, how: str, case: str) -> None:
    """One rank."""
    rank = int(os.environ["RANK"])
    options = {"replicas": 1} if case == "cured" else {}

    def singles() -> Iterator[int]:
        for batch in positions(Path(path), **options):
            yield from batch.tolist()

    found: dict[str, Any] = {"seen": []}
    try:
        found["seen"] = list(_read(how, singles, rank))
    except (UsageError, RuntimeError) as error:
        found["error"] = str(error)
    (Path(target) / f"{rank}.json").write_text(json.dumps(found))
    os._exit(0)


def _read(how: str, singles: Callable[[], Iterator[int]], rank: int) -> Iterator[int]:
    if how == "split":
        import datasets
        import torch
        from datasets.distributed import split_dataset_by_node

        torch.distributed.init_process_group("gloo")
        stream = datasets.IterableDataset.from_generator(lambda: ({"index": each} for each in singles()))
        for sample in split_dataset_by_node(stream, rank, 2):
            yield sample["index"]
        return
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches="dispatch" in how))
    loader = DataLoader(Stream(singles), 32, num_workers=int("worker" in how))
    for batch in accelerator.prepare(loader):
        yield from batch.tolist()


if __name__ == "__main__":
    main(*sys.argv[1:])
