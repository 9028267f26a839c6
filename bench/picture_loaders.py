"""How does each library turn JPEG files into batches for a ResNet? Random crops of 224 x 224 pixels, mirrored at times.

`FEEDS` has a function for each. It is given a `Job`, and yields batches without end: uint8 pixels and labels, in random
order, in each library's recommended way. Random crops have 8 % to 100 % of the area, as is usual for ImageNet.

- `entropy decoding alone`: simplejpeg at 1/8 of the size, without a resize. No CPU decoder of JPEG is faster than that.
- `brand`: a `BrandLoader`; `brand, whole`: with `scaled=False`; `brand, DataLoader`: worker processes.
- `torchvision PIL`: a `DataLoader` of files, with Pillow and torchvision's transforms (v1).
- `torchvision tensors`: `decode_jpeg` and torchvision's transforms v2, on uint8 tensors.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from bench.harness import Rival
from bench.picture_data import Pictures

SIDE: Final = 224
SCALE: Final = (0.08, 1.0)
RATIO: Final = (3 / 4, 4 / 3)
FLIP: Final = 0.5
Batch = tuple[Any, Any]
"""Pixels, shape (samples, 224, 224, 3) or (samples, 3, 224, 224), and labels."""


@dataclass(slots=True)
class Job:
    """A feed's task."""

    pictures: Pictures
    threads: int
    """Threads or worker processes that decode."""
    batch: int
    pin: bool = False
    """Whether batches are in page-locked memory."""
    stats: Callable[[], dict[str, Any]] = dict
    """Statistics of the loader; a feed may set it."""


class Files:
    """The files as a map-style data set; `decode` returns a tensor of pixels of a path."""

    def __init__(self, pictures: Pictures, decode: Callable[[str], Any]) -> None:
        self.files, self.decode = pictures.files, decode

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        return self.decode(self.files[number]), Pictures.label(number)


class PillowTransforms:
    """Pillow, and torchvision's transforms v1."""

    def __init__(self) -> None:
        v1 = import_module("torchvision.transforms")
        crop = v1.RandomResizedCrop(SIDE, scale=SCALE, ratio=RATIO)
        self.transforms = v1.Compose([crop, v1.RandomHorizontalFlip(FLIP), v1.PILToTensor()])

    def __call__(self, path: str) -> Any:
        """Return the pixels of a file."""
        from PIL import Image

        with Image.open(path) as image:
            return self.transforms(image.convert("RGB"))


class TensorTransforms:
    """torchvision's decoder, and its transforms v2."""

    def __init__(self) -> None:
        v2 = import_module("torchvision.transforms.v2")
        crop = v2.RandomResizedCrop(SIDE, scale=SCALE, ratio=RATIO, antialias=True)
        self.transforms = v2.Compose([crop, v2.RandomHorizontalFlip(FLIP)])

    def __call__(self, path: str) -> Any:
        """Return the pixels of a file."""
        vision = import_module("torchvision.io")
        return self.transforms(vision.decode_jpeg(vision.read_file(path), mode=vision.ImageReadMode.RGB))


def _data_loader(job: Job, data_set: Any, **order: Any) -> Iterable[Batch]:
    """Return a `DataLoader` with a worker for each thread of the job. `order`: its `shuffle` or `sampler`."""
    loader: Iterable[Batch] = import_module("torch.utils.data").DataLoader(
        data_set,
        job.batch,
        drop_last=True,
        num_workers=job.threads,
        persistent_workers=True,
        pin_memory=job.pin,
        **order,
    )
    return loader


def _of_files(job: Job, decode: Callable[[str], Any]) -> Iterator[Batch]:
    loader = _data_loader(job, Files(job.pictures, decode), shuffle=True)
    while True:
        yield from loader


def _brand_set(job: Job, decode: Any) -> Any:
    return import_module("brand").BrandDataset(job.pictures.brand, fields=("image", "label"), decode=decode, memory=1.0)


def _brand_spec(**more: Any) -> Any:
    brand = import_module("brand")
    crop = brand.RandomResizedCrop(SIDE, scale=SCALE, ratio=RATIO)
    return {"image": brand.DecodeImage(crop=crop, flip=FLIP, **more)}


def brand_loader(job: Job, decode: Any) -> Iterator[Batch]:
    """Yield the batches of a `BrandLoader`."""
    loader = import_module("brand").BrandLoader(
        _brand_set(job, decode), job.batch, drop_last=True, num_workers=job.threads, pin_memory=job.pin
    )
    job.stats = loader.stats
    epoch = 0
    while True:
        loader.set_epoch(epoch)
        yield from loader
        epoch += 1


def _brand(job: Job) -> Iterator[Batch]:
    return brand_loader(job, _brand_spec())


def _brand_whole(job: Job) -> Iterator[Batch]:
    return brand_loader(job, _brand_spec(scaled=False))


def _brand_torch(job: Job) -> Iterator[Batch]:
    data_set = _brand_set(job, _brand_spec())
    sampler = import_module("brand").BrandSampler(data_set)
    loader = _data_loader(job, data_set, sampler=sampler)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def _pillow(job: Job) -> Iterator[Batch]:
    return _of_files(job, PillowTransforms())


def _tensors(job: Job) -> Iterator[Batch]:
    return _of_files(job, TensorTransforms())


def _in_threads(job: Job, decode: Callable[[bytes], Any]) -> Iterator[Batch]:
    """Yield batches of files that threads of Python decode, 16 at a time, two batches ahead."""
    torch, files = import_module("torch"), job.pictures.files
    torch.set_num_threads(1)

    def some(numbers: list[int]) -> list[Any]:
        return [decode(Path(files[number]).read_bytes()) for number in numbers]

    def ordered() -> Iterator[list[int]]:
        while True:
            order = random.sample(range(len(files)), len(files))
            yield from (order[at : at + job.batch] for at in range(0, len(order) - job.batch + 1, job.batch))

    with ThreadPoolExecutor(job.threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        pending: list[tuple[list[int], list[Any]]] = []
        for numbers in ordered():
            slices = [pool.submit(some, numbers[at : at + 16]) for at in range(0, len(numbers), 16)]
            pending.append((numbers, slices))
            if len(pending) > 2:
                due, parts = pending.pop(0)
                yield [image for part in parts for image in part.result()], list(map(Pictures.label, due))


def _entropy(job: Job) -> Iterator[Batch]:
    simplejpeg = import_module("simplejpeg")
    return _in_threads(job, lambda data: simplejpeg.decode_jpeg(data, "RGB", min_height=1, min_width=1))


@dataclass(frozen=True, slots=True)
class Feed:
    """A way to get batches."""

    rival: Rival
    batches: Callable[[Job], Iterator[Batch]]
    bound: bool = False
    """Whether it is a lower bound, which makes no batches."""


_LIBRARIES: Final = (
    Feed(Rival("entropy decoding alone", "simplejpeg", "simplejpeg"), _entropy, bound=True),
    Feed(Rival("brand", "brand"), _brand),
    Feed(Rival("brand, whole", "brand"), _brand_whole),
    Feed(Rival("brand, DataLoader", "brand"), _brand_torch),
    Feed(Rival("torchvision PIL", "torchvision", "torchvision"), _pillow),
    Feed(Rival("torchvision tensors", "torchvision", "torchvision"), _tensors),
)
FEEDS: Final = {feed.rival.name: feed for feed in _LIBRARIES}


def processor_s() -> float:
    """Return the processor seconds of this process, its threads and its descendants."""
    from bench import system

    return system.cpu_s_of(system.process_tree(os.getpid()))
