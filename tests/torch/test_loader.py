"""`BrandLoader` gives what a `DataLoader` without workers gives, batch for batch, and needs no more than it says."""

from __future__ import annotations

import gc
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler

from brand import pack
from brand.errors import UsageError
from brand.formats.audio import Waveform
from brand.testing.node import running_server
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from brand.torch.loader import iteration, timing
from brand.torch.loader.timing import NAMES, Stages
from tests import places
from tests.support import wait_until
from tests.torch.support import (
    Openings,
    equal,
    indices_of,
    loader_threads,
    make_samples,
    planned,
    records,
    records_of,
    served,
)

pytestmark = places.EVERYWHERE

COUNT = 75


def gone() -> None:
    """Wait until no thread of a loader is left; pools end when they are collected."""

    def ended() -> bool:
        gc.collect()
        return not loader_threads()

    wait_until(ended, "threads of a loader end")


def pixels(image: Image.Image) -> torch.Tensor:
    """A picture as a tensor."""
    return torch.from_numpy(np.asarray(image.resize((8, 8))).copy())


def pair(number: int) -> torch.Tensor:
    """A number as a tensor."""
    return torch.tensor([number, number + 1])


def loudness(wave: Waveform) -> float:
    """A clip as a number."""
    return float(np.abs(wave.samples).mean())


def with_length(sample: dict[str, Any]) -> dict[str, Any]:
    """Another sample."""
    return {**sample, "length": len(sample["data"]), "half": sample["number"] / 2}


def fail(loader: Any, error: BaseException) -> None:
    """A training loop that fails at the first batch."""
    for _ in loader:
        raise error


def widest(samples: list[Any]) -> tuple[int, list[Any]]:
    """A collate function."""
    return max(len(sample["data"]) for sample in samples), [sample["key"] for sample in samples]


def both(data_set: BrandDataset, batch: int, **more: Any) -> tuple[list[Any], list[Any]]:
    """Two epochs of a `BrandLoader` and of a `DataLoader`."""
    loaders = [make(data_set, batch, sampler=BrandSampler(data_set), **more) for make in (BrandLoader, DataLoader)]
    ours, theirs = ([batch for _ in range(2) for batch in loader] for loader in loaders)
    assert len(loaders[0]) == len(loaders[1])
    return ours, theirs


# -- the same batches ------------------------------------------------------------------------------------------------


@places.turns("memory")
@pytest.mark.slow
@pytest.mark.parametrize("memory", [1500, 0.3, 1.0])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch", [1, 7, 16, 17, 100])
def test_batches_of_samples(small: Path, batch: int, memory: Any, *, drop_last: bool) -> None:
    """Dicts of all fields, partly from memory and partly read exactly; the last batch short or left out."""
    with served(small, memory=memory, fields=None) as data_set:
        ours, theirs = both(data_set, batch, drop_last=drop_last)
        assert equal(ours, theirs)
        assert sum(len(b["key"]) for b in ours) == 2 * (COUNT // batch * batch if drop_last else COUNT)


@pytest.mark.slow
@pytest.mark.parametrize("transform", [None, {"number": float}])
@pytest.mark.parametrize("fields", [("number",), ("index", "number"), ("number", "index")])
def test_batches_of_tuples(small: Path, fields: tuple[str, ...], transform: Any) -> None:
    """Any numbers in any order."""
    with served(small, fields=fields, transform=transform) as data_set:
        assert equal(*both(data_set, 8))


def test_a_field_that_is_asked_for_twice(small: Path) -> None:
    """As `ds[0]` and a `DataLoader` give it."""
    with served(small, fields=("number", "index", "number")) as data_set:
        assert equal(*both(data_set, 8))


@pytest.mark.parametrize("transform", [None, {"index": str}])
@pytest.mark.parametrize("fields", [("data", "index"), ("key", "index", "data"), ("index", "key")])
def test_batches_of_tuples_with_strings(small: Path, fields: tuple[str, ...], transform: Any) -> None:
    """Which a default collate hands on as they are."""
    with served(small, fields=fields, transform=transform) as data_set:
        assert equal(*both(data_set, 8))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"transform": with_length},
        {"transform": {"data": len, "number": pair}},
        {"transform": {"data": len}, "fields": ("data", "number", "index")},
        {"transform": lambda pair: pair[::-1], "fields": ("index", "number")},
        {"collate_fn": widest},
        {"collate_fn": list, "transform": with_length},
    ],
)
def test_batches_of_transformed_samples(small: Path, options: dict[str, Any]) -> None:
    """Functions of samples and of fields, and other ways to put a batch together."""
    collate = {name: options[name] for name in options if name == "collate_fn"}
    rest = {name: options[name] for name in options if name != "collate_fn"}
    with served(small, **({"fields": None} | rest)) as data_set:
        assert equal(*both(data_set, 20, **collate))


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_batches_of_all_codecs(tmp_path: Path, png: bytes, clips: Path, compression: Any) -> None:
    """Each kind of field, compressed (with a dictionary) and not."""
    schema = {
        "int": "int",
        "float": "float",
        "str": "str",
        "bytes": "bytes",
        "json": "json",
        "array": "ndarray",
        "image": "image",
        "audio": "audio",
    }
    clip = min(clips.rglob("*.*"), key=lambda path: (path.suffix == ".tsv", path.stat().st_size)).read_bytes()
    samples = [
        {
            "int": (-1) ** n * n**9,
            "float": n / 7 if n else float("-inf"),
            "str": f"ein Text, der {n} mal vorkommt " * (n % 9),
            "bytes": bytes(range(n % 200)),
            "json": {"n": n, "list": [n, n / 2], "text": str(n)},
            "array": np.full((2, 3), n, "float32"),
            "image": png,
            "audio": clip,
        }
        for n in range(60)
    ]
    report = pack(samples, tmp_path / "set", schema, chunk_size=8, compression=compression, jobs=1)
    assert (report.dictionary_bytes > 0) == (compression == "zstd")
    with running_server(tmp_path / "set", memory=0.4) as server:
        opened = partial(BrandDataset, tmp_path / "set", server=server.address)
        assert equal(*both(opened(transform={"image": pixels, "audio": loudness}), 8))
        assert equal(*both(opened(fields=("float", "json", "array", "int")), 8))
        ours, theirs = both(opened(decode=False), 8)
        for batch in theirs:
            batch |= {name: list(map(as_tensor, batch[name])) for name in ("image", "audio")}
        assert equal(ours, theirs)


def as_tensor(file: bytes) -> torch.Tensor:
    """What a file that is not decoded comes as."""
    return torch.from_numpy(np.frombuffer(file, np.uint8).copy())


@pytest.mark.parametrize("memory", [1.0, 1024])
def test_empty_files(tmp_path: Path, memory: Any) -> None:
    """An image of no bytes is a tensor of none, from memory or read exactly."""
    samples = [{"image": b"", "more": bytes(700)} for _ in range(20)]
    pack(samples, tmp_path / "set", {"image": "image", "more": "bytes"}, compression="none", chunk_size=4, jobs=1)
    with served(tmp_path / "set", memory=memory, decode=False, fields=("image",)) as data_set:
        for loader in (BrandLoader(data_set, 4), BrandLoader(data_set, 4, sampler=SequentialSampler(data_set))):
            assert [len(file) for batch in loader for file in batch[0]] == [0] * 20


@pytest.mark.slow
@pytest.mark.parametrize(("threads", "ahead"), [(1, 1), (1, 30), (2, 2), (8, 1), (8, 30)])
def test_threads_and_batches_ahead_change_nothing(fashion_set: Path, threads: int, ahead: int) -> None:
    """Real pictures; a batch is more than what one thread decodes at a time."""
    with served(fashion_set, fields=("image", "label"), transform={"image": pixels}) as data_set:
        sampler = BrandSampler(data_set)
        loader = BrandLoader(data_set, 50, sampler=sampler, num_workers=threads, prefetch_batches=ahead)
        found = list(loader)
        sampler.set_epoch(0)
        assert equal(found, list(DataLoader(data_set, 50, sampler=sampler)))


def test_a_batch_is_the_callers_own(small: Path) -> None:
    """Changing one changes no later one; what was kept stays what it was."""
    with served(small, fields=None) as data_set:
        kept = []
        for batch in BrandLoader(data_set, 8, prefetch_batches=8):
            kept.append({**batch, "number": batch["number"].clone()})
            batch["number"].fill_(-1)
            batch["index"].add_(0)
        assert sorted(records_of(kept)) == records(make_samples(COUNT, 1500))


@pytest.mark.slow
def test_the_length_is_the_number_of_batches(small: Path, opened: Openings) -> None:
    """Without drawing any; for one rank of several, too."""
    data_set = opened(small)
    for batch, drop_last, ranks in [(7, False, 1), (7, True, 1), (75, True, 1), (76, True, 1), (4, False, 4)]:
        sampler = BrandSampler(data_set, num_replicas=ranks, rank=ranks - 1)
        loader = BrandLoader(data_set, batch, sampler=sampler, drop_last=drop_last)
        assert len(loader) == sum(1 for _ in loader)
    assert len(BrandLoader(data_set)) == 75


@pytest.mark.parametrize(
    "options", [{"batch_size": 0}, {"batch_size": -1}, {"num_workers": 0}, {"prefetch_batches": 0}], ids=str
)
def test_numbers_below_one_are_refused(small: Path, options: dict[str, int]) -> None:
    """When the loader is made."""
    with pytest.raises(UsageError, match=next(iter(options))):
        BrandLoader(BrandDataset(small), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"batch_size": 2.5}, {"batch_size": 8, "prefetch_batches": 1.5}], ids=str)
def test_numbers_that_are_not_whole_are_refused(small: Path, options: dict[str, Any]) -> None:
    """When the loader is made, not at the first batch."""
    with pytest.raises((UsageError, TypeError)):
        BrandLoader(BrandDataset(small), **options)


# -- other samplers --------------------------------------------------------------------------------------------------


def test_plain_samplers_are_exact(small: Path, lies_in: str) -> None:
    """What they name, and no server starts, unless only a server may read the data set."""
    data_set = BrandDataset(small, fields=None)
    samplers: list[Any] = [
        SequentialSampler(data_set),
        RandomSampler(data_set, generator=torch.Generator().manual_seed(3)),
        WeightedRandomSampler([1.0] * COUNT, 200, generator=torch.Generator().manual_seed(3)),
        SubsetRandomSampler(range(10, 30), generator=torch.Generator().manual_seed(3)),
        [5, 5, -1, 0],
        BrandSampler(data_set, shuffle=False),
    ]
    every = records(make_samples(COUNT, 1500))
    for sampler in samplers:
        loader: Any = BrandLoader(data_set, 8, sampler=sampler)
        found = records_of(loader)
        if getattr(sampler, "generator", None) is not None:
            sampler.generator.manual_seed(3)
        assert found == [every[index] for index in sampler]
    assert (data_set.stats() == {}) == (lies_in == "folder")


def test_a_random_sampler_gives_the_batches_of_a_data_loader(small: Path) -> None:
    """With the same generator."""
    data_set = BrandDataset(small, fields=("index", "number"))
    found = []
    for make in (BrandLoader, DataLoader):
        sampler = RandomSampler(data_set, generator=torch.Generator().manual_seed(3))
        found.append([batch for _ in range(2) for batch in make(data_set, 8, sampler=sampler)])
    assert equal(*found)


# -- leaving early ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batches", [0, 1, 3, 10])
def test_an_epoch_may_be_left_early(small: Path, batches: int) -> None:
    """By `break`; the next iteration is the next epoch, and whole."""
    with served(small) as data_set:
        loader = BrandLoader(data_set, 7)
        for number, _ in enumerate(loader):
            if number == batches:
                break
        assert indices_of(loader) == planned(small, loader.sampler.order, 1)
        loader.set_epoch(0)
        assert indices_of(loader) == planned(small, loader.sampler.order, 0)


@pytest.mark.slow
@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_an_error_in_the_training_loop_ends_the_threads(small: Path, error: BaseException) -> None:
    """And comes through as it is."""
    with served(small) as data_set:
        loader = BrandLoader(data_set, 7)
        with pytest.raises(type(error)):
            fail(loader, error)
        del loader
        error.__traceback__ = None  # its frames hold the loader
        gone()
        assert data_set.stats()["clients"] >= 1


@pytest.mark.slow
def test_dropping_a_loader_in_mid_epoch_ends_its_threads(small: Path) -> None:
    """Its iterator, its pool, and its connection."""
    with running_server(small, memory=0.3) as server:
        data_set = BrandDataset(small, fields=("index",), server=server.address)
        loader = BrandLoader(data_set, 2, prefetch_batches=3)
        running = iter(loader)
        next(running)
        assert loader_threads()
        del running, loader
        gone()
        del data_set
        gc.collect()
        wait_until(lambda: server.facts()["clients"] == 1, "only the one who looks is connected")


@pytest.mark.slow
def test_an_iterator_outlives_its_loader(small: Path) -> None:
    """`iter(BrandLoader(...))` is enough."""
    with served(small) as data_set:
        running = iter(BrandLoader(data_set, 7))
        gc.collect()
        assert len(indices_of(running)) == COUNT


def test_an_iterator_that_is_never_used_starts_nothing(small: Path) -> None:
    """Nothing is drawn and no thread runs before the first batch is asked for."""
    with served(small) as data_set:
        loader = BrandLoader(data_set, 2, prefetch_batches=1)
        running = iter(loader)
        assert loader_threads("brand-draw") == []
        assert data_set.stats().get("fetched", 0) == 0
        next(running)
        assert loader_threads("brand-draw")


# -- several at once -------------------------------------------------------------------------------------------------


def test_two_loaders_at_once(small: Path, smaller: Path) -> None:
    """Of two data sets, and twice of the same one, in one loop."""
    with served(small) as training, served(smaller, memory=0.5) as validation:
        loaders = [BrandLoader(training, 5), BrandLoader(validation, 2), BrandLoader(training, 5)]
        loaders[2].set_epoch(1)
        found = list(zip(*loaders, strict=True))
        for side, (path, epoch) in enumerate([(small, 0), (smaller, 0), (small, 1)]):
            order = loaders[side].sampler.order
            assert indices_of(each[side] for each in found) == planned(path, order, epoch)


@pytest.mark.slow
def test_loaders_in_several_threads(small: Path) -> None:
    """Each trains for itself, on one data set."""
    wrong: list[int] = []
    with served(small) as data_set:

        def train(seed: int) -> None:
            loader = BrandLoader(data_set, 6, sampler=BrandSampler(data_set, seed=seed), num_workers=1)
            for epoch in range(3):
                if indices_of(loader) != planned(small, loader.sampler.order, epoch):
                    wrong.append(seed)

        trainings = [threading.Thread(target=train, args=(seed,)) for seed in range(4)]
        for training in trainings:
            training.start()
        for training in trainings:
            training.join()
    assert wrong == []


def test_a_second_iterator_does_not_cut_the_first_short(small: Path) -> None:
    """It may be refused, or both may go on, as those of a DataLoader do; to lose batches silently is neither."""
    with served(small) as data_set:
        loader = BrandLoader(data_set, 5)
        first = iter(loader)
        begun = indices_of([next(first)])
        second = iter(loader)
        next(second)
        try:
            found = begun + indices_of(first)
        except RuntimeError:
            return
        assert len(found) == COUNT


# -- how far ahead, and where the time goes --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "ahead"), [(1, 1), (1, 8), (4, 5)])
def test_what_is_ahead_is_bounded(small: Path, batch: int, ahead: int) -> None:
    """While nobody takes a batch: those that are ready, and one request, which has half as many at the most."""
    with served(small) as data_set:
        loader = BrandLoader(data_set, batch, prefetch_batches=ahead, num_workers=1)
        running = iter(loader)
        taken = 0
        for take in (1, 2):
            for _ in range(take):
                taken += len(next(running)[0])
            least = min(COUNT, taken + ahead * batch)
            wait_until(lambda least=least: data_set.stats()["fetched"] >= least, "as much is ahead")  # type: ignore[misc]
            assert settled(data_set) <= taken + (ahead + max(1, ahead // 2)) * batch
        running.close()  # type: ignore[attr-defined]


def settled(data_set: BrandDataset) -> int:
    """Samples drawn so far, when no more are drawn."""
    drawn, since_s = -1, time.monotonic()
    while time.monotonic() - since_s < 0.35:
        now = data_set.stats()["fetched"]
        if now != drawn:
            drawn, since_s = now, time.monotonic()
        time.sleep(0.01)
    return drawn


def test_what_is_ahead_by_default_is_64_megabytes(tmp_path: Path) -> None:
    """Of stored samples: many small batches, few large ones, two at least."""
    for size, batch, ahead in [(10, 1, 64), (1 << 20, 8, 8), (1 << 20, 100, 2)]:
        target = tmp_path / f"{size} {batch}"
        pack([{"data": bytes(size)}] * 2, target, {"data": "bytes"}, compression="none", jobs=1)
        assert abs(BrandLoader(BrandDataset(target), batch)._ahead - ahead) <= 1


def test_little_memory_makes_what_is_ahead_small(tmp_path: Path) -> None:
    """An eighth of what the data set was given; a running server has a limit of its own."""
    target = tmp_path / "data"
    pack([{"data": bytes(1 << 16)}] * 64, target, {"data": "bytes"}, compression="none", jobs=1)
    memories: list[tuple[str | float | None, int]] = [(None, 64), (1.0, 8), (0.5, 4), ("1MiB", 2), ("9TB", 8)]
    for memory, ahead in memories:
        assert abs(BrandLoader(BrandDataset(target, memory=memory), 1)._ahead - ahead) <= 1
    with running_server(target, memory=1.0) as server:
        assert BrandLoader(BrandDataset(target, memory="1MiB", server=server.address), 1)._ahead == 64
    assert BrandLoader(BrandDataset(target, memory="1MiB"), 1, prefetch_batches=5)._ahead == 5


def test_stages_say_where_the_time_goes(small: Path) -> None:
    """Each in seconds, and the slowest by name, also for people."""
    with served(small, fields=None, transform={"data": len}) as data_set:
        loader = BrandLoader(data_set, 5, num_workers=2)
        for _ in loader:
            pass
        facts = loader.stats()
    assert set(facts) == {f"{name}_s" for name in NAMES} | {
        "slowest",
        "threads",
        "decode_rate",
        "need",
        "waits",
        "server",
    }
    assert all(facts[f"{name}_s"] >= 0 for name in NAMES)
    assert facts["slowest"] in {*NAMES}
    assert facts["server"]["fetched"] == COUNT
    text = repr(loader.stages)
    assert all(name in text for name in NAMES)
    assert text.splitlines()[-1] == f"slowest: {facts['slowest']}"


@pytest.mark.slow
def test_a_slow_transform_is_the_slowest_stage(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By far: on this clock it takes ten seconds a sample, and nothing else takes time."""
    now_s = 0.0

    def pause(value: Any) -> Any:
        nonlocal now_s
        now_s += 10.0
        return value

    for module in (iteration, timing):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now_s, monotonic=lambda: now_s))

    with served(small, transform=pause) as data_set:
        loader = BrandLoader(data_set, 5, num_workers=1)
        assert len(indices_of(loader)) == COUNT
        assert loader.stages.slowest == "decode"


@pytest.mark.parametrize(
    ("seconds", "slowest"),
    [
        ({"training": 1.0, "loop_waits": 0.04, "decode": 9.0}, "training"),
        ({"training": 1.0, "loop_waits": 0.2, "decode": 1.0, "storage": 0.3}, "storage"),
        ({"training": 1.0, "loop_waits": 0.2, "decode": 2.0, "storage": 0.3}, "decode"),
        ({"training": 0.0, "loop_waits": 3.0, "collate": 9.0, "gather": 2.0, "full": 5.0}, "collate"),
        ({"training": 0.0, "loop_waits": 3.0, "collate": 7.0, "gather": 2.0}, "gather"),
    ],
    ids=str,
)
def test_what_several_threads_do_counts_less(seconds: dict[str, float], slowest: str) -> None:
    """Four threads decode and collate; a training that hardly waits is the slowest itself."""
    stages = Stages(4)
    for name, value in seconds.items():
        stages.add(name, value)
    assert stages.slowest == stages.to_json()["slowest"] == slowest


@pytest.mark.parametrize(
    ("name", "value", "cure"),
    [
        ("generator", None, r"BrandSampler\(dataset, seed="),
        ("prefetch_factor", 2, "prefetch_batches="),
        ("worker_init_fn", None, "each sample has its own seed"),
        ("timeout", 5, "leave it out"),
        ("persistent_workers", True, "leave it out"),
        ("multiprocessing_context", "spawn", "leave it out"),
        ("in_order", True, "leave it out"),
        ("pin_memory_device", "cuda", "pin_memory=True"),
        ("num_workers", 0, "num_workers=1"),
    ],
)
def test_arguments_that_only_a_data_loader_has_are_refused_with_a_cure(
    tmp_path: Path, name: str, value: Any, cure: str
) -> None:
    pack([{"n": 1}], tmp_path / "one.brand", {"n": "int"})
    data = BrandDataset(tmp_path / "one.brand")
    with pytest.raises(UsageError, match=f"{name}=.*{cure}"):
        BrandLoader(data, **{name: value})
    with pytest.raises(TypeError, match="batchsize"):
        BrandLoader(data, batchsize=1)


def test_shuffle_is_that_of_the_sampler(tmp_path: Path) -> None:
    """True is the default; a sampler says it itself."""
    pack([{"n": n} for n in range(50)], tmp_path / "fifty.brand", {"n": "int"})
    data = BrandDataset(tmp_path / "fifty.brand", fields=("n",))

    def read(**how: Any) -> list[int]:
        return [int(n) for (batch,) in BrandLoader(data, 8, **how) for n in batch]

    assert read(shuffle=False) == list(range(50))
    assert read(shuffle=True) == read() != list(range(50))
    with pytest.raises(UsageError, match=r"give one of them, as BrandSampler\(dataset, shuffle="):
        BrandLoader(data, 8, shuffle=False, sampler=BrandSampler(data))
