"""How do planned batches change padding, the shuffle, and the speed of draws?

    python -m bench.planned_batches --data DATA --work SCRATCH [--out bench/results/planned_batches.json]

DATA holds `audio/` and `text/*.jsonl`. SCRATCH holds the data sets: all audio with its `duration`, and each text as
its bytes (`tokens`) with their `count`.

padding     The fraction of an epoch's batches that is padding, by plan and by memory: audio in batches of 16, and in
            batches of 240 s with their padding; texts packed into 16 rows of 2,048 bytes. For comparison, random
            batches of 16. `over` is how many batches are over their limit, of all in an epoch.
shuffling   `brand.testing.shuffling.measure` of the same epoch, drawn plainly and as planned.
speed       Texts a second of one process and one server with all samples in memory, plain draws (lists of arrays, of
            as many texts a batch) and packed rows (tensors) in turn; an epoch each, the first pair is not timed. Ratios
            are of the medians: of the rates, and of the processor time of the training process, which other programs on
            the machine disturb less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

import brand
from brand.chunker import convert_audio
from brand.orders.batches.batching import PositionBatches
from brand.orders.order import Order
from brand.testing.shuffling import measure

BATCH: Final = 16
SECONDS: Final = 240.0
ROW: Final = 2048
ROWS: Final = 16
MEMORIES: Final = (1.0, 0.25, 0.1)


def texts(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield each text as its bytes, with a zero byte behind it."""
    for file in sorted(folder.glob("*.jsonl")):
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                tokens = np.frombuffer(json.loads(line)["text"].encode() + b"\0", np.uint8)
                yield {"tokens": tokens, "count": len(tokens)}


def build(data: Path, work: Path) -> tuple[Path, Path]:
    """Build the data sets, once, and return their paths."""
    clips, documents = work / "clips.brand", work / "texts.brand"
    if not (clips / "brand.json").exists():
        convert_audio(data / "audio", clips, transcripts=data / "audio" / "transcripts.tsv")
    if not (documents / "brand.json").exists():
        brand.pack(texts(data / "text"), documents, schema={"tokens": "ndarray", "count": "int"})
    return clips, documents


def random_padding(lengths: np.ndarray) -> float:
    """Return the padding of the epoch's order in batches of `BATCH`."""
    rows = lengths[: len(lengths) // BATCH * BATCH].reshape(-1, BATCH)
    return float(1 - rows.sum() / (rows.max(axis=1).sum() * BATCH))


def look(path: Path, length: str, memory: float, **limits: Any) -> dict[str, Any]:
    """Return padding, limits and shuffling of the first epoch of a plan."""
    data = brand.BrandDataset(path, memory=memory)
    started = time.perf_counter()
    kind = brand.PackedBatchSampler if "tokens_per_row" in limits else brand.LengthBatchSampler
    plan = kind(data, length, **limits)
    made = plan._sequence.batches_of(0)
    planned_s = time.perf_counter() - started
    order, batches = plan.order, made.batches
    assert isinstance(order, Order)
    sample_of = order.plan(0).sample_of
    lengths = data.column(length)[data._source.data.indices(sample_of)]
    assert (np.bincount(batches.positions, minlength=len(data)) == 1).all()
    chunk, size = order.chunk_size, made.mean_samples
    shuffles = {
        name: measure(places, chunk_size=chunk, batch=size)
        for name, places in (("plain", sample_of), ("planned", sample_of[batches.positions]))
    }
    return {
        "limits": limits,
        "memory": memory,
        "window": plan.limits.window,
        "batches": len(made),
        "padding": made.padding(),
        "random": random_padding(lengths),
        "over": count_over(batches, lengths, **limits),
        "planned_s": planned_s,
        "shuffling": {
            name: [found.batch_collisions, found.chunk_distance, found.adjacent_distance]
            for name, found in shuffles.items()
        },
    }


def count_over(
    batches: PositionBatches,
    lengths: np.ndarray,
    *,
    batch_size: float = np.inf,
    batch_length: float = np.inf,
    tokens_per_row: float = np.inf,
    rows_per_batch: float = np.inf,
) -> int:
    """Return how many batches are over one of the limits, which have the names that the batch samplers use."""
    over = batches.ends - batches.starts > batch_size
    over |= batches.padded(lengths) > batch_length
    over |= batches.sums(lengths) > tokens_per_row * rows_per_batch
    return int(over.sum())


def arrays(samples: list[tuple[np.ndarray]]) -> list[np.ndarray]:
    """Return a batch without change."""
    return [tokens for (tokens,) in samples]


def speeds(path: Path, repeat: int) -> dict[str, Any]:
    """Measure texts a second, plain and packed in turn."""
    data = brand.BrandDataset(path, fields=("tokens",), memory=1.0)
    plan = brand.PackedBatchSampler(data, "count", tokens_per_row=ROW, rows_per_batch=ROWS)
    size = plan._sequence.batches_of(0).mean_samples
    loaders = {
        "plain": brand.BrandLoader(data, size, collate_fn=arrays),
        "packed": brand.BrandLoader(data, batch_sampler=plan, collate_fn=plan.collate("tokens")),
    }
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    costs: dict[str, list[float]] = {name: [] for name in loaders}
    for turn in range(repeat + 1):
        for name, loader in loaders.items():
            started, cpu = time.perf_counter(), time.process_time()
            for _ in loader:
                pass
            if turn:
                rates[name].append(len(data) / (time.perf_counter() - started))
                costs[name].append(1e6 * (time.process_time() - cpu) / len(data))
    median = {name: statistics.median(values) for name, values in rates.items()}
    cost = {name: statistics.median(values) for name, values in costs.items()}
    return {
        "texts_per_s": median,
        "cpu_us_per_text": cost,
        "all": [rates, costs],
        "ratio": median["packed"] / median["plain"],
        "cpu_ratio": cost["plain"] / cost["packed"],
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder with audio/ and text/*.jsonl")
    parser.add_argument("--work", type=Path, required=True, help="folder for the data sets")
    parser.add_argument("--repeat", type=int, default=5, help="timed epochs of each kind of draws")
    parser.add_argument("--out", type=Path, help="write all figures to this JSON file")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    clips, documents = build(args.data, args.work)
    found = [look(clips, "duration", memory, batch_size=BATCH) for memory in MEMORIES]
    found += [look(clips, "duration", memory, batch_length=SECONDS) for memory in MEMORIES]
    found += [look(documents, "count", memory, tokens_per_row=ROW, rows_per_batch=ROWS) for memory in MEMORIES]
    for row in found:
        plain, planned = ("  ".join(f"{value:.3f}" for value in row["shuffling"][n]) for n in ("plain", "planned"))
        print(
            f"{row['limits']!s:34} memory {row['memory']:<4}  window {row['window']:>6,}  batches {row['batches']:,}  "
            f"padding {row['padding']:.1%} (random {row['random']:.1%})  over {row['over']}  {row['planned_s']:.2f} s\n"
            f"    batch collisions, chunk distance, adjacent distance: plain {plain}, planned {planned}"
        )
    speed = speeds(documents, args.repeat)
    rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in speed["texts_per_s"].items())
    costs = ", ".join(f"{name} {cost:.2f}" for name, cost in speed["cpu_us_per_text"].items())
    print(f"texts a second: {rates}; ratio {speed['ratio']:.2f}")
    print(f"CPU us a text: {costs}; ratio {speed['cpu_ratio']:.2f}")
    if args.out is not None:
        args.out.write_text(json.dumps({"plans": found, "speed": speed}, indent=1) + "\n")


if __name__ == "__main__":
    main()
