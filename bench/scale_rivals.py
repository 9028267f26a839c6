"""How do other libraries make the order of an epoch, and what do they need before its first samples are known?

`WAYS` has a function for each: `way(samples, work)` opens what is there before any order, as far as the library asks
for it, and returns a function that makes the order from a position on. This one returns a function for the samples of
later positions. `bench.scale` measures the second and third. One process, one rank, the library's own defaults:

- Grain: `IndexSampler` with a global shuffle, asked for each position. It computes a permutation of the index.
- mosaicml-streaming: a `StreamingDataset` with `py1br`, up to the sample IDs that its `__iter__` goes through.
- litdata: a `StreamingDataset` with `shuffle=True`. It shuffles chunks, and within each chunk once it is reached.
- Hugging Face datasets: `Dataset.shuffle()` of an Arrow file of numbers. It writes a file of indices, in which a new
  process finds the same order again. Only this way reads samples, too.
- PyTorch: `DistributedSampler` and `RandomSampler`. After a restart, positions are skipped.

Data sets of mosaicml-streaming and litdata are an index alone, of shards of 8,192 samples that do not exist: no sample
is read. Grain and PyTorch need the number of samples.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from bench.mosaicml import load_streaming

BATCH: Final = 1_024
SHARD: Final = 8_192
SEED: Final = 1
_ROWS: Final = 1 << 20

More = Callable[[int, int], object]
"""Makes the samples of positions, from the first one up to another."""
Order = Callable[[int], More]
"""Makes an order and the samples of its first batch, from a position on."""


class Way(NamedTuple):
    """A library's way to make an order."""

    open: Callable[[int, Path], Order]
    module: str
    distribution: str
    bytes_a_sample: float = 0.0
    """Memory of an epoch, as measured with 100 million samples."""
    later: int = 1_000_000
    """Later positions that are measured."""


def grain(samples: int, _: Path) -> Order:
    """Ask the sampler for one position after the other, as a data loader does."""
    samplers = import_module("grain.samplers")

    def made(first: int) -> More:
        sampler = samplers.IndexSampler(samples, shuffle=True, seed=SEED, num_epochs=1)

        def more(start: int, end: int) -> object:
            return [sampler[position].record_key for position in range(start, end)]

        more(first, first + BATCH)
        return more

    return made


def mosaicml(samples: int, work: Path) -> Order:
    """Make the sample IDs of an epoch, as `__iter__` does before the first sample."""
    streaming, folder = load_streaming(), work / f"mosaicml-{samples}"
    columns = {"column_encodings": ["int"], "column_names": ["value"], "column_sizes": [8], "compression": None}
    form = {"format": "mds", "hashes": [], "size_limit": 1 << 26, "version": 2, "zip_data": None} | columns
    shards = [
        {"raw_data": {"basename": f"shard.{number:05}.mds", "bytes": 1 << 17, "hashes": {}}, "samples": size} | form
        for number, size in enumerate(_shards(samples))
    ]
    _write_index(folder, {"version": 2, "shards": shards})
    options: dict[str, Any] = {"shuffle_algo": "py1br", "shuffle_seed": SEED, "batch_size": BATCH}
    dataset = streaming.StreamingDataset(remote=str(folder), local=f"{folder}-local", shuffle=True, **options)

    def made(first: int) -> More:
        dataset._unique_worker_world = dataset._unique_rank_world.detect_workers()
        dataset._parallel_worker_world = dataset._parallel_rank_world.detect_workers()
        epoch, _ = dataset._resume_incr_epoch()
        ids = dataset._get_work(epoch, first)  # those from this position on
        ids[:BATCH].tolist()
        return lambda start, end: ids[start - first : end - first].tolist()

    return made


def litdata(samples: int, work: Path) -> Order:
    """Shuffle chunks when the iteration begins, and samples when it reaches their chunk."""
    library, folder = import_module("litdata"), work / f"litdata-{samples}"
    spec = [1, {"type": "builtins.dict", "context": '["value"]', "children_spec": [dict.fromkeys(("type", "context"))]}]
    spec[1]["children_spec"][0]["children_spec"] = []  # type: ignore[index]
    config = {"chunk_size": SHARD, "data_format": ["int"], "data_spec": json.dumps(spec), "item_loader": "PyTreeLoader"}
    config |= dict.fromkeys(("chunk_bytes", "compression", "encryption"))
    chunks = [
        {"chunk_bytes": 1 << 17, "chunk_size": size, "dim": None, "filename": f"chunk-0-{number}.bin"}
        for number, size in enumerate(_shards(samples))
    ]
    _write_index(folder, {"chunks": chunks, "config": config, "updated_at": "0"})
    dataset = library.StreamingDataset(str(folder), shuffle=True, seed=SEED)
    dataset.set_batch_size(BATCH)  # as its data loader does; states of other batches cost more

    def indices() -> Iterator[int]:
        while dataset.worker_next_chunk_index < dataset.num_chunks or dataset.upcoming_indexes:
            if not dataset.upcoming_indexes:  # as `__next__` does
                chunk = dataset.worker_next_chunk_index
                _, start, end, _ = dataset.worker_intervals[chunk]
                where = (dataset._shuffle_num_chunks, dataset.current_epoch, int(dataset.worker_chunks[chunk]))
                dataset.upcoming_indexes.extend(dataset.shuffler(np.arange(start, end), *where))
                dataset.worker_next_chunk_index += 1
            yield dataset.upcoming_indexes.popleft()

    def made(first: int) -> More:
        if first:
            dataset.load_state_dict(dataset.state_dict(first, num_workers=1, batch_size=BATCH))
        iter(dataset)
        return _listed(indices())

    return made


def hugging_face(samples: int, work: Path) -> Order:
    """Write a file of indices, or find it again in mid-epoch, and read samples through it."""
    import pyarrow as pa
    from datasets import Dataset

    file, indices = work / f"numbers-{samples}.arrow", work / f"numbers-{samples}-indices.arrow"
    if not file.exists():
        part, schema = file.with_suffix(".part"), pa.schema([("value", pa.int64())])
        with pa.OSFile(str(part), "wb") as sink, pa.ipc.new_stream(sink, schema) as stream:
            for start in range(0, samples, _ROWS):
                values = pa.array(np.arange(start, min(start + _ROWS, samples)))
                stream.write_batch(pa.record_batch([values], schema))
        part.rename(file)
    dataset = Dataset.from_file(str(file))

    def made(first: int) -> More:
        if not first:
            indices.unlink(missing_ok=True)
        shuffled: Any = dataset.shuffle(seed=SEED, indices_cache_file_name=str(indices))

        def more(start: int, end: int) -> object:
            return [shuffled[at : min(at + BATCH, end)]["value"] for at in range(start, end, BATCH)]

        more(first, first + BATCH)
        return more

    return made


def distributed(samples: int, _: Path) -> Order:
    """Make a list of the epoch, and skip what comes before the first position."""
    from torch.utils.data import DistributedSampler

    return _skipping(lambda: DistributedSampler(range(samples), num_replicas=1, rank=0))  # type: ignore[arg-type]


def random_sampler(samples: int, _: Path) -> Order:
    """Make a list of the epoch, and skip what comes before the first position."""
    from torch.utils.data import RandomSampler

    return _skipping(lambda: RandomSampler(range(samples)))


WAYS: Final = {
    "Grain IndexSampler": Way(grain, "grain", "grain", later=100_000),
    "mosaicml-streaming py1br": Way(mosaicml, "streaming", "mosaicml-streaming", 40),
    "litdata shuffle": Way(litdata, "litdata", "litdata"),
    "HF datasets shuffle": Way(hugging_face, "datasets", "datasets", 65),
    "DistributedSampler": Way(distributed, "torch", "torch", 48),
    "RandomSampler": Way(random_sampler, "torch", "torch", 48),
}


def _skipping(sampler: Callable[[], Iterable[int]]) -> Order:
    def made(first: int) -> More:
        return _listed(islice(sampler(), first, None))

    return made


def _listed(indices: Iterator[int]) -> More:
    """Return a function for the indices after the first batch, which is made at once."""
    list(islice(indices, BATCH))
    return lambda start, end: list(islice(indices, end - start))


def _shards(samples: int) -> list[int]:
    """Return the samples of each shard."""
    return [min(SHARD, samples - start) for start in range(0, samples, SHARD)]


def _write_index(folder: Path, content: dict[str, Any]) -> None:
    """Write the index of a data set."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.json").write_text(json.dumps(content))
