"""Each thread of a `BrandLoader` has a copy of the transform and of `collate_fn`, as a worker process has one."""

from __future__ import annotations

import logging
import os
import random
import threading
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from brand.testing.node import RunningServer, running_server
from brand.torch import BrandDataset, BrandLoader
from brand.torch.loader.assigned import shared_by
from brand.torch.loader.copies import LARGE_BYTES, LARGE_ITEMS, MOST_OBJECTS, copy_for_thread
from tests.torch.support import make_samples, make_set

COUNT = 400


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Four hundred samples."""
    path = make_set(tmp_path_factory.mktemp("sets") / "set", make_samples(COUNT, 50), 16)
    with running_server(path, memory=0.5) as running:
        yield running


def opened(server: RunningServer, transform: Any, fields: tuple[str, ...] = ("index",)) -> BrandDataset:
    return BrandDataset(server.path, fields=fields, transform=transform, server=server.address)


class Remembers:
    """Stores the parameter of a sample in itself, as MONAI's and albumentations' transforms do."""

    def __init__(self) -> None:
        self.parameter = -1

    def __call__(self, sample: tuple[int]) -> tuple[int, int]:
        self.parameter = sample[0]
        for _ in range(20):
            os.sched_yield()
        return sample[0], self.parameter

    def method(self, sample: tuple[int]) -> tuple[int, int]:
        return self(sample)


REMEMBERS = Remembers()
SHARED: dict[str, int] = {}


def of_a_global(sample: tuple[int]) -> tuple[int, int]:
    return REMEMBERS(sample)


def of_a_function(sample: tuple[int]) -> tuple[int, int]:
    return of_a_global(sample)


def of_a_global_dict(sample: tuple[int]) -> tuple[int, int]:
    SHARED["parameter"] = sample[0]
    for _ in range(20):
        os.sched_yield()
    return sample[0], SHARED["parameter"]


def of_a_variable() -> Callable[[tuple[int]], tuple[int, int]]:
    steps = [Remembers()]

    def transform(sample: tuple[int]) -> tuple[int, int]:
        return steps[0](sample)

    return transform


class OfASlot:
    __slots__ = ("inside",)

    def __init__(self) -> None:
        self.inside = (Remembers(),)

    def __call__(self, sample: tuple[int]) -> tuple[int, int]:
        return self.inside[0](sample)


MIXING: dict[str, Callable[[], Any]] = {
    "object": Remembers,
    "method": lambda: Remembers().method,
    "partial": lambda: partial(Remembers.method, Remembers()),
    "global": lambda: of_a_global,
    "function of a global": lambda: of_a_function,
    "global dict": lambda: of_a_global_dict,
    "variable": of_a_variable,
    "lambda": lambda: (lambda inside: lambda sample: inside(sample))(Remembers()),
    "slot": OfASlot,
    "list": lambda: partial(lambda steps, sample: steps[0](sample), [Remembers()]),
}


@pytest.mark.parametrize("name", MIXING)
def test_samples_are_not_mixed(server: RunningServer, name: str) -> None:
    """Eight threads, each of which leaves the processor between the two uses of a parameter."""
    loader = BrandLoader(opened(server, MIXING[name]()), 40, num_workers=8)
    found = [pair for indices, parameters in loader for pair in zip(indices.tolist(), parameters.tolist(), strict=True)]
    assert len(found) == COUNT
    assert [pair for pair in found if pair[0] != pair[1]] == []


def test_functions_of_fields_share_a_copy(server: RunningServer) -> None:
    """The function of one field stores a parameter, which that of another field reads: image and mask."""
    remembers = Remembers()

    def first(value: int) -> int:
        remembers.parameter = value
        for _ in range(20):
            os.sched_yield()
        return value

    data_set = opened(server, {"index": first, "number": lambda _: remembers.parameter}, ("index", "number"))
    for indices, parameters in BrandLoader(data_set, 40, num_workers=8):
        assert indices.tolist() == parameters.tolist()


SIDE = 32
"""Pixels of an image of `pair_of`, in both directions."""


def pair_of(index: int) -> tuple[Any, Any]:
    """An image whose pixels differ from each other and from those of other images, and a mask that is its copy."""
    image = (np.arange(SIDE * SIDE, dtype=np.float32) + index * SIDE * SIDE).reshape(SIDE, SIDE)
    return image, image.copy()


class CropsBoth:
    """Stores a random window in itself, and crops the image and then the mask with it."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(1)
        self.window = (0, 0)

    def __call__(self, sample: tuple[int]) -> tuple[int, Any, Any]:
        self.window = (*self.generator.integers(0, SIDE // 2, 2).tolist(),)
        image, mask = pair_of(sample[0])
        image = self.crop(image)
        for _ in range(20):
            os.sched_yield()
        return sample[0], image, self.crop(mask)

    def crop(self, array: Any) -> Any:
        top, left = self.window
        return array[top : top + SIDE // 2, left : left + SIDE // 2]


class Albumentation:
    """A pipeline of albumentations, whose transforms store their random generators in themselves."""

    def __init__(self) -> None:
        albumentations = pytest.importorskip("albumentations", minversion="2.0")
        steps = [
            albumentations.RandomCrop(SIDE // 2, SIDE // 2),
            albumentations.HorizontalFlip(p=0.5),
            albumentations.Transpose(p=0.5),
            albumentations.GridDropout(p=0.5, fill=0, fill_mask=0),
        ]
        self.pipeline = albumentations.Compose(steps)

    def __call__(self, sample: tuple[int]) -> tuple[int, Any, Any]:
        image, mask = pair_of(sample[0])
        found = self.pipeline(image=image, mask=mask)
        return sample[0], found["image"], found["mask"]


@pytest.mark.parametrize("make", [CropsBoth, Albumentation])
def test_an_image_and_its_mask_have_the_same_random_parameters(server: RunningServer, make: Callable[[], Any]) -> None:
    """In three epochs of sixteen threads, and of one thread, which gives the same images."""
    data_set = opened(server, make())
    many, one = (BrandLoader(data_set, 40, num_workers=threads) for threads in (16, 1))
    for _ in range(3):
        seen = 0
        for (indices, images, masks), (_, expected, _) in zip(many, one, strict=True):
            assert torch.equal(images, masks)
            assert torch.equal(images, expected)
            assert len({image.numpy().tobytes() for image in images}) == len(indices)
            seen += len(indices)
        assert seen == COUNT


class Draws:
    """Has a random generator of its own."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def __call__(self, sample: tuple[int]) -> tuple[int, float]:
        generator = self.generator
        if isinstance(generator, torch.Generator):
            return sample[0], torch.rand((), generator=generator).item()
        return sample[0], float(generator.random())


GENERATORS: dict[str, Callable[[], Any]] = {
    "Generator": lambda: np.random.default_rng(1),
    "MT19937": lambda: np.random.Generator(np.random.MT19937(1)),
    "RandomState": lambda: np.random.RandomState(1),
    "random": lambda: random.Random(1),
    "torch": lambda: torch.Generator().manual_seed(1),
}


def values(loader: BrandLoader) -> dict[int, float]:
    return {i: v for indices, found in loader for i, v in zip(indices.tolist(), found.tolist(), strict=True)}


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_of_the_transform_is_seeded_for_each_sample(server: RunningServer, name: str) -> None:
    """The same numbers for any threads and batches, others for each sample and epoch; the original is left alone."""
    transform = Draws(GENERATORS[name]())
    data_set = opened(server, transform)
    one = BrandLoader(data_set, 40, num_workers=1)
    first, second = values(one), values(one)
    assert len(set(first.values()) | set(second.values())) == 2 * COUNT
    assert values(BrandLoader(data_set, 30, num_workers=4)) == first
    assert transform((0,)) == Draws(GENERATORS[name]())((0,))


class RandomCollate:
    """Draws from torch and from a generator of its own, and stores what it has drawn in itself."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(1)

    def __call__(self, samples: list[tuple[int, int]]) -> tuple[torch.Tensor, float, float]:
        self.drawn = torch.rand(()).item()
        for _ in range(20):
            os.sched_yield()
        return torch.tensor([sample[0] for sample in samples]), self.drawn, float(self.generator.random())


def batches(loader: BrandLoader) -> list[tuple[list[int], float, float]]:
    return [(indices.tolist(), *numbers) for indices, *numbers in loader]


@pytest.mark.parametrize("transform", [None, Remembers()])
def test_a_random_collate_fn_is_the_same_in_every_run(server: RunningServer, transform: Any) -> None:
    """With any number of threads, and in a run that is resumed; the numbers of the loop are left alone."""
    data_set = opened(server, transform)
    before = torch.get_rng_state()
    one = BrandLoader(data_set, 20, num_workers=1, collate_fn=RandomCollate())
    first, second = batches(one), batches(one)
    assert len({number for _, *numbers in first + second for number in numbers}) == 2 * 2 * COUNT / 20
    four = BrandLoader(data_set, 20, num_workers=4, collate_fn=RandomCollate())
    assert batches(four) == first
    iterator = iter(four)
    assert [next(iterator)[1:] for _ in range(3)] == [numbers[1:] for numbers in second[:3]]
    again = BrandLoader(data_set, 20, num_workers=2, collate_fn=RandomCollate())
    again.load_state_dict(four.state_dict())
    assert batches(again) == second[3:]
    assert torch.equal(torch.get_rng_state(), before)


def test_an_epoch_uses_the_transform_as_it_is_at_its_beginning(server: RunningServer) -> None:
    """The training may change it between epochs; what the copies store in themselves is not seen."""
    transform = Remembers()
    loader = BrandLoader(opened(server, lambda sample: (sample[0], transform.parameter)), 100, num_workers=2)
    for parameter in (3, 5):
        transform.parameter = parameter
        assert {found for _, parameters in loader for found in parameters.tolist()} == {parameter}


class Counts:
    """Counts samples under a lock, so one object serves all threads."""

    def __init__(self) -> None:
        self.lock, self.samples = threading.Lock(), 0

    def __call__(self, sample: tuple[int]) -> tuple[int]:
        with self.lock:
            self.samples += 1
        return sample


class Safe(Remembers):
    thread_safe = True


def test_what_is_shared(server: RunningServer) -> None:
    counts = Counts()
    assert sum(len(indices) for (indices,) in BrandLoader(opened(server, counts), 40, num_workers=4)) == COUNT
    assert counts.samples == COUNT
    model, large = torch.nn.Linear(2, 2), np.zeros(LARGE_BYTES + 1, np.uint8)
    table = dict.fromkeys(range(LARGE_ITEMS + 1), 1)
    for value in (Safe(), model, large, table, counts, torch.relu, np, Remembers, default_collate, None, "text", 3):
        assert copy_for_thread(partial(print, value), "transform").value.args[0] is value
    assert copy_for_thread(torch.nn.functional.relu, "transform").value is torch.nn.functional.relu


def test_what_is_copied() -> None:
    """Each object once, also if objects refer to each other."""
    ring: list[Any] = [np.zeros(3), {"a": {1, 2}}, torch.zeros(2)]
    ring += [ring, ring[0], partial(print, ring)]
    new = copy_for_thread(ring, "transform").value
    assert new is not ring
    assert new[3] is new
    assert new[4] is new[0] is not ring[0]
    assert new[5].args[0] is new
    assert new[1] == {"a": {1, 2}}
    assert new[1]["a"] is not ring[1]["a"]
    assert torch.equal(new[2], ring[2])
    assert new[2].data_ptr() != ring[2].data_ptr()


LAST = -1
STATE: Any = types.ModuleType("state")


class Window:
    last = -1

    def __init__(self) -> None:
        Window.last = -1  # once, not for each sample

    def on_type(self, sample: Any) -> Any:
        type(self).last = sample
        return type(self).last

    def on_class(self, sample: Any) -> Any:
        self.__class__.last = sample
        Window.last += 1
        return sample

    def by_a_function(self, sample: Any) -> Any:
        return writes_a_global(sample)

    def on_a_default(self, sample: Any, seen: list[Any] = [], *, last: dict[str, Any] = {}) -> Any:  # noqa: B006
        seen.append(sample)
        last["x"] = sample
        return sample

    def reads_a_default(self, sample: Any, mean: list[float] = [0.5], **_: Any) -> Any:  # noqa: B006
        return sample - mean[0], mean.copy()

    def on_itself(self, sample: Any) -> Any:
        self.window = np.zeros(3)
        self.window[0] = sample
        return sample


def writes_a_global(sample: Any) -> Any:
    global LAST
    LAST = sample
    return sample


def writes_to_a_module(sample: Any) -> Any:
    STATE.last = sample
    return sample


def reads_only(sample: Any, *, state: tuple[int, ...] = (1,)) -> Any:
    return sample, LAST, Window.last, STATE, state


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (writes_a_global, ["LAST"]),
        (writes_to_a_module, ["STATE.last"]),
        (lambda sample: writes_to_a_module(sample), ["STATE.last"]),
        (reads_only, []),
        (
            Window(),
            [
                "LAST",
                "Window.last",
                "__class__.last",
                "the default of last in Window.on_a_default",
                "the default of seen in Window.on_a_default",
                "type(self).last",
            ],
        ),
        (Remembers(), []),
        (torch.nn.Dropout(), []),
        (default_collate, []),
    ],
)
def test_what_threads_share_because_the_code_assigns_it(function: Any, names: list[str]) -> None:
    assert shared_by(function) == names


def test_what_is_assigned_is_said(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    """Once; values of the object itself, and defaults of a function, are right."""

    def with_default(sample: tuple[int], state: list[int] = [0]) -> tuple[int, int]:  # noqa: B006 - as users do
        state[0] = sample[0]
        for _ in range(20):
            os.sched_yield()
        return sample[0], state[0]

    for transform, texts in (
        (writes_to_a_module, ["transform changes STATE.last, which all threads share"]),
        (with_default, []),
    ):
        with caplog.at_level(logging.WARNING, "brand"):
            caplog.clear()
            batches = [batch for _ in range(2) for batch in BrandLoader(opened(server, transform), 40, num_workers=8)]
        assert [record.getMessage().partition(". If")[0] for record in said(caplog)] == texts
        assert texts or all(torch.equal(*batch) for batch in batches)


def said(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The records of this process's loader; the server of the fixture has a logger of its own."""
    return [record for record in caplog.records if record.name == "brand"]


def test_what_cannot_be_copied_is_shared_and_said(
    server: RunningServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each once, however many threads there are; the hint, an attribute `thread_safe`, ends it."""

    class Refuses(Remembers):
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise ValueError("I am one")

    class Reads:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __call__(self, sample: tuple[int]) -> tuple[int]:
            return sample

    many = Reads([[Reads([[]]) for _ in range(LARGE_ITEMS)] for _ in range(MOST_OBJECTS // LARGE_ITEMS)])
    with (tmp_path / "file").open("w") as file, caplog.at_level(logging.WARNING, "brand"):
        for transform, text in (
            (Refuses(), "transform cannot be copied, so all threads share it (ValueError: I am one)"),
            (Reads(file), "transform refers to an object of TextIOWrapper, which cannot be copied"),
            (many, f"(RuntimeError: it refers to more than {MOST_OBJECTS:,} objects)"),
        ):
            caplog.clear()
            for _ in range(2):
                assert len(list(BrandLoader(opened(server, transform), 100, num_workers=4))) == COUNT / 100
            (record,) = said(caplog)
            assert text in record.getMessage()
            assert "thread_safe = True" in record.getMessage()
            caplog.clear()
            vars(transform)["thread_safe"] = True
            list(BrandLoader(opened(server, transform), 100, num_workers=4))
            assert not said(caplog)
