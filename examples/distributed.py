"""Fetch one data set on two ranks; the first rank prints whether every sample was delivered.

    python -m torch.distributed.run --nproc-per-node 2 examples/distributed.py train.brand

The model is missing on purpose: with DistributedDataParallel the loop is the same.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch.distributed

from brand import BrandDataset, BrandLoader, BrandSampler


def main() -> None:
    """Fetch two epochs on each rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="a data set")
    args = parser.parse_args()

    torch.distributed.init_process_group("gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    data = BrandDataset(args.path, fields=("index",), memory=1.0)
    loader = BrandLoader(data, batch_size=64, sampler=BrandSampler(data, seed=0))
    for epoch in range(2):
        loader.set_epoch(epoch)
        drawn = [index for (indices,) in loader for index in indices.tolist()]
        of_all: list[list[int]] = [[] for _ in range(ranks)]
        torch.distributed.all_gather_object(of_all, drawn)
        if rank == 0:
            shares = " + ".join(str(len(share)) for share in of_all)
            different = len(set().union(*of_all))
            print(f"epoch {epoch}: {shares} samples, {different:,} different ones, {len(loader)} batches a rank")
    if rank == 0:
        print("this node's server:", data.stats()["fetched"], "samples fetched in all")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
