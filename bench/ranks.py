"""How many small records a second do 1, 2 and 4 ranks of one node draw, and how busy is their server?

    python -m bench.ranks --data records.brand --memory 0.25

One server serves all ranks (`brand serve`). Each rank is a process with a `BrandLoader` of one thread. The second epoch
counts, from the moment at which all ranks have begun it until the last rank has ended it. `server` is the fraction of
one core that the server takes, `CPU us` the processor time of a sample in the server and in a rank. If there are more
ranks than cores, the ranks share the cores.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from bench.harness import table
from bench.system import cpu_s_of

BATCH = 256


def draw(rank: int, ranks: int, data: str, server: str, together: Barrier, found: Queue[Any]) -> None:
    """Draw two epochs as one rank; send when the second began and ended, and the samples and processor time."""
    from brand import BrandDataset, BrandLoader, BrandSampler

    names = tuple(name for name in BrandDataset(data).schema if name != "key")
    data_set = BrandDataset(data, fields=names, server=server)
    sampler = BrandSampler(data_set, num_replicas=ranks, rank=rank)
    loader = BrandLoader(data_set, BATCH, sampler=sampler, num_workers=1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        together.wait(600)
        begin_s, used_s = time.monotonic(), time.process_time()
        samples = sum(len(batch[0]) for batch in loader)
        done = begin_s, time.monotonic(), samples, time.process_time() - used_s
        together.wait(600)
    found.put((*done, data_set.stats()["process"]))


def measure(data: str, memory: str, ranks: int) -> dict[str, float]:
    """Measure one number of ranks, with a server of their own."""
    address = f"unix:@bench-ranks-{os.getpid()}-{ranks}"
    command = [sys.executable, "-m", "brand", "serve", data, "--memory", memory, "--address", address, "--until-eof"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdout.readline()
        context = multiprocessing.get_context("spawn")
        together, found = context.Barrier(ranks + 1), context.Queue()
        options = (ranks, data, address, together, found)
        processes = [context.Process(target=draw, args=(rank, *options)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for _ in range(2):
            together.wait(600)
            used_s = cpu_s_of([server.pid])
            together.wait(600)
            used_s = cpu_s_of([server.pid]) - used_s
        told = [found.get(timeout=600) for _ in processes]
        for process in processes:
            process.join()
        server.stdin.close()
        server.wait()
    begins, ends, samples, cpus, _ = zip(*told, strict=True)
    seconds, count = max(ends) - min(begins), sum(samples)
    return {"ranks": ranks, "rate": count / seconds, "server": used_s / seconds} | {
        "server_us": 1e6 * used_s / count,
        "rank_us": 1e6 * sum(cpus) / count,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench.ranks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", required=True, help="a data set of records")
    parser.add_argument("--memory", default="0.25", help="memory of the server (%(default)s of the data)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    results = [measure(arguments.data, arguments.memory, ranks) for ranks in arguments.ranks]
    rows = [
        [str(f["ranks"]), f"{f['rate']:,.0f}", f"{f['server']:.0%}", f"{f['server_us']:.2f}", f"{f['rank_us']:.2f}"]
        for f in results
    ]
    print(table(["ranks", "samples/s", "server", "CPU us, server", "rank"], rows))
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
