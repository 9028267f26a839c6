"""How much slower is training from a store that fails now and then?

    python -m bench.store_faults --data SET.brand [--repeat N] [--out FILE]

The folder SET.brand is served as an S3 store by another process (`tests.tools.objects`: 30 ms before each answer,
125 MB/s for all connections together), first without faults, then with: 1 % of the requests are refused with 503, 1 %
of the answers are reset in the middle, 0.5 % end too early, and 0.5 % stop for 2 s in the middle. A fresh process takes
two epochs of batches of 256 through `BrandLoader`, memory 1/10, files as bytes.

Columns: samples/s over both epochs, medians of N pairs; the ratio of the pairs; requests that met a fault; whether both
epochs have every sample once, in the same order as without faults; errors that the training saw.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.tools.objects import Busy, Fault, Faults, ObjectStore, Reset, Short, Stall

LATENCY_S, BYTES_PER_S, EPOCHS, BATCH = 0.03, 125e6, 2, 256
CHUNKS = "*/chunks/*"


def faults(seed: int) -> Faults:
    """Return the faults of the store."""
    return Faults(
        Fault(Busy(), key=CHUNKS, share=0.01),
        Fault(Reset(after=50_000), key=CHUNKS, share=0.01),
        Fault(Short(after=50_000), key=CHUNKS, share=0.005),
        Fault(Stall(2, after=50_000), key=CHUNKS, share=0.005),
        seed=seed,
    )


def serve(folder: Path, seed: int | None, told: Connection) -> None:
    """Serve until told to end; send the address, then how many requests met a fault."""
    broken = Faults() if seed is None else faults(seed)
    with ObjectStore(folder, faults=broken, latency_s=LATENCY_S, bytes_per_s=BYTES_PER_S) as store:
        told.send(store.url)
        told.recv()
        told.send((sum(request.fault is not None for request in store.requests), len(store.requests)))


def train(url: str, endpoint: str, cache: str, told: Connection) -> None:
    """Take the epochs, and send how long they took and which samples were delivered."""
    os.environ |= {"AWS_ENDPOINT_URL": endpoint, "AWS_SKIP_SIGNATURE": "true", "XDG_CACHE_HOME": cache}
    from brand import BrandDataset, BrandLoader, BrandSampler

    data = BrandDataset(url, fields=("index", "image"), decode=False, memory=0.1)
    loader = BrandLoader(data, BATCH, sampler=BrandSampler(data, seed=1))
    started, found, digest = time.perf_counter(), 0, hashlib.sha256()
    once = True
    for _ in range(EPOCHS):
        epoch: list[int] = []
        for batch in loader:
            epoch += batch[0].tolist()
        once &= sorted(epoch) == list(range(len(data)))
        found += len(epoch)
        digest.update(repr(epoch).encode())
    seconds, stats = time.perf_counter() - started, data.stats()
    failed = stats["failed_reads"] + len(stats["replaced"])
    told.send({"rate": found / seconds, "order": digest.hexdigest(), "once": once, "failed": failed})


def measure(data: Path, seed: int | None) -> dict[str, Any]:
    """Run once against a store with or without faults."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as cache:
        store_end, here = spawn.Pipe()
        store = spawn.Process(target=serve, args=(data.parent.parent, seed, store_end))
        store.start()
        try:
            url = f"s3://{data.parent.name}/{data.name}"
            train_end, result = spawn.Pipe()
            training = spawn.Process(target=train, args=(url, here.recv(), cache, train_end))
            training.start()
            train_end.close()
            found: dict[str, Any] = result.recv()
            training.join()
            here.send(None)
            found["faults"], found["requests"] = here.recv()
        finally:
            store.join(10)
            store.kill()
    return found


def main() -> None:
    """Measure pairs, and print a line for each pair and one for all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a data set of images")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    pairs = []
    for number in range(args.repeat):
        right, wrong = measure(args.data.absolute(), None), measure(args.data.absolute(), number)
        pairs.append((right, wrong))
        same = "same order" if right["order"] == wrong["order"] and right["once"] and wrong["once"] else "OTHER ORDER"
        print(
            f"{right['rate']:,.0f} and {wrong['rate']:,.0f} samples/s: x{wrong['rate'] / right['rate']:.3f}; "
            f"{wrong['faults']} faults in {wrong['requests']} requests; {same}; {wrong['failed']} errors"
        )
    ratio = statistics.median(wrong["rate"] / right["rate"] for right, wrong in pairs)
    print(f"with faults x{ratio:.3f} (median of {len(pairs)})")
    if args.out:
        args.out.write_text(json.dumps({"argv": sys.argv[1:], "pairs": pairs}, indent=1))


if __name__ == "__main__":
    main()
