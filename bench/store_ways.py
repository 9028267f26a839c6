"""How does each library feed training from an object store?

Every function opens a data set in a bucket, and returns a feed as training_loaders.py defines it: `feed.epoch(n)`
yields batches of 256. Shuffling, workers and batches are as in that module; each rival caches the bytes that it has
read in a folder of its own, which is empty at first and has no limit that matters.

- link: no library. Eight threads read one object of the same bytes in order, in ranges of 8 MiB.
- s3fs: a training script written by hand: a `DataLoader(shuffle=True)` over one object for each image, or over ranges
  of one object with all records. Each worker asks for all samples of its batch at the same time. It has no cache.
- mosaicml: `StreamingDataset(remote=...)` downloads whole shards, each worker one after the other, and `predownload`
  samples ahead (default: eight batches). It reads the index before its workers are forked, so these would share that
  one connection, and receive each other's answers. Without TLS this is not noticed, and shards are damaged. So the
  benchmark makes it drop the connection first (`clean_up`).
- litdata: `StreamingDataset("s3://...")` downloads whole chunks through obstore, each worker `max_pre_download` chunks
  ahead (default: two). It has no option for a store without TLS, so the benchmark adds one to its options of obstore
  (`allow_http`).
- brand: `BrandDataset("s3://...", cache=...)` with `BrandLoader`, memory for a tenth of the data; for records, a
  compressed data set, too.

mosaicml and litdata read shards of 16 MiB (images) and 4 MiB (records). With their default of 64 MiB litdata's first
epoch took 1.3 and more than 100 times as long: if two workers share a chunk, it reads the whole chunk for each few
samples.
"""

from __future__ import annotations

import http.client
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np

from bench.harness import Rival
from bench.mosaicml import load_streaming
from bench.training_data import PAYLOAD, Store
from bench.training_loaders import BATCH, WORKERS, Batch, Feed, collate

BUCKET: Final = "training"
"""The bucket, which is the folder of that name in SCRATCH."""
MEMORY: Final = 1 / 10
"""Fraction of the data that Brand's server holds in memory."""
_RANGE: Final = 8 << 20
_IN_FLIGHT: Final = 8
_CONNECTIONS: Final = 64
_CACHE: Final = "100GB"
"""A limit that is larger than any of the data sets."""


@dataclass(frozen=True, slots=True)
class Job:
    """A data set in an object store, for the training loop."""

    store: Store
    """The data set on this machine, for sizes; its samples are read from the object store."""
    endpoint: str
    """Address of the object store."""
    cache: Path
    """Folder for the library's cache."""

    def key(self, form: str) -> str:
        """Return bucket and name of one form."""
        return f"{BUCKET}/{self.store.name}/{form}"

    @property
    def payload(self) -> str:
        """The field next to the label."""
        return PAYLOAD[self.store.kind]

    @property
    def pair(self) -> Callable[[Mapping[str, Any]], tuple[Any, int]]:
        """A function: sample -> (payload, label)."""
        name = self.payload
        return lambda sample: (sample[name], sample["label"])


@dataclass(frozen=True, slots=True)
class Way:
    """One rival."""

    rival: Rival
    form: str
    """The form of training_data.py that it reads."""
    open: Callable[[Job], Feed]
    modules: Sequence[str] = ("torch",)
    """Modules that `open` imports. They are imported before, so that their time is counted separately."""
    kinds: Sequence[str] = ("images", "records")
    yardstick: bool = False


def load(way: Way) -> None:
    """Import the modules that `way.open` needs."""
    for module in way.modules:
        load_streaming() if module == "streaming" else import_module(module)


def environment(endpoint: str, scratch: Path) -> dict[str, str]:
    """Return the environment variables with which the libraries reach the store, with any credentials."""
    return {
        "AWS_ENDPOINT_URL": endpoint,  # boto3, s3fs and obstore, so also litdata and Brand
        "S3_ENDPOINT_URL": endpoint,  # mosaicml
        "AWS_ALLOW_HTTP": "true",  # obstore
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench",
        "AWS_EC2_METADATA_DISABLED": "true",
        "XDG_CACHE_HOME": str(scratch),  # Brand's copy of the index
    }


def _link(job: Job) -> Feed:
    file, samples = job.store.sequential_file, job.store.samples
    size, place = file.stat().st_size, urlsplit(job.endpoint)
    key = f"/{BUCKET}/{file.relative_to(job.store.folder.parent)}"
    assert place.hostname is not None
    connections = [http.client.HTTPConnection(place.hostname, place.port) for _ in range(_IN_FLIGHT)]

    def read(connection: http.client.HTTPConnection, start: int) -> int:
        connection.request("GET", key, headers={"Range": f"bytes={start}-{min(size, start + _RANGE) - 1}"})
        response, buffer, found = connection.getresponse(), memoryview(bytearray(_RANGE)), 0
        while got := response.readinto(buffer):
            found += got
        return found

    def epoch(_: int) -> Iterator[Batch]:
        arrived, handed, starts = 0, 0, enumerate(range(0, size, _RANGE))
        with ThreadPoolExecutor(_IN_FLIGHT) as threads:
            pending = deque(threads.submit(read, connections[i], at) for i, at in islice(starts, _IN_FLIGHT))
            while pending:
                arrived += pending.popleft().result()
                pending.extend(threads.submit(read, connections[i % _IN_FLIGHT], at) for i, at in islice(starts, 1))
                count = (samples if not pending else int(arrived / size * samples)) - handed
                handed += count
                yield count, None

    return Feed(epoch)


class _Objects:
    """Samples in an object store, by number, through s3fs. Each process has connections of its own."""

    def __init__(self, job: Job) -> None:
        self.job = job
        if job.store.kind == "records":
            self.offsets = np.load(job.store.folder / "plain" / "offsets.npy")

    def __len__(self) -> int:
        return self.job.store.samples

    def __getitems__(self, indices: list[int]) -> list[tuple[Any, int]]:
        plain = self.job.store.folder / "plain"
        if self.job.store.kind == "images":
            keys = [f"{self.job.key('plain')}/{Path(self.job.store.image_file(i)).relative_to(plain)}" for i in indices]
            found = self.files.cat(keys)
            return [(found[key], i) for key, i in zip(keys, indices, strict=True)]
        key = f"{self.job.key('plain')}/{self.job.store.lines_file.relative_to(plain)}"
        starts, ends = self.offsets[indices].tolist(), self.offsets[np.array(indices) + 1].tolist()
        lines = self.files.cat_ranges([key] * len(indices), starts, ends)
        return [self.job.pair(json.loads(line)) for line in lines]

    @cached_property
    def files(self) -> Any:
        """The file system of this process."""
        options: dict[str, Any] = {"config_kwargs": {"max_pool_connections": _CONNECTIONS}, "skip_instance_cache": True}
        options["max_concurrency"] = 1  # otherwise it asks for the size of each object first
        return import_module("s3fs").S3FileSystem(endpoint_url=self.job.endpoint, **options)


_LOADER: Final = {"batch_size": BATCH, "num_workers": WORKERS, "persistent_workers": True, "collate_fn": collate}


def _again(loader: Iterable[Batch]) -> Feed:
    return Feed(lambda _: loader)


def _s3fs(job: Job) -> Feed:
    from torch.utils.data import DataLoader

    return _again(DataLoader(_Objects(job), shuffle=True, **_LOADER))  # type: ignore[arg-type]


def _mosaicml(job: Job) -> Feed:
    streaming, pair = load_streaming(), job.pair
    import_module("streaming.base.util").clean_stale_shared_memory()

    class Pairs(streaming.StreamingDataset):  # type: ignore[misc,name-defined,unused-ignore]
        def __getitem__(self, at: int) -> Any:
            return pair(super().__getitem__(at))

    remote = f"s3://{job.key('mosaicml-store')}"
    dataset = Pairs(remote=remote, local=str(job.cache), shuffle=True, batch_size=BATCH)
    for stream in dataset.streams:
        stream._downloader.clean_up()
    return _again(streaming.StreamingDataLoader(dataset, **_LOADER))


def _litdata(job: Job) -> Feed:
    litdata = import_module("litdata")
    import_module("litdata.streaming.downloader")._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    options = {"shuffle": True, "drop_last": False, "max_cache_size": _CACHE, "cache_dir": str(job.cache)}
    storage = {"endpoint_url": job.endpoint}
    url = f"s3://{job.key('litdata-store')}"
    dataset = litdata.StreamingDataset(url, storage_options=storage, transform=job.pair, **options)
    return _again(litdata.StreamingDataLoader(dataset, **_LOADER))


def _brand(job: Job, form: str = "brand") -> Feed:
    brand: Any = import_module("brand")
    cache, memory = brand.Cache(job.cache, _CACHE), int(MEMORY * job.store.payload_bytes)
    fields = (job.payload, "label")
    dataset = brand.BrandDataset(f"s3://{job.key(form)}", fields=fields, decode=False, memory=memory, cache=cache)
    loader = brand.BrandLoader(dataset, batch_size=BATCH, num_workers=WORKERS)

    def epoch(number: int) -> Iterable[Batch]:
        loader.set_epoch(number)
        batches: Iterable[Batch] = loader
        return batches

    return Feed(epoch, dataset.stats)


_TORCH: Final = ("torch", "brand.torch")
LINK: Final = Way(Rival("link"), "sequential", _link, (), yardstick=True)
BRAND: Final = Way(Rival("brand", "brand", "brand-data"), "brand", _brand, _TORCH)
WAYS: Final = (
    LINK,
    Way(Rival("s3fs", "s3fs", "s3fs"), "plain", _s3fs, ("torch", "s3fs")),
    Way(Rival("mosaicml", "streaming", "mosaicml-streaming"), "mosaicml-store", _mosaicml, ("torch", "streaming")),
    Way(Rival("litdata", "litdata", "litdata"), "litdata-store", _litdata, ("torch", "litdata")),
    BRAND,
    Way(
        Rival("brand, compressed", "brand", "brand-data"),
        "brand-zstd",
        partial(_brand, form="brand-zstd"),
        _TORCH,
        ("records",),
    ),
)


def drop_cached(folder: Path) -> None:
    """Make the kernel write a library's cache folder to disk, and drop its pages."""
    os.sync()
    for file in folder.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
