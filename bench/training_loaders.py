"""How does each library feed a training loop: shuffled, in batches of 256, from a bounded memory, with two workers?

A `Way` opens a data set and gives epochs of batches `(payloads, labels)`: a list of `bytes` or `str` (or, decoded, one
uint8 tensor of 224 x 224 pixels each) and a tensor of ints. Each library runs in its own recommended shuffling
configuration, in the fastest form that trying found:

- sequential limit: no library. It reads one file of the same bytes in order, four reads of 4 MiB in flight; with
  O_DIRECT if the data are cold.
- no I/O: a `DataLoader` over samples that are in memory already. Any library with worker processes has this cost.
- plain files: one file for each image, or all records in one file and a table of offsets; `DataLoader(shuffle=True)`.
- spdl: reads the same files in threads, a batch in each task. It decodes with its own decoder (FFmpeg).
- mosaicml: `StreamingDataset` on local shards with its default shuffle, `StreamingDataLoader`.
- litdata: `StreamingDataset(shuffle=True)`, `StreamingDataLoader`.
- webdataset: shards in random order, and a shuffle buffer in each worker, as large as the memory allows, at most
  10,000 samples.
- ffcv: `QUASI_RANDOM` and its own page cache if data are larger than memory, else `RANDOM` over the system's cache.
  It fills arrays with rows as long as the longest sample, and returns images as parts of these rows.
- brand: `BrandLoader`, which returns images as tensors of bytes, in the memory that they were drawn into; the same
  data set through a plain `DataLoader`; `BrandLoader` with the paper's order; for records, a compressed data set.

Every `DataLoader` has two forked workers, which persist between epochs and work two batches ahead, and PyTorch's
default collate. The rivals have no types, so `import_module` imports them.
"""

from __future__ import annotations

import io
import json
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import islice
from typing import Any, Final

import numpy as np

from bench.harness import Rival
from bench.mosaicml import load_streaming
from bench.training_data import PAYLOAD, Store

BATCH: Final = 256
WORKERS: Final = 2
SIDE: Final = 224
_BLOCK: Final = 1 << 22
_IN_FLIGHT: Final = 4
_BRAND_PART: Final = 0.85
"""Fraction of the memory for Brand's arena: the limit also covers Brand's tables and the page cache."""
_BUFFERED: Final = 10_000
"""Most samples in a shuffle buffer of webdataset: its users take 1,000 to 10,000, and more make it slower."""
_BUFFERED_SAMPLE_BYTES: Final = 1_000
"""Bytes that a sample takes in webdataset's shuffle buffer in addition to its payload: a dict, its key, its place."""

Sample = dict[str, Any]
Batch = tuple[Any, Any]
"""(payloads, labels). If a way has no samples, labels are None and payloads is their number."""


@dataclass(frozen=True, slots=True)
class Job:
    """A data set and the memory for it, for the training loop."""

    store: Store
    memory: int
    """Bytes for the buffer or cache if a library has an option for its size."""
    decode: bool
    cold: bool
    """Whether the data are larger than memory, and not in the page cache."""

    def folder(self, form: str) -> str:
        """Return the folder of one form."""
        return str(self.store.folder / form)

    @property
    def payload(self) -> str:
        """The field next to the label."""
        return PAYLOAD[self.store.kind]


@dataclass(frozen=True, slots=True)
class Feed:
    """An open data set."""

    epoch: Callable[[int], Iterable[Batch]]
    stats: Callable[[], Mapping[str, Any]] = field(default=dict)


@dataclass(frozen=True, slots=True)
class Way:
    """One rival."""

    rival: Rival
    form: str
    open: Callable[[Job], Feed]
    modules: Sequence[str] = ("torch",)
    """Modules that `open` imports. They are imported before, so that their time is counted separately."""
    yardstick: bool = False
    """Whether it is not a rival, but a figure to compare with."""
    whole: bool = False
    """Whether it is never stopped early."""
    buffer: bool = False
    """Whether it takes `Job.memory` for itself, in addition to the needs of its processes."""
    pixels: bool = True
    """Whether it can decode the images as they are stored."""
    exact: bool = True
    """Whether it returns the payload as it was stored."""
    images: bool = True
    """Whether it takes part with images, too."""


def to_pixels(picture: Any) -> Any:
    """Convert a Pillow image to a uint8 tensor."""
    import torch
    from PIL import Image

    return torch.from_numpy(np.array(picture.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)))


def decoded(content: bytes) -> Any:
    """Decode the bytes of an image to a uint8 tensor."""
    from PIL import Image

    return to_pixels(Image.open(io.BytesIO(content)))


def collate(samples: Sequence[tuple[Any, int]]) -> Batch:
    """Collate a batch of samples, the same way for every library; `BrandLoader` makes such batches itself."""
    import torch

    payloads, labels = zip(*samples, strict=True)
    together = torch.stack(payloads) if isinstance(payloads[0], torch.Tensor) else list(payloads)
    return together, torch.tensor(labels)


def _pair_maker(job: Job) -> Callable[[Sample], tuple[Any, int]]:
    """Return a function: sample -> (payload, label), decoded if the job says so."""
    name = job.payload
    if job.decode:
        return lambda sample: (decoded(sample[name]), sample["label"])
    return lambda sample: (sample[name], sample["label"])


class _MapStyle:
    """The source of a `DataLoader`."""

    def __init__(self, job: Job, source: Any) -> None:
        self.source, self.pair = source, _pair_maker(job)

    def __len__(self) -> int:
        return len(self.source)

    def __getitems__(self, indices: list[int]) -> list[tuple[Any, int]]:
        pair, source = self.pair, self.source
        return [pair(source[i]) for i in indices]


class _InMemory:
    """As many samples as the data set has, made of its first few."""

    def __init__(self, store: Store) -> None:
        source, self.length = store.source(), store.samples
        self.pool = [source[i][PAYLOAD[store.kind]] for i in range(2 * BATCH)]
        self.name = PAYLOAD[store.kind]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> Sample:
        return {self.name: self.pool[i % len(self.pool)], "label": i}


def _torch_loader(dataset: Any, **options: Any) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(dataset, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True, **options)


def _again(loader: Iterable[Batch]) -> Feed:
    return Feed(lambda _: loader)


def _no_io(job: Job) -> Feed:
    return _again(_torch_loader(_MapStyle(job, _InMemory(job.store)), shuffle=True))


def _plain(job: Job) -> Feed:
    return _again(_torch_loader(_MapStyle(job, job.store.source()), shuffle=True))


def _sequential(job: Job) -> Feed:
    file, samples = job.store.sequential_file, job.store.samples
    mean, flags = file.stat().st_size / samples, os.O_RDONLY | (os.O_DIRECT if job.cold else 0)

    def read(descriptor: int, block: mmap.mmap, start: int) -> int:
        return os.preadv(descriptor, [block], start)

    def epoch(_: int) -> Iterator[Batch]:
        descriptor, arrived, handed = os.open(file, flags), 0, 0
        blocks = [mmap.mmap(-1, _BLOCK) for _ in range(_IN_FLIGHT)]
        starts = enumerate(range(0, file.stat().st_size, _BLOCK))
        with ThreadPoolExecutor(_IN_FLIGHT) as threads:
            pending = deque(threads.submit(read, descriptor, blocks[i], at) for i, at in islice(starts, _IN_FLIGHT))
            while pending:
                arrived += pending.popleft().result()
                pending.extend(
                    threads.submit(read, descriptor, blocks[i % _IN_FLIGHT], at) for i, at in islice(starts, 1)
                )
                count = samples - handed if not pending else int(arrived / mean) - handed
                if count >= BATCH or not pending:
                    handed += count
                    yield count, None
        os.close(descriptor)

    return Feed(epoch)


def _spdl(job: Job) -> Feed:
    spdl, source, pair = import_module("spdl.pipeline"), job.store.source(), _pair_maker(job)

    def read(indices: list[int]) -> Batch:
        return collate([pair(source[i]) for i in indices])

    def read_and_decode(indices: list[int]) -> Batch:
        import torch

        spdl_io, samples = import_module("spdl.io"), [source[i] for i in indices]
        contents, size = [sample["image"] for sample in samples], {"width": SIDE, "height": SIDE}
        pixels = spdl_io.to_torch(spdl_io.load_image_batch(contents, pix_fmt="rgb24", **size))
        return pixels, torch.tensor([sample["label"] for sample in samples])

    def epoch(number: int) -> Iterator[Batch]:
        order = np.random.default_rng(number).permutation(len(source)).tolist()
        threads = WORKERS if job.decode or not job.cold else 4 * WORKERS
        batches = (order[start : start + BATCH] for start in range(0, len(order), BATCH))
        builder = spdl.PipelineBuilder().add_source(batches)
        builder = builder.pipe(read_and_decode if job.decode else read, concurrency=threads).add_sink(2)
        pipeline = builder.build(num_threads=threads)
        with pipeline.auto_stop():
            yield from pipeline

    return Feed(epoch)


def _mosaicml(job: Job) -> Feed:
    streaming, pair = load_streaming(), _pair_maker(job)
    import_module("streaming.base.util").clean_stale_shared_memory()

    class Pairs(streaming.StreamingDataset):  # type: ignore[misc,name-defined,unused-ignore]
        def __getitem__(self, at: int) -> Any:
            return pair(super().__getitem__(at))

    dataset = Pairs(local=job.folder("mosaicml"), shuffle=True, batch_size=BATCH)
    options = {"num_workers": WORKERS, "persistent_workers": True}
    return _again(streaming.StreamingDataLoader(dataset, batch_size=BATCH, **options))


def _litdata(job: Job) -> Feed:
    litdata, pair = import_module("litdata"), _pair_maker(job)
    dataset = litdata.StreamingDataset(job.folder("litdata"), shuffle=True, drop_last=False, transform=pair)
    options = {"num_workers": WORKERS, "persistent_workers": True}
    return _again(litdata.StreamingDataLoader(dataset, batch_size=BATCH, **options))


def _webdataset(job: Job) -> Feed:
    wds, pair = import_module("webdataset"), _pair_maker(job)

    def from_tar(sample: Sample) -> tuple[Any, int]:
        if "json" in sample:
            return pair(json.loads(sample["json"]))
        return pair({"image": sample["jpg"], "label": int(sample["cls"])})

    shards = sorted(str(file) for file in (job.store.folder / "webdataset").glob("*.tar"))
    mean = job.store.payload_bytes / job.store.samples + _BUFFERED_SAMPLE_BYTES
    buffered = max(BATCH, min(_BUFFERED, int(job.memory / WORKERS / mean)))
    dataset = wds.WebDataset(shards, shardshuffle=len(shards), empty_check=False).shuffle(buffered)
    dataset = dataset.map(from_tar).batched(BATCH, collation_fn=collate, partial=True)
    return _again(wds.WebLoader(dataset, batch_size=None, num_workers=WORKERS, persistent_workers=True))


def _ffcv(job: Job) -> Feed:
    loader, decoders = import_module("ffcv.loader"), import_module("ffcv.fields.decoders")
    order = loader.OrderOption.QUASI_RANDOM if job.cold else loader.OrderOption.RANDOM
    numbers = {name: [decoders.IntDecoder()] for name in ("size", "label")}
    options = {"num_workers": WORKERS, "order": order, "os_cache": not job.cold, "seed": 0, "drop_last": False}
    batches = loader.Loader(
        job.folder("ffcv") + "/all.beton", BATCH, pipelines={"payload": [decoders.BytesDecoder()], **numbers}, **options
    )

    def epoch(_: int) -> Iterator[Batch]:
        for rows, sizes, labels in batches:
            payloads = [row[:size] for row, size in zip(rows, sizes.ravel().tolist(), strict=True)]
            texts = job.store.kind == "records"
            yield [row.tobytes().decode() for row in payloads] if texts else payloads, labels.ravel()

    return Feed(epoch)


def _brand_dataset(job: Job, order: str, form: str = "brand") -> tuple[Any, Any]:
    brand: Any = import_module("brand")
    transform = {"image": to_pixels} if job.decode else None
    how = {"memory": int(_BRAND_PART * job.memory), "order": order, "transform": transform, "decode": job.decode}
    dataset = brand.BrandDataset(job.folder(form), fields=(job.payload, "label"), **how)
    return dataset, brand.BrandSampler(dataset, seed=0)


def _epochs(sampler: Any, loader: Any) -> Callable[[int], Iterable[Batch]]:
    def epoch(number: int) -> Iterable[Batch]:
        sampler.set_epoch(number)
        batches: Iterable[Batch] = loader
        return batches

    return epoch


def _brand(job: Job, order: str = "stripes", form: str = "brand") -> Feed:
    dataset, sampler = _brand_dataset(job, order, form)
    loader = import_module("brand").BrandLoader(dataset, batch_size=BATCH, sampler=sampler, num_workers=WORKERS)
    return Feed(_epochs(sampler, loader), dataset.stats)


def _brand_torch(job: Job) -> Feed:
    dataset, sampler = _brand_dataset(job, "stripes")
    return Feed(_epochs(sampler, _torch_loader(dataset, sampler=sampler)), dataset.stats)


LIMIT: Final = Way(Rival("sequential limit"), "sequential", _sequential, (), yardstick=True, whole=True, pixels=False)
NO_IO: Final = Way(Rival("no I/O"), "plain", _no_io, yardstick=True, exact=False)
_TORCH: Final = ("torch", "brand.torch")
BRAND: Final = Way(Rival("brand", "brand", "brand-data"), "brand", _brand, _TORCH, whole=True, buffer=True)
_BRAND_TORCH: Final = Rival("brand, DataLoader", "brand", "brand-data")
_BRAND_SLOTS: Final = Rival("brand, slots", "brand", "brand-data")
_BRAND_ZSTD: Final = Rival("brand, compressed", "brand", "brand-data")
WEBDATASET: Final = Way(
    Rival("webdataset", "webdataset", "webdataset"), "webdataset", _webdataset, ("torch", "webdataset"), buffer=True
)
FFCV: Final = Way(Rival("ffcv"), "ffcv", _ffcv, ("torch", "ffcv", "ffcv.loader"), pixels=False)


def load(way: Way) -> None:
    """Import the modules that `way.open` needs."""
    for module in way.modules:
        load_streaming() if module == "streaming" else import_module(module)


WAYS: Final = (
    LIMIT,
    NO_IO,
    Way(Rival("plain files", "torch", "torch"), "plain", _plain),
    Way(Rival("spdl", "spdl", "spdl-core"), "plain", _spdl, ("torch", "spdl.pipeline")),
    Way(Rival("mosaicml", "streaming", "mosaicml-streaming"), "mosaicml", _mosaicml, ("torch", "streaming")),
    Way(Rival("litdata", "litdata", "litdata"), "litdata", _litdata, ("torch", "litdata")),
    WEBDATASET,
    FFCV,
    BRAND,
    Way(_BRAND_TORCH, "brand", _brand_torch, _TORCH, whole=True, buffer=True),
    Way(_BRAND_SLOTS, "brand", partial(_brand, order="slots"), _TORCH, buffer=True),
    Way(_BRAND_ZSTD, "brand-zstd", partial(_brand, form="brand-zstd"), _TORCH, whole=True, buffer=True, images=False),
)
